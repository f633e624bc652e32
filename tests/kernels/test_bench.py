"""The benchmark without a GPU: its arithmetic, and what passes its checks, the promises."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headatlas.kernels.bench import report
from headatlas.kernels.bench.baselines import CUDNN, DETECTORS, EAGER, FLASH, baselines
from headatlas.kernels.bench.cases import BF16, FP32, GRID, Case, own_cases, through
from headatlas.kernels.bench.check import check_case, distance, poisoned, settings
from headatlas.kernels.bench.floor import Ceilings, Work, floor_ms, work
from headatlas.kernels.bench.measure import Measurement, n_problems
from headatlas.kernels.bench.problem import Ask, Setting, build, rotate
from headatlas.kernels.bench.promises import FEW_STATISTICS, FOUR_STATISTICS, verdicts
from headatlas.kernels.bench.run import Schedule, all_cases

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
TINY = Setting(d=16, n=29, heads=2, kv_heads=1, batch=2, dtype=torch.float32, padded=True)
EVERYTHING = Ask(
    entropy=True, top=True, compared=2, few=1, columns=1, weights=FP32, received=True
)  # fmt: skip


# the floor


def test_the_floor_of_attention_by_hand():
    """32 heads at N 8192, d 128: 2 · 32 · 8192 · 8193 / 2 · 256 operations."""
    needed = work(Setting(d=128, n=8192), Ask())
    assert needed.flops == 549_822_922_752
    # q, k, v, out in bf16, lse in fp32
    assert needed.n_bytes == 4 * 32 * 8192 * 128 * 2 + 32 * 8192 * 4
    assert floor_ms(needed, Ceilings(4.3e12, 790e12)) == pytest.approx(0.69598, abs=5e-5)


def test_the_floor_of_an_export_is_its_bytes():
    needed = work(Setting(d=128, n=8192), Ask(weights=BF16))
    assert needed.n_bytes == 4_294_967_296 + work(Setting(d=128, n=8192), Ask()).n_bytes
    assert floor_ms(needed, Ceilings(4.3e12, 790e12)) == pytest.approx(1.0615, abs=5e-5)
    twice = work(Setting(d=128, n=8192), Ask(weights=FP32)).n_bytes - needed.n_bytes
    assert twice == 4_294_967_296


def test_statistics_and_grids_add_their_bytes():
    setting = Setting(d=64, n=100, heads=2, kv_heads=1, batch=3)
    base = work(setting, Ask()).n_bytes
    rows = 3 * 2 * 100
    assert work(setting, Ask(entropy=True, top=True, compared=4)).n_bytes - base == rows * 7 * 4
    assert work(setting, Ask(received=True)).n_bytes - base == rows * 4
    assert work(setting, Ask(weights=GRID)).n_bytes - base == 3 * 2 * 2 * 2 * 2
    assert base == rows * 64 * 2 * 2 + 3 * 1 * 100 * 64 * 2 * 2 + rows * 4


def test_the_floor_is_the_higher_of_two():
    assert floor_ms(Work(3e9, 10**9), Ceilings(1e12, 1e12)) == 3.0
    assert floor_ms(Work(3e9, 5 * 10**9), Ceilings(1e12, 1e12)) == 5.0


def test_inputs_are_rotated_past_the_cache():
    setting = Setting(d=64, n=2048)  # 24 MiB of q, k and v
    cache = 60 * 2**20
    n = n_problems(setting, cache)
    assert (n - 1) * 24 * 2**20 >= 4 * cache > (n - 2) * 24 * 2**20
    assert n_problems(Setting(d=128, n=32768), cache) == 2
    assert n_problems(Setting(d=64, n=64), cache) == 16


def test_rotated_problems_share_their_labels_alone():
    first, second = rotate(build(TINY, CPU, 1), [2])
    assert first.compared is second.compared
    assert first.mask is second.mask
    assert not torch.equal(first.q, second.q)


# the check


def case_of(change=lambda found: None, ask=EVERYTHING, name="probe", **options):
    """The CPU's probe, its outputs spoilt by `change`."""
    prepare = through("cpu", ask)

    def spoilt(problem):
        call = prepare(problem)

        def changed():
            found = call()
            change(found)
            return found

        return changed

    return Case(name, ask, spoilt, **options)


@pytest.mark.parametrize("setting", [TINY, replace(TINY, d=64, n=31, padded=False)])
def test_a_right_probe_passes(setting):
    check = check_case(case_of(), setting, CPU, 3)
    assert check.passed, check.reason
    assert set(check.errors) == {
        "out", "lse", "mass", "entropy", "top_weight", "top_key", "weights", "received",
    }  # fmt: skip


def alive(name, change):
    def spoil(found):
        found[name] = change(found[name].clone())

    return spoil


def moved_to_another_key(top_key):
    return torch.where(top_key > 0, top_key - 1, top_key)


def one_forgotten(x):
    x[-1, -1, -1] = math.nan
    return x


def without_small_ones(weights):
    return weights.masked_fill(weights < 0.01, 0.0)


def future_leaks(weights):
    weights[..., 4, 20] = 1e-7
    return weights


WRONG = {
    "out scaled": alive("out", lambda x: x * 1.001),
    "out not written": alive("out", one_forgotten),
    "lse off": alive("lse", lambda x: x + 2e-4),
    "dead rows finite": alive("lse", lambda x: x.clamp(min=-1e30)),
    "entropy in bits": alive("entropy", lambda x: x / math.log(2)),
    "masses swapped": alive("mass", lambda x: x.flip(-1)),
    "mass of a neighbour": alive("mass", lambda x: x.roll(1, 2)),
    "heads of another group": alive("received", lambda x: x.flip(1)),
    "second best key": alive("top_key", moved_to_another_key),
    "key beyond the end": alive("top_key", lambda x: x.masked_fill(x < 0, 2**31 - 1)),
    "small weights lost": alive("weights", without_small_ones),
    "a hidden key seen": alive("weights", future_leaks),
    "received short of a row": alive("received", lambda x: x * 0.9999),
    "too few rows": alive("received", lambda x: x[..., 1:]),
    "output missing": lambda found: found.pop("entropy"),
    "raises": lambda found: found["nothing"],
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_probe_fails(wrong):
    check = check_case(case_of(wrong), TINY, CPU, 3)
    assert not check.passed
    assert not check.skipped
    assert check.reason


def test_what_is_not_written_shows():
    """Memory that is fresh by chance holds the right numbers of a former run: hence the NaN."""

    def prepare(problem):
        return lambda: {"out": torch.empty_like(problem.v), "lse": torch.empty(2, 2, 29)}

    check = check_case(Case("lazy", Ask(), prepare), replace(TINY, kv_heads=2), CPU, 3)
    assert check.errors["lse"][0] == check.errors["out"][0] == math.inf


def test_poison_ends_with_its_block():
    before = torch.are_deterministic_algorithms_enabled()
    with poisoned(CPU):
        assert torch.empty(3).isnan().all()
        assert torch.empty(3, dtype=torch.int32).eq(2**31 - 1).all()
    assert torch.are_deterministic_algorithms_enabled() is before


@pytest.mark.parametrize(
    ("got", "exact", "name", "expected"),
    [
        ([2.0, 1.0], [2.0, 1.5], "mass", 1 / 3),
        ([2.0, 1.0], [4.0, 1.0], "out", 0.5),
        ([2.0, 1.0], [4.0, 1.0], "lse", 0.5),
        ([0.2, 0.0], [0.1, 0.0], "lse", 0.1),
        ([-math.inf, 1.0], [-math.inf, 1.0], "lse", 0.0),
        ([-math.inf, 1.0], [3.0, 1.0], "lse", math.inf),
        ([0.0, 1.0], [-math.inf, 1.0], "lse", math.inf),
        ([math.nan, 1.0], [0.0, 1.0], "out", math.inf),
        ([0.0, 0.0], [0.0, 0.0], "weights", 0.0),
        ([1.0], [1.0, 1.0], "out", math.inf),
    ],
)
def test_distances_by_hand(got, exact, name, expected):
    found = distance(name, torch.tensor(got), torch.tensor(exact, dtype=torch.float64))
    assert found == pytest.approx(expected, rel=1e-6)


def test_every_kernel_is_checked_as_it_is_timed_and_on_odd_sizes():
    as_timed, odd = settings(own_cases()[0], 128)
    timed = Schedule([]).setting(128, 2048)
    assert (as_timed.heads, as_timed.kv_heads, as_timed.batch) == (
        timed.heads, timed.kv_heads, timed.batch,
    )  # fmt: skip
    assert as_timed.n % 128 == timed.n % 128 == 0
    assert odd.n % 2 == 1
    assert odd.padded
    lo, hi = build(replace(odd, dtype=torch.float32), CPU, 0).mask.intervals(2, odd.n, odd.n, CPU)
    assert (hi <= lo).any(-1).tolist() == [True, False]  # dead rows


BASELINES = {case.name: case for case in baselines()}


@pytest.mark.parametrize("name", [FLASH, EAGER, DETECTORS])
@pytest.mark.parametrize("n", [33, 256])
def test_baselines_compute_what_they_stand_for(name, n):
    setting = Setting(d=32, n=n, heads=2, kv_heads=2)
    check = check_case(BASELINES[name], setting, CPU, 5)
    assert check.passed, check.reason


@pytest.mark.filterwarnings("ignore")
def test_flex_is_called_rightly(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    setting = Setting(d=16, n=40, heads=2, kv_heads=2)
    check = check_case(BASELINES["flex+lse"], setting, CPU, 5)
    assert check.passed, check.reason


def test_a_baseline_that_cannot_run_is_skipped():
    check = check_case(BASELINES[CUDNN], Setting(d=16, n=16, heads=1, kv_heads=1), CPU, 0)
    assert check.skipped
    assert "RuntimeError" in check.reason


# promises


def timed(case, n, ms, d=128, peak=None):
    return Measurement(case, Setting(d, n), "timed", ms=ms, peak_bytes=peak)


def judged(*measurements):
    return [(v.verdict, v.worst) for v in verdicts(measurements)]


def test_without_measurements_nothing_is_claimed():
    assert judged() == [("not measured", None)] * 6
    lost = [Measurement(case.name, Setting(128, 8192), "not run") for case in all_cases()]
    assert judged(*lost) == [("not measured", None)] * 6


def test_promises_kept_and_missed():
    statistics = 8 * 32 * 8192 * 4  # lse, entropy, weight, key and four masses
    peak = 32 * 8192 * 128 * 2 + statistics
    good = [
        timed("plain", 8192, 1.0), timed(FLASH, 8192, 0.9), timed("M2", 8192, 1.3),
        timed("entropy", 8192, 1.1), timed("entropy+top+M4", 8192, 1.5, peak=peak),
        timed("export bf16", 8192, 2.0), timed(EAGER, 8192, 10.0), timed(DETECTORS, 8192, 15.0),
    ]  # fmt: skip
    assert judged(*good) == [
        ("kept", 1.3), ("kept", 1.5), ("kept", 5.0), ("kept", 10.0), ("kept", 1.0 / 0.9),
        ("kept", 512.0),
    ]  # fmt: skip
    one_bad_length = [
        timed("plain", 2048, 1.0), timed(FLASH, 2048, 0.8), timed("M1", 2048, 1.31),
        timed("M4", 2048, 1.51), timed("export bf16", 2048, 1.0), timed(EAGER, 2048, 4.9),
        timed("entropy+top+M4", 2048, 1.0, peak=1), timed(DETECTORS, 2048, 9.9),
    ]  # fmt: skip
    found = verdicts([*good, *one_bad_length])
    assert [(v.verdict, v.worst) for v in found] == [
        ("missed", 1.31), ("missed", 1.51), ("missed", 4.9), ("missed", 9.9), ("missed", 1.25),
        ("kept", 512.0),
    ]  # fmt: skip
    assert found[0].where == "M1, d 128, N 2048"
    assert [v.n_figures for v in found] == [3, 3, 2, 2, 2, 1]


def test_too_much_memory_is_told():
    output = 32 * 8192 * 64 * 2
    found = verdicts([timed("entropy+top+M4", 8192, 1.0, d=64, peak=output + 8_589_935)])
    assert (found[5].verdict, found[5].where) == ("missed", "entropy+top+M4, d 64, N 8192")


def test_only_what_was_timed_at_the_same_sizes_is_compared():
    found = judged(timed("plain", 2048, 1.0), timed("M2", 8192, 9.0), timed("M2", 2048, 9.0, d=64))
    assert found[0] == ("not measured", None)


def test_promises_name_cases_that_there_are():
    names = [case.name for case in all_cases()]
    assert len(set(names)) == len(names)
    wanted = {*FEW_STATISTICS, *FOUR_STATISTICS, "plain", "export bf16", *report.RATIOS}
    assert wanted <= set(names)


INTERPRETED = """
import torch
torch.set_num_threads(1)
from headatlas.kernels.bench.cases import own_cases
from headatlas.kernels.bench.check import check_case
from headatlas.kernels.bench.problem import Setting
from headatlas.kernels.fused.backend import INTERPRETED
assert INTERPRETED
sizes = Setting(16, 21, heads=2, kv_heads=1, batch=2, dtype=torch.float16, padded=True)
for case in own_cases():
    check = check_case(case, sizes, torch.device("cpu"), 7)
    print(f"{case.name}: {'passed' if check.passed else check.reason}")
"""


def test_every_case_passes_its_check_in_the_interpreter():
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [f"{case.name}: passed" for case in own_cases()]
