"""The notebooks: stripped in git, and run from top to bottom with the values that they tell."""

import ast
import json
import re
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]
FIGURE = "application/vnd.plotly.v1+json"
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)


def text_of(path):
    return json.loads(path.read_text("utf-8"))


def test_all_are_here():
    assert [name[:2] for name in NAMES] == ["01", "02", "03", "04", "05", "06"]


@each
class TestAsKeptInGit:
    def test_outputs_are_stripped(self, path):
        for cell in text_of(path)["cells"]:
            if cell["cell_type"] == "code":
                assert cell["outputs"] == []
                assert cell["execution_count"] is None
            assert cell["metadata"] == {}

    def test_nothing_tells_of_a_machine(self, path):
        notebook = text_of(path)
        assert notebook["metadata"]["kernelspec"] == {
            "display_name": "Python 3", "language": "python", "name": "python3",
        }  # fmt: skip
        assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
        raw = path.read_text("utf-8")
        assert not re.search(r"/home/|/root|/work|/tmp|/Users/|[A-Z]:\\\\|https?://", raw)

    def test_every_code_cell_parses(self, path):
        cells = [c for c in text_of(path)["cells"] if c["cell_type"] == "code"]
        assert len(cells) >= 5
        for cell in cells:
            ast.parse("".join(cell["source"]))

    def test_it_begins_with_its_title(self, path):
        first = text_of(path)["cells"][0]
        assert first["cell_type"] == "markdown"
        assert "".join(first["source"]).startswith("# ")

    def test_figures_are_the_last_line_of_their_cell(self, path):
        """Only so are they shown: `show()` would open a window elsewhere."""
        for cell in text_of(path)["cells"]:
            source = "".join(cell["source"])
            assert ".show(" not in source
            if cell["cell_type"] == "code" and ("ha.plot_" in source or ".plot(" in source):
                last = ast.parse(source).body[-1]
                assert isinstance(last, ast.Expr)
                assert isinstance(last.value, ast.Call)


class Run:
    """What a notebook showed when it ran."""

    def __init__(self, notebook):
        outputs = [o for c in notebook.cells for o in c.get("outputs", [])]
        shown = [o for o in outputs if o.output_type in ("display_data", "execute_result")]
        streams = [o for o in outputs if o.output_type == "stream"]
        self.text = "".join(o.text for o in streams if o.name == "stdout")
        self.errors = "".join(o.text for o in streams if o.name == "stderr")
        self.figures = [o.data[FIGURE] for o in shown if FIGURE in o.data]
        self.html = [o.data["text/html"] for o in shown if "text/html" in o.data]

    def number(self, pattern):
        """The number in the first group of a pattern that the printed text has once."""
        (found,) = re.findall(pattern, self.text)
        return float(found.replace(",", ""))

    def table(self, with_column):
        """The rows of the first table that has a column, as lists of cells by column."""
        for page in self.html:
            heads = re.findall(r"<th>(.*?)</th>", page.split("<tbody>")[0])
            if with_column in heads:
                rows = re.findall(r"<tr>(.*?)</tr>", page.split("<tbody>")[1], re.DOTALL)
                cells = [re.findall(r"<td>(.*?)</td>", row) for row in rows]
                names = heads[-len(cells[0]) :]
                return {name: [row[i] for row in cells] for i, name in enumerate(names)}
        raise AssertionError(f"no table with a column {with_column}")

    def matrices(self, figure):
        """Each heat map of a figure as its trace."""
        return [trace for trace in self.figures[figure]["data"] if trace["type"] == "heatmap"]


@cache
def executed(name):
    """Run a notebook once, and leave the copy where the site takes it from."""
    import tempfile

    sys.path.insert(0, str(ROOT / "docs" / "site"))
    try:
        import notebook_runs
    finally:
        sys.path.pop(0)
    path = ROOT / "notebooks" / f"{name}.ipynb"
    with tempfile.TemporaryDirectory() as folder:
        notebook = notebook_runs.execute(path, Path(folder))
    notebook_runs.keep(notebook, path.name)
    run = Run(notebook)
    assert "Error" not in run.errors
    return run


@pytest.mark.notebooks
class TestRun:
    def test_01_classify_heads(self):
        run = executed("01_classify_heads")
        assert "4 layers, 32 heads, causal: True" in run.text
        table = run.table("address")
        assert {head[:3] for head in table["address"]} == {"L2H"}  # induction lives in layer 2
        assert set(table["grade"]) == {"strong"}
        assert all(
            float(low) > 0.25 and float(expected) < 0.1
            for low, expected in zip(table["low"], table["expected"], strict=True)
        )
        assert run.number(r"labels in 32 heads of random weights: (\d+)") == 0
        effects = run.table("evidence")
        found = dict(zip(zip(effects["layer"], effects["head"], strict=True), effects["evidence"],
                         strict=True))  # fmt: skip
        assert found["1", "1"] == "pattern + causal"
        assert found["0", "5"] == "pattern only"
        assert "True 0" in run.text
        assert len(run.figures) == 2

    def test_02_attention_patterns(self):
        run = executed("02_attention_patterns")
        assert run.number(r"on the previous token: ([\d.]+)") > 0.9
        assert run.number(r"largest change of a weight: ([\d.]+)") > 0.3
        assert len(run.figures) == 6
        assert len(run.matrices(1)) == 8
        assert "entropy_nats" in "".join(run.html)
        assert "<iframe" in run.html[-1]

    def test_03_prune_heads(self):
        run = executed("03_prune_heads")
        assert run.number(r"second copies loss [\d.]+ \+([\d.]+)") > 1
        sweep = run.table("second_copy_delta_loss_nats")
        assert sweep["head"][0] == "L1H1"
        assert re.search(r"24 of 32 heads kept", run.text)
        assert run.number(r"to the masked model ([\d.e+-]+),") < 1e-3
        assert run.number(r"to the whole model ([\d.]+)") > 0.1
        assert re.search(r"heads +32 +24 0\.750", run.text)
        assert len(run.figures) == 3

    def test_04_from_qkv_to_heads(self):
        run = executed("04_from_qkv_to_heads")
        assert run.number(r"the layer's own output: ([\d.e+-]+)") < 1e-5
        assert "what each head writes: True" in run.text
        assert "their sum is the output: True" in run.text
        assert run.number(r"absorbed − expanded: ([\d.e+-]+)") < 1e-5
        cache = run.table("cache bytes per token")
        assert cache["kind"] == ["MHA", "GQA", "MQA"]
        assert cache["cache bytes per token"] == ["512", "128", "64"]
        assert "80 = 20 numbers" in run.text
        costs = run.table("bytes_per_token")
        assert costs["bytes_per_token"][:3] == ["2621440", "327680", "40960"]
        assert costs["bytes"][0] == "343597383680"
        assert run.number(r"up to N = ([\d,]+) tokens") == 16_384
        assert run.number(r"difference of a weight to the model's: ([\d.e+-]+)") < 1e-5
        assert len(run.figures) == 2

    def test_06_your_own_kind_and_treebank(self):
        run = executed("06_your_own_kind_and_treebank")
        assert re.search(r"two_back +3 weak", run.text)
        assert run.number(r"heads above 0\.4: (\d+)") >= 16
        assert "labels: 0" in run.text
        assert re.search(r"cat +nsubj +sat", run.text)
        assert "[(10, (9,))]" in run.text
        assert "syntactic.det.to_dependent   none" in run.text
        links = run.table("grade")
        assert float(links["score"][0]) < float(links["expected"][0])
        assert len(run.figures) == 1


@pytest.mark.notebooks
@pytest.mark.real
def test_05_induction_circuit():
    run = executed("05_induction_circuit")
    first, second = re.search(r"first copy ([\d.]+) nats, second copy ([\d.]+)", run.text).groups()
    assert float(second) < float(first) - 5
    whole, without, keys = re.search(
        r"L18H6: ([\d.]+); without L16H0 ([\d.]+), its keys alone ([\d.]+)", run.text
    ).groups()
    assert float(whole) > 0.6
    assert float(without) < float(whole) - 0.3
    assert abs(float(keys) - float(without)) < 0.1
    table = run.table("mass without it")
    assert table["head"][0] == "L16H0"
    effect = run.table("removed")
    base = run.number(r"whole model: ([\d.]+) nats")
    loss, held = (effect[name] for name in ("loss at the second copy", "the same, patterns held"))
    assert float(loss[0]) > base + 1
    assert abs(float(held[0]) - base) < 0.5
    assert float(held[1]) > base + 0.1  # the reader writes the copy itself
    assert len(run.figures) == 4
