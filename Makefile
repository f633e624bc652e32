# Two commands on a fresh machine: `make demo` and `make test`.
# TORCH_INDEX=URL takes torch from another wheel index (PyTorch publishes one for CPU and one for
# each CUDA version); without it pip's own configuration decides.
PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check
INSTALL = $(PIP) install -q -c constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.PHONY: demo test lint types unit weights real aot notebooks browser docs bench nightly clean

demo: $(VENV)/.installed
	$(VENV)/bin/headatlas classify

test: lint types unit

lint: $(VENV)/.installed-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.installed-test
	$(VENV)/bin/pyright

unit: $(VENV)/.installed-test
	$(VENV)/bin/python -m pytest -n auto --dist worksteal --durations=25

# smollm2-135m, fetched once (93 MB) and converted.
weights: $(VENV)/.installed-test
	$(VENV)/bin/python -c 'from headatlas.interp.builtin import smollm2; print(smollm2.fetch())'

# The tests that need them; fetched first, so that no two processes do.
real: weights
	$(VENV)/bin/python -m pytest $$(grep -rl 'mark\.real' tests --include='test_*.py') -m 'real and not notebooks' -n auto --dist worksteal

# Every notebook from top to bottom, its values checked; executed copies go to build/notebooks.
notebooks: $(VENV)/.installed-site
	$(VENV)/bin/python -m pytest tests/test_notebooks.py -m notebooks -n auto

# The explorer and JupyterLab in Chromium (apt-get install chromium); what they show goes to
# build/screenshots.
browser: $(VENV)/.installed-site
	$(VENV)/bin/python -m pytest tests/browser tests/interp/plots/test_files.py -m browser -n auto

# The site, into build/site, with a copy of every notebook as it ran.
docs: $(VENV)/.installed-site
	$(VENV)/bin/python docs/site/notebook_runs.py
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict

# One of every kind of Triton kernel, compiled and judged for four GPUs, without one.
aot: $(VENV)/.installed-test
	$(VENV)/bin/python -m headatlas.kernels.aot --representative

bench: $(VENV)/.installed-test
	$(VENV)/bin/python -m tests.bench.classify_cost

# Hours: every Triton kernel compiled, every model family tried, and heads of smollm2-135m pruned by
# every method (goes on where it was stopped).
nightly: $(VENV)/.installed-test
	$(VENV)/bin/python -m tests.bench.figures aot coverage
	$(VENV)/bin/python -m tests.bench.prune_smollm2 --out build/prune-smollm2
	$(VENV)/bin/python -m tests.bench.figures prune_smollm2

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL) -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[test]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-site: $(VENV)/.installed-test
	$(INSTALL) -e '.[test,notebook,docs,images]'
	@touch $@ $(VENV)/.installed-test $(VENV)/.installed

clean:
	rm -rf $(VENV) dist build .pytest_cache .ruff_cache .hypothesis
