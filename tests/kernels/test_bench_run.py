"""A run of the benchmark without a GPU: what it refuses to time, its files, its command."""

import json
import math
import os
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from headatlas.kernels.bench import __main__ as command
from headatlas.kernels.bench import machine, measure, report
from headatlas.kernels.bench.baselines import CUDNN, FLASH
from headatlas.kernels.bench.cases import Case, own_cases, select, through
from headatlas.kernels.bench.floor import Ceilings, floor_ms, work
from headatlas.kernels.bench.measure import Budget, CudaStopwatch
from headatlas.kernels.bench.problem import Ask, Setting, build
from headatlas.kernels.bench.run import Report, Schedule, run
from headatlas.kernels.command import write_whole

from .test_bench import BASELINES, CPU, EVERYTHING, TINY, WRONG, case_of

# a run


class Watch:
    """Stands in for the device's clock: each timed call takes 2 ms."""

    def __init__(self, ms=2.0):
        self.ms, self.timed = ms, []

    def wait(self):
        pass

    def median_ms(self, call, about_ms=0.0):
        self.timed.append(call())
        return self.ms

    def peak_bytes(self, call):
        call()
        return 1000


def run_of(*cases, watch=None, budget=None, **schedule):
    asked = {"widths": (16,), "lengths": (32,), "heads": 2, "dtype": torch.float32, **schedule}
    asked.setdefault("checks", lambda case, d: [TINY])
    told = Report({"gpu": None}, Ceilings(1e12, 1e12), 11, cases)
    lines = []
    run(
        told, Schedule(cases, **asked), stopwatch=watch or Watch(), device=CPU, cache_bytes=0,
        budget=budget or Budget(1e3, 1e2), progress=lines.append,
    )  # fmt: skip
    return told, lines


def statuses(told):
    return {(m.case, m.setting.n): m.status for m in told.measurements}


def test_a_case_that_fails_its_check_is_never_timed():
    watch = Watch()
    wrong = case_of(WRONG["lse off"], name="wrong")
    told, lines = run_of(case_of(name="right"), wrong, watch=watch, lengths=(32, 48))
    assert statuses(told) == {
        ("right", 32): "timed", ("right", 48): "timed",
        ("wrong", 32): "failed", ("wrong", 48): "failed",
    }  # fmt: skip
    assert len(watch.timed) == 2
    assert all(m.ms is None for m in told.measurements if m.case == "wrong")
    (failure,) = told.failures  # named once
    assert failure.startswith("wrong (d 16, N 29")
    assert "lse errs by" in failure
    assert any("check wrong" in line and "FAILED" in line for line in lines)
    assert told.complete


def test_one_failed_check_of_several_is_enough():
    odd_alone = case_of(lambda found: found["lse"].add_(found["lse"].shape[-1] % 2))
    told, _ = run_of(odd_alone, checks=lambda case, d: [replace(TINY, n=28), TINY])
    assert [check.passed for check in told.checks] == [True, False]
    assert statuses(told) == {("probe", 32): "failed"}
    told, _ = run_of(odd_alone, checks=lambda case, d: [TINY, replace(TINY, n=28)])
    assert statuses(told) == {("probe", 32): "failed"}


def raising(error, name="case", **options):
    """Passes its check at N 29, and raises at every other length."""
    prepare = through("cpu", Ask())

    def picky(problem):
        if problem.setting.n != TINY.n:
            raise error
        return prepare(problem)

    return Case(name, Ask(), picky, **options)


@pytest.mark.parametrize(
    ("error", "own", "status"),
    [
        (torch.OutOfMemoryError("no more"), True, "out of memory"),
        (torch.OutOfMemoryError("no more"), False, "out of memory"),
        (RuntimeError("no kernel"), True, "failed"),
        (RuntimeError("no kernel"), False, "unsupported"),
    ],
)
def test_what_cannot_be_timed_is_no_number(error, own, status):
    told, _ = run_of(raising(error, own=own), case_of())
    assert statuses(told) == {("case", 32): status, ("probe", 32): "timed"}
    assert told.measurements[0].ms is None
    assert str(error) in told.measurements[0].note
    assert len(told.failures) == (status == "failed")


def test_an_unsupported_baseline_is_not_timed():
    told, _ = run_of(replace(BASELINES[CUDNN]), checks=lambda case, d: [replace(TINY, kv_heads=2)])
    assert statuses(told) == {(CUDNN, 32): "unsupported"}
    assert "RuntimeError" in told.measurements[0].note
    assert told.failures == []


def test_no_time_left_is_no_number():
    now = iter(range(10**6))
    watch = Watch()
    budget = Budget(20.0, 20.0, started=0.0, clock=lambda: float(next(now)))
    told, _ = run_of(*(case_of(name=str(i)) for i in range(9)), watch=watch, budget=budget)
    assert len(told.measurements) == 9
    assert watch.timed == []
    assert set(statuses(told).values()) == {"not run"}
    assert told.failures == []


def test_a_case_beyond_its_own_budget_is_not_timed():
    seconds = iter([0.0, 1.0, 4.0, *[5.0] * 99])  # the second call takes 3 s
    budget = Budget(1e3, 20.0, started=0.0, clock=lambda: next(seconds))
    problems = [build(TINY, CPU, 0)]
    watch = Watch()
    found = measure.measure(case_of(), problems, watch, budget)
    assert (found.status, found.note) == ("not run", "it needs about 36 s")
    assert watch.timed == []


@pytest.mark.parametrize("ms", [0.0, math.nan, math.inf, -1.0])
def test_an_impossible_time_is_no_number(ms):
    found = measure.measure(case_of(), [build(TINY, CPU, 0)], Watch(ms), Budget(1e3, 1e3))
    assert (found.status, found.ms) == ("failed", None)


def test_broken_inputs_keep_what_was_measured(monkeypatch):
    from headatlas.kernels.bench import run as module

    monkeypatch.setattr(module, "rotate", lambda *a: (_ for _ in ()).throw(RuntimeError("broken")))
    told, _ = run_of(case_of())
    assert statuses(told) == {("probe", 32): "failed"}
    assert "no inputs: RuntimeError: broken" in told.failures[0]


# files and tables


def a_report():
    failing = case_of(WRONG["out not written"], name="wrong")
    memory = raising(torch.OutOfMemoryError("no more [of it]"), name="large")
    return run_of(case_of(name="plain"), failing, memory)[0]


def test_the_file_holds_everything(tmp_path):
    told = a_report()
    file = tmp_path / "bench.json"
    write_whole(file, report.to_json(told))
    read = json.loads(file.read_text(), parse_constant=pytest.fail)
    assert read["schema_version"] == 1
    assert read["seed"] == 11
    assert read["complete"] is True
    assert read["ceilings"] == {"copy_bytes_per_s": 1e12, "matmul_flops_per_s": 1e12}
    plain, wrong, large = read["measurements"]
    assert (plain["case"], plain["status"], plain["ms"], plain["peak_bytes"]) == (
        "plain", "timed", 2.0, 1000,
    )  # fmt: skip
    needed = work(Setting(d=16, n=32, heads=2, kv_heads=2, dtype=torch.float32), EVERYTHING)
    assert plain["floor_ms"] == pytest.approx(floor_ms(needed, Ceilings(1e12, 1e12)))
    assert plain["over_floor"] == pytest.approx(2.0 / plain["floor_ms"])
    assert plain["over"]["plain"] == 1.0
    assert plain["over"][FLASH] is None
    assert (wrong["status"], wrong["ms"], wrong["over_floor"]) == ("failed", None, None)
    assert (large["status"], large["ms"]) == ("out of memory", None)
    failed = [check for check in read["checks"] if not check["passed"]]
    assert [check["case"] for check in failed] == ["wrong"]
    assert failed[0]["errors"]["out"]["error"] is None  # no number is that large
    assert len(read["failures"]) == 1
    assert {p["verdict"] for p in read["promises"]} == {"not measured"}
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    file = tmp_path / "bench.json"
    file.write_text("old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(file, "new")
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]


def test_the_table_tells_numbers_from_their_absence(capsys):
    report.show(a_report())
    lines = capsys.readouterr().out.splitlines()
    plain, wrong, large = (
        next(line for line in lines if line.startswith("16") and f" {name} " in line)
        for name in ("plain", "wrong", "large")
    )
    assert plain.split()[:4] == ["16", "32", "plain", "2"]
    assert wrong.split()[3:6] == ["–", "–", "–"]
    assert wrong.rstrip().endswith("failed: its check failed")
    assert "out of memory" in large
    assert sum(line.startswith("not measured: ") for line in lines) == 6
    assert "ceilings: copy 1.00 TB/s, bf16 products 1 TFLOP/s" in lines


# the command


def told_by(capsys, *arguments):
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        command.main(arguments)
    out, error = capsys.readouterr()
    return SimpleNamespace(status=stop.value.code, out=out, error=error)


def test_without_a_gpu_one_clear_line(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    answer = told_by(capsys, "--json", str(tmp_path / "bench.json"))
    assert (answer.status, answer.out) == (2, "")
    assert "this benchmark measures NVIDIA GPUs" in answer.error
    assert answer.error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nonsense"], "no case is named 'nonsense'; choose from 'plain'"),
        (["--json", "no/such/folder.json"], "the folder of 'no/such/folder.json' is missing."),
        (["--budget", "0"], "--budget"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_a_users_error_is_one_line_and_status_2(capsys, arguments, message):
    answer = told_by(capsys, *arguments)
    assert (answer.status, answer.out) == (2, "")
    assert message in answer.error
    assert answer.error.count("\n") == 1


def test_the_cases_are_listed(capsys):
    answer = told_by(capsys, "--list", "--only", "export")
    assert answer.status == 0
    assert answer.out.split("\n")[:-1] == ["export bf16, kernels", "export bf16", "export fp32"]
    with pytest.raises(ValueError, match="no case is named 'M3'"):
        select(own_cases(), ["M3"])


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """The command with a CPU in the place of the GPU, and these cases instead of its own."""
    from headatlas.kernels.bench import run as module

    cases = [case_of(name="right", ask=Ask()), case_of(WRONG["lse off"], name="wrong", ask=Ask())]

    def tiny(report, schedule, *, device, **options):
        asked = replace(
            schedule, widths=(16,), lengths=(32,), heads=2, dtype=torch.float32,
            checks=lambda case, d: [TINY],
        )  # fmt: skip
        run(report, asked, device=CPU, **options)

    monkeypatch.setattr(module, "all_cases", lambda: cases)
    monkeypatch.setattr(module, "run", tiny)
    monkeypatch.setattr(command, "why_not", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(machine, "machine", lambda: {"gpu": "none", "commit": None})
    monkeypatch.setattr(machine, "cache_bytes", lambda: 0)
    monkeypatch.setattr(machine, "ceilings", lambda *a: Ceilings(1e12, 1e12))
    monkeypatch.setattr(measure, "CudaStopwatch", lambda **options: Watch())


def test_the_command_ends_in_status_1_and_names_the_failed_case(as_on_a_gpu, capsys, tmp_path):
    file = tmp_path / "bench.json"
    answer = told_by(capsys, "--json", str(file), "--seed", "4")
    assert answer.status == 1
    assert "FAILED wrong (d 16, N 29" in answer.out
    assert "2 measurements, 1 failed" in answer.out
    assert "right (d 16, N 32): 2 ms" in answer.error
    read = json.loads(file.read_text())
    assert (read["seed"], read["complete"]) == (4, True)
    assert [m["status"] for m in read["measurements"]] == ["timed", "failed"]


def test_the_command_ends_in_status_0_where_nothing_fails(as_on_a_gpu, capsys):
    answer = told_by(capsys, "--only", "right", "--quick")
    assert answer.status == 0
    assert "1 measurements, none failed" in answer.out


def test_what_was_measured_survives_an_interruption(as_on_a_gpu, capsys, monkeypatch, tmp_path):
    from headatlas.kernels.bench import run as module

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "measure", interrupted)
    file = tmp_path / "bench.json"
    answer = told_by(capsys, "--json", str(file))
    assert answer.status == 130
    read = json.loads(file.read_text())
    assert read["complete"] is False
    assert len(read["checks"]) == 2


def test_what_it_runs_on_is_told():
    told = machine.machine()
    assert told["torch"] == torch.__version__
    assert told["headatlas"]
    assert json.loads(json.dumps(told)) == told


def test_the_clock_is_do_bench(monkeypatch):
    import triton.testing

    def do_bench(call, *, warmup, rep, return_mode):
        assert return_mode == "median"
        return call() * rep

    monkeypatch.setattr(triton.testing, "do_bench", do_bench)
    watch = CudaStopwatch(repeat_ms=20)
    assert watch.median_ms(lambda: 1) == 20.0
    assert watch.median_ms(lambda: 1, 3.0) == 20.0
    assert watch.median_ms(lambda: 1, 30.0) == 150.0  # so that there are five


def test_context_surrounds_check_and_timing():
    entered = []

    def context():
        entered.append(1)
        return nullcontext()

    run_of(case_of(ask=Ask(), context=context))
    assert len(entered) == 2
