"""The notebooks: stripped in git, and run from top to bottom with the values that they tell."""

import ast
import base64
import json
import re
import sys
from functools import cache
from pathlib import Path

import numpy as np
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


def numbers(array):
    """An array of a figure, which plotly writes as a list or as bytes."""
    if not isinstance(array, dict):
        return np.array(array, float)
    found = np.frombuffer(base64.b64decode(array["bdata"]), array["dtype"]).astype(float)
    return found.reshape([int(n) for n in str(array.get("shape", found.size)).split(",")])


def column(table, name):
    """A column of a table as numbers."""
    return np.array(table[name], float)


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
        """Each heat map of a figure as an array."""
        traces = self.figures[figure]["data"]
        return [numbers(trace["z"]) for trace in traces if trace["type"] == "heatmap"]


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
        (shown,) = run.matrices(0)  # the map shows what its title says, the excess
        excess = dict(zip(table["address"], column(table, "excess"), strict=True))
        assert shown[2] == pytest.approx([excess[f"L2H{head}"] for head in range(8)], abs=6e-4)
        (told,) = re.findall(r"previous_token: (L.*)", run.text)
        assert {head[:2] for head in told.split()} == {"L0", "L1", "L3"}
        assert run.number(r"labels in 32 heads of random weights: (\d+)") == 0
        effects = run.table("evidence")
        rows = zip(*(effects[name] for name in ("kind", "layer", "head", "effect", "evidence")),
                   strict=True)  # fmt: skip
        rows = [(f"L{layer}H{head}", kind, float(e), found) for kind, layer, head, e, found in rows]
        previous = {head: (e, found) for head, kind, e, found in rows if kind == "previous_token"}
        assert sorted(previous) == told.split()
        without = {head for head, (_, found) in previous.items() if found == "pattern only"}
        assert len(previous) == 6
        assert len(without) == 3
        assert {"L0H5", "L3H2"} <= without
        assert 0.4 < previous.pop("L1H1")[0] < 0.6
        assert max(e for e, _ in previous.values()) < 0.05
        assert {found for _, kind, _, found in rows if kind == "induction"} == {"pattern + causal"}
        assert "True 0" in run.text
        assert len(run.figures) == 2

    def test_02_attention_patterns(self):
        run = executed("02_attention_patterns")
        assert run.number(r"on the previous token: ([\d.]+)") > 0.9
        found = re.findall(r"(L2H\d): ([\d.]+) on what followed before, ([\d.]+) on", run.text)
        followed = {head: float(copied) for head, copied, _ in found}
        sink = {head: float(first) for head, _, first in found}
        assert followed["L2H7"] > 0.5
        assert max(followed, key=followed.get) == "L2H7"
        assert all(0.25 < followed[head] < 0.5 for head in ("L2H1", "L2H2"))
        assert all(followed[f"L2H{head}"] < 0.25 for head in (0, 3, 4, 5, 6))
        assert all(sink[head] >= 0.88 for head in ("L2H0", "L2H3", "L2H6"))
        whole, without = (
            run.number(rf"{before} ([\d.]+)")
            for before in ("L2H7 on what followed before:", "without L1H1")
        )
        assert without < whole / 2
        assert run.number(r"largest change of a weight: ([\d.]+)") > 0.3
        assert len(run.figures) == 6
        assert len(run.matrices(1)) == 8
        offsets = run.figures[3]
        title = offsets["layout"]["xaxis"]["title"]["text"]
        assert title == "offset (query position − key position)"
        lines = {line["name"]: dict(zip(numbers(line["x"]), numbers(line["y"]), strict=True))
                 for line in offsets["data"]}  # fmt: skip
        assert lines["L1H1"][1] > 0.9
        assert lines["L1H4"][0] + lines["L1H4"][1] > 0.9
        assert max(lines["L2H7"], key=lines["L2H7"].get) == 12
        statistics = run.table("sink_logit")
        assert set(statistics["sink_logit"]) == {"NaN"}
        assert column(statistics, "top_weight").min() > 0.5
        assert "entropy_nats" in "".join(run.html)
        assert "<iframe" in run.html[-1]

    def test_03_prune_heads(self):
        run = executed("03_prune_heads")
        assert run.number(r"second copies loss [\d.]+ \+([\d.]+)") > 1
        sweep = run.table("second_copy_delta_loss_nats")
        assert sweep["head"][0] == "L1H1"
        assert run.number(r"text +loss [\d.]+ \+([\d.]+)") > 1
        assert not any(head.startswith("L2") for head in sweep["head"])
        (copies,) = run.matrices(0)
        assert 0.4 < copies[2].min() <= copies[2].max() < 1.1  # "about half a nat to a nat"
        copies[1, 1] = 0
        assert np.delete(copies, 2, axis=0).max() < 0.1
        curve = run.table("sparsity")
        rows = {}
        names = ("delta_loss_nats", "delta_low", "delta_high", "second_copy_delta_loss_nats")
        for i, method in enumerate(curve["method"]):
            row = [float(curve[name][i]) for name in names]
            rows.setdefault((method, float(curve["sparsity"][i])), []).append(row)
        (michel, low, high, easier), *_ = rows["michel", 0.25]
        gentlest = min(rows["random", 0.25])
        assert gentlest[0] < michel
        assert easier < 0
        assert gentlest[3] > 1
        assert michel < 0.5
        assert gentlest[2] > low
        (half, _, high, _), *_ = rows["michel", 0.5]
        assert all(random[0] > half and random[1] < high for random in rows["random", 0.5])
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
        softmax = run.table("unscaled")
        for scaled, unscaled in [list(map(float, pair)) for pair in zip(
            softmax["scaled"][3:], softmax["unscaled"][3:], strict=True
        )]:  # fmt: skip
            assert 0.1 * scaled < unscaled < 0.7 * scaled  # less gradient, not none
        assert 0.7 < float(softmax["unscaled"][1]) < 0.97  # most of the weight, not one-hot
        cache = run.table("cache bytes per token")
        assert cache["kind"] == ["MHA", "GQA", "MQA"]
        assert cache["cache bytes per token"] == ["512", "128", "64"]
        assert "80 = 20 numbers" in run.text
        costs = run.table("bytes_per_token")
        assert costs["bytes_per_token"][:3] == ["2621440", "327680", "40960"]
        assert costs["bytes"][0] == "343597383680"
        assert (costs["kind"][3], float(costs["numbers"][3])) == ("MLA", 4 * 128 + 64)
        assert costs["own"] == ["True", "False", "False", "False"]
        assert run.number(r"up to N = ([\d,]+) tokens") == 16_384
        assert run.number(r"difference of a weight to the model's: ([\d.e+-]+)") < 1e-5
        assert len(run.figures) == 2

    def test_06_your_own_kind_and_treebank(self):
        run = executed("06_your_own_kind_and_treebank")
        assert re.search(r"two_back +3 weak", run.text)
        assert run.number(r"heads above 0\.4: (\d+)") == 32
        assert run.number(r"median score ([\d.]+)") == pytest.approx(0.5, abs=0.05)
        assert run.number(r"L1H4: score ([\d.]+)") > 0.7
        assert "labels: 0" in run.text
        effects = run.table("evidence")
        assert set(effects["evidence"]) == {"pattern only"}
        assert (column(effects, "low") < 0).all()
        assert (column(effects, "high") > 0).all()
        assert re.search(r"cat +nsubj +sat", run.text)
        assert "[(10, (9,))]" in run.text
        assert "syntactic.det.to_dependent   none" in run.text
        assert re.search(r"too few instances to judge: .*nsubj\.to_head", run.text)
        assert not re.search(r"det\.to_head", run.text)  # no determiner sees its noun
        links = run.table("grade")
        assert set(links["grade"]) == {"none"}
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
    loss, held, undone = (
        column(effect, name)
        for name in ("loss at the second copy", "the same, patterns held", "share undone")
    )
    assert loss[0] > base + 1
    assert undone[0] == pytest.approx(1, abs=0.1)
    assert undone[1] == pytest.approx(2 / 3, abs=0.1)  # the rest is what the reader writes
    assert (loss - held) / (loss - base) == pytest.approx(undone, abs=2e-3)
    assert len(run.figures) == 4
    (shown,) = run.matrices(1)  # the map shows the excess, which its title promises
    assert np.nanmin(shown) < 0
    (seen,) = run.matrices(2)
    assert seen[13, 4] > 0.8  # the second "row": "·met"
    assert seen[17, 7] > 0.9
    assert seen[18, 8] > 0.9
    assert 0.4 < seen[16, 6] < 0.7  # "·Miss": "·Till", about half
    assert min(seen[11, 0], seen[12, 0]) > 0.9  # "·Mr", "·Har": the first position
    composition = run.table("source")
    assert composition["source"][:2] == ["L17H8", "L16H0"]
