"""The gate without a GPU: its judgement, its command, and one kernel that is really compiled."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from headatlas.kernels.aot import __main__ as aot_command
from headatlas.kernels.aot import run, table
from headatlas.kernels.aot.cases import REPRESENTATIVE, select, shipped_cases
from headatlas.kernels.aot.compile import Compiled
from headatlas.kernels.aot.gate import TARGETS, Reading, judge, read_kernel
from headatlas.kernels.aot.run import Result
from headatlas.kernels.aot.sass import Resources, read_sass

from .test_aot_sass import listing

ROOT = Path(__file__).parents[2]
BLOCKS = {"BLOCK_M": 64, "BLOCK_N": 32}
LAUNCH = SimpleNamespace(kernel=None, grid=(1,), arguments=(), constants=BLOCKS, warps=4, stages=2)
FINE = Reading(
    blocks=(64, 32), warps=4, stages=2, registers=168, shared=65536, stack=0, spills=0,
    hot_spills=0, mma=24, other_mma=0, hot_loops=2, slots=11.5,
)  # fmt: skip


def read(*lines, arch=80, ieee=False):
    compiled = Compiled(read_sass(listing(*lines)), Resources(40, 8, 0), 1024)
    return read_kernel(compiled, LAUNCH, arch, ieee=ieee)


def loop(*body, label="0", turns="@P0"):
    return [f".L_x_{label}:", *body, f"{turns} BRA `(.L_x_{label})"]


HMMA = "HMMA.16816.F32.BF16 R0, R0, R0, R0"
FFMA = "FFMA R0, R1, R2, R3"


@pytest.mark.parametrize(
    ("arch", "opcode"),
    [(80, "HMMA.16816.F32"), (90, "HGMMA.64x64x16.F32.BF16"), (100, "UTCHMMA"),
     (100, "UTCQMMA.2CTA"), (120, "HMMA.16816.F32")],
)  # fmt: skip
def test_each_architecture_has_its_matrix_instructions(arch, opcode):
    reading = read(*loop(opcode), "EXIT", arch=arch)
    assert (reading.mma, reading.other_mma, reading.hot_loops) == (1, 0, 1)
    assert judge(reading, arch, ieee=False) == ()


@pytest.mark.parametrize("opcode", ["UTCBAR", "UTCATOMSWS.FIND_AND_SET", "HFMA2.MMA", "HADD2"])
def test_barriers_and_others_do_not_multiply_matrices(opcode):
    reading = read(*loop(opcode), "EXIT", arch=100)
    assert (reading.mma, reading.other_mma, reading.hot_loops) == (0, 0, 0)


def test_spills_count_where_they_cost():
    lines = ["STL [R1], R2", *loop(HMMA, "LDL R2, [R1]", "LDL R3, [R1]"), "LDL R2, [R1]", "EXIT"]
    reading = read(*lines)
    assert (reading.spills, reading.hot_spills, reading.stack) == (4, 2, 8)
    assert judge(reading, 80, ieee=False) == ("2 spills (LDL, STL) in a loop that multiplies",)
    cold = read("STL [R1], R2", *loop(HMMA), *loop("LDL R2, [R1]", label="1"), "EXIT")
    assert (cold.spills, cold.hot_spills) == (2, 0)
    assert judge(cold, 80, ieee=False) == ()


def test_a_spill_in_the_loop_around_counts():
    lines = loop("LDL R2, [R1]", *loop(HMMA, label="1"), label="0", turns="@P1")
    assert read(*lines, "EXIT").hot_spills == 1


def test_slots_are_those_of_the_shortest_loop_that_multiplies_most():
    masked = loop(HMMA, HMMA, *["FADD R0, R0, R0"] * 9, label="0")
    plain = loop(HMMA, HMMA, *["FADD R0, R0, R0"] * 5, label="1")
    scores_alone = loop(HMMA, label="2")
    reading = read(*masked, *plain, *scores_alone, "EXIT")
    assert reading.hot_loops == 3
    assert reading.slots == 8 / (64 * 32 / 128)  # instructions / scores of a thread


def test_slots_are_those_of_an_innermost_loop():
    lines = loop(*["NOP"] * 5, *loop(HMMA, HMMA, label="1"), turns="@P1")
    assert read(*lines, "EXIT").slots == 3 / 16


def test_full_float32_is_read_by_its_ffma():
    reading = read(*loop(FFMA, "FFMA2 R0, R2, R4, R6", "STL [R1], R2"), "EXIT", ieee=True)
    assert (reading.hot_loops, reading.hot_spills, reading.slots) == (1, 1, 4 / 16)
    assert read(*loop(FFMA), "EXIT").slots is None


@pytest.mark.parametrize(
    ("arch", "ieee", "changes", "failure"),
    [
        (90, False, {"mma": 0}, "no HGMMA in it"),
        (90, False, {"mma": 0, "other_mma": 8}, "no HGMMA in it, 8 of another class"),
        (80, True, {}, "24 matrix instructions in a kernel of full float32: its products are"
         " rounded"),
        (80, False, {"hot_loops": 0}, "no loop with matrix instructions"),
        (80, True, {"mma": 0, "hot_loops": 0}, "no loop with FFMA"),
        (80, False, {"shared": 166913}, "166913 bytes of shared memory, over the limit of 166912"),
        (90, False, {"shared": 232449}, "232449 bytes of shared memory, over the limit of 232448"),
        (100, False, {"shared": 232449}, "232449 bytes of shared memory, over the limit of 232448"),
        (120, False, {"shared": 101377}, "101377 bytes of shared memory, over the limit of 101376"),
        (80, False, {"hot_spills": 3}, "3 spills (LDL, STL) in a loop that multiplies"),
        (80, False, {"registers": 129, "warps": 16}, "69632 registers in 512 threads, over the"
         " limit of 65536"),
    ],
)  # fmt: skip
def test_each_reason_to_fail(arch, ieee, changes, failure):
    assert judge(replace(FINE, **changes), arch, ieee=ieee) == (failure,)


def test_limits_are_reached_without_failing():
    for arch, target in TARGETS.items():
        full = replace(FINE, shared=target.shared_limit, registers=128, warps=16)
        assert judge(full, arch, ieee=False) == ()
    assert judge(replace(FINE, mma=0), 80, ieee=True) == ()


def test_names_are_unique_and_the_representatives_are_among_them():
    names = [case.name for case in shipped_cases()]
    assert len(set(names)) == len(names)
    assert [case.name for case in select(representative=True)] == [
        name for name in names if name in REPRESENTATIVE
    ]
    assert set(REPRESENTATIVE) <= set(names)


def told(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        aot_command.main(arguments)
    out, error = capsys.readouterr()
    return SimpleNamespace(status=stop.value.code, out=out, error=error)


@pytest.fixture
def results(monkeypatch):
    """Stands in for the compiler: results by (case, architecture), fine ones if unsaid."""
    given = {}

    def check_cases(cases, archs, **options):
        return [
            given.get((case.name, arch), Result(case.name, arch, FINE, (), 1.0))
            for case in cases
            for arch in archs
        ]

    monkeypatch.setattr(run, "check_cases", check_cases)
    return given


NAMES = ["forward 64 bf16 plain", "forward 64 fp16 plain"]
ONLY = ["--only", "forward 64 bf16 plain", "--only", "forward 64 fp16 plain"]


@pytest.mark.parametrize(
    "archs",
    [["--arch", "80", "90"], ["--arch", "80", "--arch", "90"], ["80", "90", "--arch", "80"]],
)
def test_architectures_are_given_in_any_way(results, capsys, archs):
    answer = told(capsys, *ONLY, *archs)
    assert answer.status == 0
    found = sorted(line.split()[0] for line in answer.out.splitlines() if "forward" in line)
    assert found == ["80", "80", "90", "90"]
    assert answer.out.endswith("4 kernels, none failed\n")


def test_a_failure_is_named_and_ends_in_status_1(results, capsys):
    results[NAMES[1], 90] = Result(NAMES[1], 90, replace(FINE, hot_spills=2), ("2 spills",), 1.0)
    results[NAMES[0], 80] = Result(NAMES[0], 80, None, ("CompilationError: no",), 1.0)
    answer = told(capsys, *ONLY, "--arch", "80", "90")
    assert answer.status == 1
    assert f"FAILED sm_90 {NAMES[1]}: 2 spills\n" in answer.out
    assert f"FAILED sm_80 {NAMES[0]}: CompilationError: no\n" in answer.out
    assert answer.out.endswith("4 kernels, 2 failed\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arch", "70"], "no architecture 70; choose from 80, 86, 89, 90, 100, 120."),
        (["--arch", "sm_80"], "should be a valid integer"),
        (["--only", "forward 65"], "no kernel is named forward 65; see --list."),
        (["--jobs", "0"], "--jobs"),
        (["--json", "no/such/folder.json"], "the folder of 'no/such/folder.json' is missing."),
        (["--markdown", "nosuch.md"], "'nosuch.md' does not exist"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_a_users_error_is_one_line_and_status_2(results, capsys, arguments, message):
    answer = told(capsys, *arguments)
    assert (answer.status, answer.out) == (2, "")
    assert message in answer.error
    assert answer.error.count("\n") == 1


def test_the_document_gets_its_table_and_the_file_its_figures(results, capsys, tmp_path):
    document, file = tmp_path / "doc.md", tmp_path / "aot.json"
    document.write_text("before\n<!-- figures: aot -->\nold\n<!-- end -->\nafter\n")
    results[NAMES[0], 90] = Result(NAMES[0], 90, None, ("crashed",), 1.0)
    answer = told(
        capsys, *ONLY, "--arch", "80", "90", "--markdown", str(document), "--json", str(file)
    )
    assert answer.status == 1
    text = document.read_text()
    assert text.startswith("before\n<!-- figures: aot -->\nTriton ")
    assert text.endswith("\n<!-- end -->\nafter\n")
    assert f"| {NAMES[0]} | 168 / 64 / 0 / 11.5 | **failed** |\n" in text
    written = json.loads(file.read_text())
    assert written["results"][0]["reading"]["slots"] == 11.5
    assert written["results"][1] == {
        "case": NAMES[0], "arch": 90, "failures": ["crashed"], "seconds": 1.0, "reading": None,
    }  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["aot.json", "doc.md"]


def test_a_document_without_a_place_is_refused_before_anything_is_compiled(capsys, tmp_path):
    document = tmp_path / "doc.md"
    document.write_text("no place")
    answer = told(capsys, "--markdown", str(document))
    assert answer.status == 2
    assert "must occur once; they occur 0 times" in answer.error
    with pytest.raises(ValueError, match="they occur 2 times"):
        table.with_table("<!-- figures: aot -->\n<!-- end -->\n" * 2, "")


TINY = """
import os, sys
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import triton
import triton.language as tl


@triton.jit
def attend(Q, K, V, Out, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr):
    at_d = tl.arange(0, D)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    q = tl.load(Q + rows[:, None] * D + at_d[None, :])
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    for start in tl.range(0, n, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        k = tl.load(K + keys[None, :] * D + at_d[:, None])
        p = tl.exp2(tl.dot(q, k))
        total += tl.sum(p, 1)
        acc = tl.dot(p.to(V.dtype.element_ty), tl.load(V + keys[:, None] * D + at_d[None, :]), acc)
    tl.store(Out + rows[:, None] * D + at_d[None, :], acc / total[:, None])


@dataclass(frozen=True)
class Tiny:
    name: str
    ieee: bool = False

    def launch(self, arch):
        if self.name == "bad" and arch == 80:
            raise RuntimeError("cannot be built\\nfor reasons")
        if self.name == "bad":
            os._exit(3)  # as a compiler that crashes
        x = torch.empty(128, 64, dtype=torch.float16)
        constants = {"BLOCK_M": 64, "BLOCK_N": 32, "D": 64}
        return SimpleNamespace(
            kernel=attend, grid=(2,), arguments=(x, x, x, torch.empty(128, 64), 128),
            constants=constants, warps=4, stages=2,
        )


if __name__ == "__main__":
    from headatlas.kernels.aot.run import check_cases
    from headatlas.kernels.aot.table import to_json

    print(to_json(check_cases([Tiny("tiny"), Tiny("bad")], [80, 90], jobs=1, cache=sys.argv[1])))
"""


def run_tiny(tmp_path, **environment):
    script = tmp_path / "tiny.py"
    script.write_text(TINY, encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    clean |= {"PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [sys.executable, str(script), str(tmp_path / "cache")],
        env=clean, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_a_kernel_is_compiled_for_gpus_that_are_not_there(tmp_path):
    done = run_tiny(tmp_path)
    assert done.returncode == 0, done.stderr
    fine_80, fine_90, built, crashed = json.loads(done.stdout)["results"]
    for result, arch in ((fine_80, 80), (fine_90, 90)):
        reading = result["reading"]
        assert (result["case"], result["arch"], result["failures"]) == ("tiny", arch, [])
        assert reading["mma"] > 0
        assert reading["hot_loops"] == 1
        assert reading["hot_spills"] == 0
        assert 16 < reading["registers"] <= 255
        assert 64 * 64 * 2 <= reading["shared"] <= 64 * 1024  # at least what a product reads
        assert 2 < reading["slots"] < 100
    assert built["failures"] == ["RuntimeError: cannot be built"]
    assert crashed["failures"] == ["the compiler crashed: its process died"]


def test_interpreted_kernels_are_refused(tmp_path):
    done = run_tiny(tmp_path, TRITON_INTERPRET="1")
    assert done.returncode == 1
    assert "CannotCompileError: TRITON_INTERPRET is set" in done.stderr
