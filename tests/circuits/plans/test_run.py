"""Running a plan: as `classify`, whatever happens on the way."""

import errno
import os
import signal
from typing import Any

import pandas as pd
import pytest
import torch

import headatlas as ha
from headatlas.circuits.plans import batches
from headatlas.circuits.plans.lock import locked
from headatlas.circuits.plans.parts import Part

HEAD = 'kinds = ["induction", "previous_token"]\nbatch_tokens = 128\n'
PLAN = HEAD + 'lengths = [32]\nmodels = [{name = "tiny"}]\nprompts = [{count = 16}]\n'
PARTS = 8  # 16 documents of 32 and of 32 tokens, 4 a batch


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN, encoding="utf-8")
    return path


def results(out):
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted((out / "units").rglob("*"))
        if path.parent.name == "parts" or path.suffix == ".parquet"
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    (folder / "plan.toml").write_text(PLAN, encoding="utf-8")
    assert ha.run_plan(folder / "plan.toml", folder / "out").complete
    return results(folder / "out")


def test_a_unit_is_what_classify_gives(tmp_path, plan):
    ha.run_plan(plan, tmp_path / "out")
    (found,) = ha.load_plan(tmp_path / "out").atlases.values()
    own = ha.classify(*ha.load("tiny"), kinds="induction,previous_token", prompts=16, seq_len=32)
    numbers = ["score", "expected", "excess", "low", "high", "grade", "kind", "layer", "head"]
    # batches of another size: the last bits of a forward pass may differ
    left, right = (atlas.rows.loc[:, numbers] for atlas in (found, own))
    pd.testing.assert_frame_equal(left, right, rtol=1e-4, atol=1e-5)
    told = found.settings["plan"]
    assert told["model"] == "tiny"
    assert len(told["weights_sha256"]) == 64
    assert {"tokenizer", "dtype", "implementation", "versions", "plan_sha256"} <= set(told)


def killed_child(plan, out, at):
    """A process that dies by SIGKILL at its `at`-th call of fsync or rename; its exit code."""
    pid = os.fork()
    if pid == 0:
        seen = [0]

        def dying(call):
            def run(*given, **named):
                seen[0] += 1
                if seen[0] == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*given, **named)

            return run

        os.fsync, os.replace = dying(os.fsync), dying(os.replace)
        try:
            ha.run_plan(plan, out)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("at", [1, 3, 6, 7, 8, 17, 28, 29, 31])
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path, plan, whole, at):
    out = tmp_path / "out"
    assert killed_child(plan, out, at) == -signal.SIGKILL
    before = results(out) if (out / "units").exists() else {}
    finished = {k: v for k, v in before.items() if not k.split("/")[-1].startswith(".")}
    assert all(whole[name] == data for name, data in finished.items())
    assert ha.run_plan(plan, out).complete
    assert results(out) == whole


def test_a_torn_part_is_scored_again_and_told_of(tmp_path, plan, whole):
    out = tmp_path / "out"
    ha.run_plan(plan, out)
    first = sorted(out.rglob("*.safetensors"))[0]
    first.write_bytes(first.read_bytes()[:-5])
    sorted(out.rglob("*.parquet"))[0].write_bytes(b"torn too")  # a finished unit, no longer whole
    report = ha.run_plan(plan, out)
    assert report.complete
    assert [*report.torn.values()] == [[first.name]]
    assert results(out) == whole


def test_a_full_disk_ends_in_the_report_and_is_made_up_for(tmp_path, plan, whole, monkeypatch):
    write, calls = Part.write, []

    def full(self, sums):
        calls.append(self)
        if len(calls) > 3:
            monkeypatch.setattr(os, "fsync", refuse)
        write(self, sums)

    def refuse(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        monkeypatch = patched
        patched.setattr(Part, "write", full)
        report = ha.run_plan(plan, tmp_path / "out")
    assert not report.ok
    assert "No space left" in report.failed["000-tiny-made-32"]
    assert len([*(tmp_path / "out").rglob("*.safetensors")]) == 3
    assert ha.run_plan(plan, tmp_path / "out").complete
    assert results(tmp_path / "out") == whole


def test_what_cannot_be_loaded_or_read_is_named_and_the_others_go_on(tmp_path, command):
    loaded: Any = ha.load("tiny")
    model, tokenizer = loaded
    for name in ("good", "bad"):
        model.save_pretrained(tmp_path / "run" / name)
        tokenizer.save_pretrained(tmp_path / "run" / name)
    shard = tmp_path / "run" / "bad" / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:5000])
    (tmp_path / "p.toml").write_text(
        'lengths = [32]\nkinds = ["delimiter"]\n'
        '[[models]]\nname = "run"\ncheckpoints = ["bad", "missing", "good"]\n'
        '[[prompts]]\ncount = 16\n[[prompts]]\nname = "book"\ntext = "no.txt"\ncount = 16\n',
        encoding="utf-8",
    )
    ran = command("sweep", tmp_path / "p.toml", "-o", tmp_path / "out")
    assert ran.status == 1
    assert "1 of 6 units done" in ran.out
    failed = ha.load_plan(tmp_path / "out").report.failed
    assert len(failed) == 5
    assert "no checkpoint 'missing'" in failed["002-run-missing-made-32"]
    assert "no file" in failed["005-run-good-book-32"]
    assert all(name in ran.error for name in failed)
    found = ha.load_plan(tmp_path / "out")
    assert [unit.checkpoint for unit in found.atlases] == ["good"]


def test_a_batch_that_does_not_fit_is_halved_and_told_of(tmp_path, plan, monkeypatch):
    run = batches.score_batches

    def narrow(model, prompts, kinds, *, batches, **options):
        for documents in batches:
            if documents.stop - documents.start > 1 and prompts.name == "random":
                raise torch.OutOfMemoryError("CUDA out of memory")
            yield from run(model, prompts, kinds, batches=[documents], **options)

    monkeypatch.setattr(batches, "score_batches", narrow)
    report = ha.run_plan(plan, tmp_path / "out")
    assert report.complete
    assert {*report.cut["000-tiny-made-32"].values()} == {1}
    assert all(part.startswith("random-") for part in report.cut["000-tiny-made-32"])


def test_one_document_that_does_not_fit_fails_the_unit(tmp_path, plan, monkeypatch):
    def never(*given, **named):
        raise MemoryError
        yield

    monkeypatch.setattr(batches, "score_batches", never)
    report = ha.run_plan(plan, tmp_path / "out")
    assert "out of memory: one document of 32 tokens" in report.failed["000-tiny-made-32"]


def test_a_locked_unit_is_left_to_the_other(tmp_path, plan, command):
    out = tmp_path / "out"
    unit = out / "units" / "000-tiny-made-32"
    ha.run_plan(plan, out)
    (unit / "unit.json").unlink()
    with locked(unit / "lock"):
        ran = command("sweep", plan, "-o", out)
    assert ran.status == 0
    assert "another process works on 1: 000-tiny-made-32" in ran.out
    assert "nothing is left for this process" in ran.out


def test_a_changed_plan_and_a_folder_of_something_else_are_refused(tmp_path, plan, command):
    ha.run_plan(plan, tmp_path / "out")
    plan.write_text(PLAN.replace("[32]", "[33]"), encoding="utf-8")
    with pytest.raises(ha.InputError, match="is of another plan"):
        ha.run_plan(plan, tmp_path / "out")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    with pytest.raises(ha.InputError, match=r"holds other files and no plan\.toml"):
        ha.run_plan(plan, tmp_path / "other")
    assert command("sweep", plan, "-o", tmp_path / "out").status == 2
    assert command("sweep", plan).status == 2


def test_the_dry_run_counts_what_the_run_then_writes(tmp_path, plan, command):
    forecast = ha.forecast_plan(plan)
    ha.run_plan(plan, tmp_path / "out")
    parts = [*(tmp_path / "out").rglob("*.safetensors")]
    assert forecast.units == 1
    assert forecast.passes == len(parts)
    written = sum(map(len, results(tmp_path / "out").values()))
    assert forecast.disk_bytes == pytest.approx(written, rel=0.1)
    assert forecast.seconds > 0
    assert forecast.memory_bytes > 2**27
    shown = command("sweep", plan, "--dry-run")
    assert shown.status == 0
    assert "passes" in shown.out
    assert "peak memory" in shown.out


def test_removal_gives_evidence_and_the_same_bits_when_taken_up_again(tmp_path, plan):
    plan.write_text(PLAN.replace("[32]", "[48]") + 'ablations = ["mean"]\n', encoding="utf-8")
    out = tmp_path / "out"
    assert ha.run_plan(plan, out).complete
    before = results(out)
    (atlas,) = ha.load_plan(out).atlases.values()
    assert len(atlas.tables["causal"])
    assert {*atlas.rows["evidence"]} >= {"none", "pattern only"}
    for word in out.rglob("unit.json"):
        word.unlink()
    assert len([*out.rglob("removal-*.safetensors")]) >= 1  # what it goes on from
    assert ha.run_plan(plan, out).complete
    assert results(out) == before


def test_tables_say_which_labels_stay(tmp_path, plan):
    plan.write_text(PLAN.replace("[32]", "[32, 48]"), encoding="utf-8")
    ha.run_plan(plan, tmp_path / "out")
    found = ha.load_plan(tmp_path / "out")
    kept = found.kept("length")
    assert {*kept["of"]} == {2}
    assert list(kept["share"]) == [n / 2 for n in kept["units"]]
    both = set.intersection(
        *({str(h) for h in atlas.heads("induction")} for atlas in found.atlases.values())
    )
    own = kept[(kept["kind"] == "induction") & (kept["units"] == 2)]
    assert {*own["address"]} == both
    assert both
    with pytest.raises(ha.InputError, match="along is one of model, checkpoint"):
        found.kept("seed")
