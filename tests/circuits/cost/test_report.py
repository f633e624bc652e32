"""Cost reports: tables, files, the terminal and the command line."""

import io
import json
import math
from dataclasses import replace

import pandas as pd
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from headatlas.circuits.cost import totals
from headatlas.circuits.cost.devices import Device, find_device
from headatlas.circuits.cost.kv_cache import cache_bytes
from headatlas.circuits.cost.report import CostReport, cost
from headatlas.circuits.cost.shapes import (
    MOST,
    MOST_LAYERS,
    AttentionShapes,
    LatentShape,
    LayerShape,
    uniform_shapes,
)
from headatlas.circuits.cost.show import show_cost, si
from headatlas.interp.errors import InputError

LARGE = uniform_shapes(80, d_model=8192, n_heads=64)
MIXED = AttentionShapes(
    (LayerShape(64, 8, 2, 8, 8, window=16), LayerShape(64, 8, 2, 8, 8)), "[bold]mixed[/]"
)


def printed(report, width=80):
    text = io.StringIO()
    show_cost(report, Console(file=text, width=width, color_system=None))
    return text.getvalue()


def test_the_table_adds_up():
    report = cost(MIXED, seq_len=100, batch=3)
    table = report.table()
    assert set(table["layer"]) == {"all", "0", "1"}
    for (phase, operation), rows in table.groupby(["phase", "operation"]):
        whole = rows[rows["layer"] == "all"].iloc[0]
        parts = rows[rows["layer"] != "all"]
        assert whole["flops"] == parts["flops"].sum(), (phase, operation)
        assert whole["bytes"] == parts["bytes"].sum()
        assert whole["intensity"] == whole["flops"] / whole["bytes"]
    for fused, names in (
        (False, ["qkv", "scores", "softmax", "av", "output"]),
        (True, ["qkv", "fused", "output"]),
    ):
        rows = table.query("phase == 'prefill' and layer == 'all'").set_index("operation")
        time = report.prefill.time_ms(report.device, report.dtype, fused=fused)
        assert time == pytest.approx(rows.loc[names, "time_ms"].sum())
    assert set(table["regime"]) <= {"compute-bound", "memory-bound"}
    assert len(table) == 2 * 3 * 6


def test_the_cache_table():
    table = cost(LARGE, seq_len=4096, batch=32).cache_table().set_index("kind")
    assert list(table.index) == ["MHA", "GQA", "MQA", "MLA"]
    assert table.loc["MHA", "bytes"] == 343_597_383_680
    assert table.loc["GQA", "of_mha"] == 1 / 8
    assert table.loc["MQA", "of_mha"] == 1 / 64
    assert table.loc["MLA", "numbers"] == 512 + 64
    assert list(table["own"]) == [True, False, False, False]


def test_a_window_shows_in_the_cache_but_not_per_token():
    table = cost(MIXED, seq_len=100, dtype="fp32").cache_table().set_index("kind")
    assert table.loc["GQA", "bytes_per_token"] == 2 * 2 * 16 * 4
    assert table.loc["GQA", "bytes"] == cache_bytes(MIXED, 100, dtype="fp32")


@pytest.mark.parametrize("suffix", ["json", "csv", "parquet"])
def test_files_hold_the_table(tmp_path, suffix):
    report = cost(MIXED, seq_len=100, batch=3, exact=True)
    path = report.save(tmp_path / f"cost.{suffix}")
    if suffix == "json":
        read = pd.DataFrame(json.loads(path.read_text())["operations"])
    else:
        read = pd.read_csv(path) if suffix == "csv" else pd.read_parquet(path)
    pd.testing.assert_frame_equal(read, report.table(), check_exact=False, rtol=1e-12)
    assert read["flops"].tolist() == report.table()["flops"].tolist()


def test_files_hold_the_rest(tmp_path):
    report = cost(MIXED, seq_len=100, mla="expanded")
    content = json.loads(report.save(tmp_path / "cost.json").read_text())
    stored = pq.read_table(report.save(tmp_path / "cost.parquet")).schema.metadata[b"headatlas"]
    del content["operations"]
    assert json.loads(stored) == content
    assert content["schema_version"] == 1
    layers = tuple(LayerShape(**layer) for layer in content["model"]["layers"])
    assert layers == MIXED.layers
    assert content["settings"]["mla"] == "expanded"
    assert content["crossover"] == report.crossover
    assert [row["kind"] for row in content["cache"] if row["own"]] == ["GQA"]


def test_numbers_beyond_64_bits_stay_numbers(tmp_path):
    report = cost(LARGE, seq_len=10**8)
    assert report.prefill.flops > 2**63
    assert report.table()["flops"].dtype == float
    read = pd.read_parquet(report.save(tmp_path / "cost.parquet"))
    assert read["flops"].max() == float(report.prefill.fused.flops)
    content = json.loads(report.save(tmp_path / "cost.json").read_text())
    assert max(row["flops"] for row in content["operations"]) == report.prefill.fused.flops


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(InputError, match="ends in no known format"):
        cost(MIXED).save(tmp_path / "cost.xlsx")
    assert not list(tmp_path.iterdir())


def test_what_is_printed():
    text = printed(cost(LARGE, seq_len=4096, batch=32))
    assert max(map(len, text.splitlines())) <= 80
    for expected in (
        "80 × MHA, d_model 8,192, 64 heads of 128", "2.62 MB", "344 GB", "12.5%",
        "beyond N = 16,384 (2·d_model)", "4,096 tokens are below it", "this model", "what if",
        "memory-bound below 295 FLOP/B", "989.5 TFLOP/s", "ships with 8",
    ):  # fmt: skip
        assert expected in " ".join(text.split()), expected
    assert "[bold]mixed[/]" in printed(cost(MIXED))
    assert "ships with" not in printed(cost(MIXED))


@pytest.mark.parametrize("seq_len", [1, 10**4, 10**9])
def test_no_line_is_wider_than_eighty(seq_len):
    latent = uniform_shapes(
        61, d_model=7168, n_heads=128, d_head=192, d_value=128, latent=LatentShape(512, 64, 1536),
        name="a model of a long name " * 5,
    )  # fmt: skip
    for report in (cost(latent, seq_len=seq_len, batch=10**6), cost(MIXED, seq_len=seq_len)):
        text = printed(report)
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text


def test_encoders_and_windows_are_said():
    encoder = AttentionShapes((LayerShape(8, 2, 2, 4, 4, causal=False),))
    report = cost(encoder)
    assert report.decode is None
    text = printed(report)
    assert "sees both ways" in text
    assert "Cache" not in text
    assert set(report.table()["phase"]) == {"prefill"}
    windows = uniform_shapes(2, d_model=64, n_heads=4, window=8)
    assert "no crossover" in printed(cost(windows, exact=True))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7, "7"), (999, "999"), (1000, "1.00 k"), (2_621_440, "2.62 M"), (9_996, "10.0 k"),
     (99_960, "100 k"), (999_600, "1.00 M"), (343_597_383_680, "344 G"), (1e21, "1.00 Z")],
)  # fmt: skip
def test_numbers_are_short(value, text):
    assert si(value) == text


def test_refusals():
    for act, text in (
        (lambda: cost(LARGE, device="abacus"), "unknown device 'abacus'"),
        (lambda: cost(LARGE, device="a100", dtype="fp8"), "not in fp8"),
        (lambda: cost(LARGE, seq_len=0), "seq_len must be"),
        (lambda: cost(LARGE, mla="never"), "'absorbed' or 'expanded'"),
    ):
        with pytest.raises(InputError, match=text):
            act()


ALL = {"seq_len": MOST, "batch": MOST}


def test_the_largest_numbers_still_give_a_report(tmp_path):
    latent = LatentShape(MOST, MOST - 1, MOST)
    layer = LayerShape(MOST, MOST, MOST, MOST, MOST, MOST, latent=latent)
    shapes = AttentionShapes((layer,) * 100)
    for mla in ("absorbed", "expanded"):
        for exact in (False, True):
            report = cost(shapes, mla=mla, exact=exact, dtype="fp32", device="l4", **ALL)
            assert report.table()["time_ms"].map(math.isfinite).all()
    assert max(map(len, printed(report).splitlines())) <= 80
    for suffix in ("json", "parquet"):
        report.save(tmp_path / f"cost.{suffix}")


@pytest.mark.usefixtures("as_users_call")
def test_absurd_numbers_are_refused():
    shape = LayerShape(64, 8, 2, 8, 8)
    for act, text in (
        (lambda: cost(LARGE, seq_len=10**200), "seq_len must be a whole number from 1 to 1,099"),
        (lambda: cost(LARGE, batch=10**5000), "got an integer of more than 30 digits"),
        (lambda: uniform_shapes(10**9, d_model=8, n_heads=2), "layers must be .* to 10,000"),
        (lambda: AttentionShapes((shape,) * (MOST_LAYERS + 1)), "number of layers"),
        (lambda: LayerShape(2**40, 8, 2, 8, 8), "d_model must be"),
        (lambda: LatentShape(2**40, 8), "d_latent must be"),
        (lambda: replace(shape, causal="no"), "causal must be True or False; got 'no'"),
        (lambda: replace(shape, causal=1), "causal must be"),
        (lambda: replace(shape, latent=5), "latent must be"),
        (lambda: CostReport(MIXED, 1, 1, "fp16", find_device("l4"), exact="no"), "exact must be"),
    ):
        with pytest.raises(InputError, match=text):
            act()


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    "rate",
    [0, 0.0, -1.0, math.nan, math.inf, 1e-300, pytest.param(10**5000, id="huge"), True, "3"],
)
def test_rates_that_no_device_has(rate):
    for flops, bandwidth in (({"fp16": 1e12}, rate), ({"fp16": rate}, 1e12)):
        with pytest.raises(InputError, match=r"a number per second from 1 to 1e\+30; got"):
            Device("an abacus", flops, bandwidth)


def test_each_shape_is_counted_once(monkeypatch):
    """A report of many layers takes as long as one of a few."""
    seen = []
    count = totals.layer_cost
    monkeypatch.setattr(
        totals, "layer_cost", lambda layer, *rest: seen.append(layer) or count(layer, *rest)
    )
    deep = AttentionShapes(MIXED.layers * (MOST_LAYERS // 2))
    report = cost(deep, seq_len=100)
    for _ in range(3):
        assert len(report.table()) == 2 * 6 * (MOST_LAYERS + 1)
        assert report.prefill is report.prefill
        assert report.decode is report.decode
    assert len(seen) == 2 * 2 * 2  # prefill and decode, of all layers and of each shape
    assert report.prefill.flops == MOST_LAYERS // 2 * cost(MIXED, seq_len=100).prefill.flops
    own = report.table()
    own["flops"] = 0  # of a copy
    assert report.table()["flops"].min() > 0


def test_a_device_of_ones_own():
    slow = Device("an abacus", {"fp16": 1.0}, 1e30)
    report = CostReport(MIXED, 10, 1, "fp16", slow)
    assert set(report.table()["regime"]) == {"compute-bound"}
    assert math.isclose(
        report.prefill["qkv"].time_ms(slow, "fp16"), report.prefill["qkv"].flops * 1e3
    )
    assert replace(report, device=find_device("l4")).device.name == "L4"


NUMBERS = ["--layers", 80, "--d-model", 8192, "--heads", 64]
COMMANDS = [
    ([], "Attention of tiny"),
    (["smollm2-135m"], "30 × GQA"),
    ([*NUMBERS, "--batch", 32], "344 GB"),
    ([*NUMBERS, "--kv-heads", 8], "80 × GQA"),
    ([*NUMBERS, "--exact"], "32,767"),
    (["--layers", 2, "--heads", 4, "--d-head", 8, "--d-model", 30], "d_model 30"),
    (["--layers", 61, "--d-model", 7168, "--heads", 128, "--d-head", 192, "--latent", 512,
      "--rope-dim", 64, "--q-latent", 1536, "--mla", "expanded"], "latents expanded"),
    ([*NUMBERS, "--device", "rtx4090", "--dtype", "fp8"], "330.3 TFLOP/s"),
]  # fmt: skip
WRONG = [
    (["tiny", *NUMBERS], "a model or its numbers, not both"),
    (["--layers", 2], "--heads and --d-model or --d-head"),
    (["--layers", 2, "--heads", 3, "--d-model", 8], "no multiple of 3 heads"),
    ([*NUMBERS, "--kv-heads", 7], "64 query heads cannot share 7"),
    ([*NUMBERS, "--rope-dim", 8], "add --latent"),
    ([*NUMBERS, "--latent", 8], "add --rope-dim"),
    ([*NUMBERS, "--latent", 8, "--rope-dim", 128], "must be narrower"),
    ([*NUMBERS, "--latent", 8, "--rope-dim", 4, "--kv-heads", 8], "leave out the 8"),
    ([*NUMBERS, "--device", "abacus"], "known: a100, h100, h200, l4, rtx4090"),
    ([*NUMBERS, "--dtype", "int3"], "known: fp32, fp16, bf16, fp8"),
    ([*NUMBERS, "--mla", "never"], "'absorbed' or 'expanded'"),
    ([*NUMBERS, "--seq-len", 0], "--seq-len"),
    ([*NUMBERS, "--seq-len", 10**200], "--seq-len"),
    ([*NUMBERS, "--layers", 10**9], "--layers"),
    ([*NUMBERS, "--layers", 10_001], "--layers"),
    ([*NUMBERS, "--layers", "many"], "--layers"),
    ([*NUMBERS, "-o", "cost.xlsx"], ".json, .csv or .parquet"),
    (["no-such-model"], "no-such-model"),
    (["tny"], "Did you mean 'tiny'?"),
]


def test_the_command_line(tmp_path, command):
    saved = tmp_path / "cost.json"
    for arguments, expected in [*COMMANDS, ([*NUMBERS, "-o", saved], "wrote")]:
        done = command("cost", *arguments, columns=80)
        assert done.status == 0, (arguments, done.error)
        assert expected in done.out, (arguments, done.out)
        assert max(map(len, done.out.replace(str(saved), "").splitlines())) <= 80
    assert json.loads(saved.read_text())["settings"]["seq_len"] == 4096


@pytest.mark.parametrize(("arguments", "expected"), WRONG)
def test_wrong_commands_end_in_one_line(arguments, expected, command):
    done = command("cost", *arguments)
    assert (done.status, done.out) == (2, "")
    (line,) = done.error.splitlines()
    assert line.startswith("headatlas: ")
    assert expected in line


def test_a_report_prints_as_the_commands_tables():
    """Plain where it is printed, escaped in a notebook."""
    report = cost(uniform_shapes(2, d_model=64, n_heads=4, name="a[b]<script>"), seq_len=256)
    assert repr(report) == printed(report).rstrip()
    assert "Attention of a[b]<script>" in repr(report)
    page = report._repr_html_()
    assert page.startswith("<pre")
    assert "<script>" not in page
    assert "a[b]&lt;script&gt;" in page
    assert "Cache in fp16" in page
