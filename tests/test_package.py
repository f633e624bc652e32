"""The package as a whole: layering, light imports, nothing unsafe."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import headatlas

ROOT = Path(__file__).parent.parent
ORDER = {"kernels": 0, "interp": 1, "circuits": 2}
SOURCES = [path for room in ORDER for path in sorted((ROOT / room).rglob("*.py"))]


def imports(path):
    """(number of leading dots, module, names) of every import in a file."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield node.level, node.module or "", [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield 0, alias.name, []


def test_imports_go_one_way():
    for path in SOURCES:
        room = path.relative_to(ROOT).parts[0]
        for _, module, names in imports(path):
            for part in {module.removeprefix("headatlas.").split(".")[0], *names} & set(ORDER):
                assert ORDER[part] <= ORDER[room], f"{path} imports {part}"


def test_kernels_know_nothing_of_hugging_face():
    for path in SOURCES:
        if path.is_relative_to(ROOT / "kernels"):
            roots = {module.split(".")[0] for level, module, _ in imports(path) if level == 0}
            assert not roots & {"transformers", "huggingface_hub", "tokenizers"}, path


def test_nothing_is_pickled_and_no_remote_code_runs():
    for path in SOURCES:
        text = path.read_text("utf-8")
        roots = {module.split(".")[0] for _, module, _ in imports(path)}
        assert not roots & {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}, path
        assert "trust_remote_code=True" not in text, path
        assert "torch.load(" not in text, path


def test_every_name_of_the_front_door_opens():
    for name in headatlas.__all__:
        assert getattr(headatlas, name) is not None
    assert set(dir(headatlas)) == set(headatlas.__all__)


def test_what_users_write_down_is_at_the_front_door():
    """Rules, errors and the parts of documents; each is the one of its home."""
    from headatlas.circuits.causal.evidence import CausalRule
    from headatlas.circuits.grade import Rule
    from headatlas.interp.errors import InputError
    from headatlas.interp.grammar import Mention
    from headatlas.interp.parsed import by_sentence

    for value in (by_sentence, Rule, CausalRule, InputError, Mention):
        assert getattr(headatlas, value.__name__) is value
        assert value.__name__ in headatlas.__all__


def test_type_checkers_see_every_name():
    """The names of `_HOMES`, each imported from its home under TYPE_CHECKING."""
    seen = {}
    for level, module, names in imports(ROOT / "headatlas" / "__init__.py"):
        if level == 1:
            seen |= dict.fromkeys(names, module)
    homes = {name: home for name, home in headatlas._HOMES.items() if name != "interventions"}
    assert seen == {**homes, "interventions": "interp"}


def fresh(code):
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_is_light():
    loaded = fresh(
        "import sys, headatlas, headatlas.circuits.classify\n"
        "print([n for n in ('transformer_lens', 'plotly', 'gguf', 'pyarrow.parquet')"
        " if n in sys.modules])"
    )
    assert loaded.strip() == "[]"


def test_transformers_may_be_imported_first_from_the_checkout():
    assert "ok" in fresh("import transformers, headatlas.kernels; print('ok')")
    assert "ok" in fresh(
        "from transformers import AutoModel; import headatlas.kernels.api; print('ok')"
    )


def test_version_is_that_of_the_project_file():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert project["tool"]["hatch"]["version"]["path"] == "headatlas/__init__.py"
    assert headatlas.__version__.count(".") == 2


def test_pinned_versions_satisfy_the_declared_ranges():
    from packaging.requirements import Requirement
    from packaging.version import Version

    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "dependencies"
    ]
    for text in declared:
        requirement = Requirement(text)
        assert Version(pins[requirement.name]) in requirement.specifier, text
