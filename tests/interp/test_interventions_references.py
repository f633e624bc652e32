"""Values from other runs: copied, announced, from some rows; and which arguments are refused."""

import logging

import pytest
import torch

from headatlas.interp import capture as capture_module
from headatlas.interp.capture import capture, load_cache
from headatlas.interp.errors import InputError
from headatlas.interp.intervention import Intervention
from headatlas.interp.interventions import (
    add,
    freeze,
    gate,
    intervene,
    mean,
    patch,
    resample,
    run,
    zero,
)
from headatlas.interp.tokens import Tokens

from .edits import IDS, assert_same_state, state
from .test_families import TOLERANCE

TARGETS = ("q", "k", "v", "scores", "pattern", "z")
KIND = {"q": "rot_q", "k": "rot_k", "scores": "attn_scores"}
OTHER = torch.tensor([[9, 5, 40, 11, 7, 9], [8, 7, 6, 5, 4, 3]])


@pytest.fixture(scope="module")
def model(tiny):
    return tiny("llama")


class TestCopies:
    @pytest.mark.parametrize("target", TARGETS)
    def test_changes_of_the_cache_have_no_effect(self, model, target):
        kind = KIND.get(target, target)
        cache = capture(model, None, OTHER, names_filter=kind)
        made = [patch(cache, ["L0H1", "L1H2"], target)]
        if target == "pattern":
            made.append(freeze(cache))
        expected = [run(model, IDS, one).logits for one in made]
        own = run(model, IDS).logits
        for name in cache:
            cache[name].zero_()
        for one, logits in zip(made, expected, strict=True):
            assert torch.equal(run(model, IDS, one).logits, logits)
            if target != "scores":  # of the same mask and shape, but other numbers
                assert not torch.equal(logits, own)
        emptied = run(model, IDS, patch(cache, ["L0H1", "L1H2"], target)).logits
        assert not torch.equal(emptied, expected[0])

    def test_q_before_and_after_rotation_in_one_cache(self, model):
        """The rotated one is taken, whichever was kept first."""
        both = capture(model, None, OTHER, names_filter=["q", "k", "rot_q", "rot_k"])
        alone = capture(model, None, OTHER, names_filter=["rot_q", "rot_k"])
        for target in ("q", "k"):
            seen, expected = (
                run(model, IDS, patch(c, "L0H1", target)).logits for c in (both, alone)
            )
            assert torch.equal(seen, expected)
        before = capture(model, None, OTHER, names_filter="q")
        with pytest.raises(InputError, match="before RoPE"):
            run(model, IDS, patch(before, "L0H1", "q"))


class TestRows:
    """A capture of some query rows serves the positions among them."""

    @pytest.mark.parametrize("saved", [False, True])
    @pytest.mark.parametrize("target", ["q", "scores", "pattern", "z"])
    def test_as_the_whole_capture(self, model, target, saved, tmp_path):
        kind = KIND.get(target, target)
        save = {"save": tmp_path / "run.safetensors"} if saved else {}
        some = capture(model, None, OTHER, names_filter=kind, rows=[4, 1, 2, 4], **save)
        whole = capture(model, None, OTHER, names_filter=kind)
        seen, expected = (
            run(model, IDS, patch(cache, ["L0H1", "L1H2"], target, positions=[1, 4])).logits
            for cache in (some, whole)
        )
        assert (seen - expected).abs().max() <= TOLERANCE * expected.abs().max()
        own = run(model, IDS).logits
        assert (seen - own).abs().max() > 100 * TOLERANCE * own.abs().max()

    @pytest.mark.parametrize("target", ["k", "v"])
    def test_keys_and_values_are_whole(self, model, target):
        some = capture(model, None, OTHER, names_filter=KIND.get(target, target), rows=[2])
        seen = run(model, IDS, patch(some, "L0H1", target)).logits
        assert torch.equal(seen, run(model, IDS, patch(model, "L0H1", target, tokens=OTHER)).logits)

    def test_frozen_rows(self, model):
        some = capture(model, None, OTHER, names_filter="pattern", rows=[3, 5])
        seen = run(model, IDS, freeze(some, "L0H1", positions=5)).logits
        whole = freeze(model, "L0H1", tokens=OTHER, positions=5)
        expected = run(model, IDS, whole).logits
        assert (seen - expected).abs().max() <= TOLERANCE * expected.abs().max()

    def test_refused(self, model):
        some = capture(model, None, OTHER, names_filter=["z", "pattern"], rows=[4, 1])
        with pytest.raises(InputError, match=r"holds rows \[1, 4\] only. Name positions= among"):
            patch(some, "L0H1")
        with pytest.raises(InputError, match=r"has columns \[1, 4\], not 2. Name positions among"):
            patch(some, "L0H1", positions=[1, 2])
        with pytest.raises(InputError, match=r"holds rows \[1, 4\] only"):
            freeze(some)
        with pytest.raises(InputError, match=r"has columns 0 to 3, not 5"):
            run(model, IDS, patch(model, "L0H1", tokens=OTHER[:, :4], positions=5))


class TestNegativePositions:
    def test_refused_in_interventions(self):
        with pytest.raises(InputError, match=r"position -1 is negative.*the last of N is N - 1"):
            zero("L0H1", positions=[0, -1])

    def test_in_captures_only_where_the_end_is_a_token(self, model):
        mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]], dtype=torch.bool)
        names = [[""] * 6] * 2
        right = Tokens(IDS.masked_fill(~mask, 0), mask, names, False)
        with pytest.raises(InputError, match="row -1 counts from the last column, which is padding "
                           "in sequence 1"):  # fmt: skip
            capture(model, None, right, names_filter="z", rows=[-1])
        left = Tokens(IDS.masked_fill(~mask.flip(1), 0), mask.flip(1), names, False)
        assert capture(model, None, left, names_filter="z", rows=[-1]).rows == (5,)
        assert capture(model, None, right, names_filter="z", rows=[5]).rows == (5,)


class TestAnnouncements:
    """What is about to be kept is said, to the byte; nothing is said of a little."""

    MADE = {  # noqa: RUF012  (nobody writes to it)
        "z": (lambda m: patch(m, ["L0H1", "L1H0"], tokens=IDS), 2 * 2 * 6 * 8 * 4),
        "k": (lambda m: patch(m, "L0H1", "k", tokens=IDS), 2 * 2 * 6 * 8 * 4),
        "scores": (lambda m: patch(m, "L0H1", "scores", tokens=IDS), 2 * 6 * 6 * 4),
        "freeze": (lambda m: freeze(m, tokens=IDS), 2 * 2 * 4 * 6 * 6 * 4),
        "resample": (lambda m: resample(m, IDS, "L0KV1", "q", seed=0), 2 * 2 * 6 * 8 * 4),
        "mean": (lambda m: mean(m, IDS, "L0H1", "v", per_position=True), 2 * 6 * 8 * 8),
    }

    @pytest.mark.parametrize("name", MADE)
    def test_before_the_run(self, model, name, monkeypatch):
        make, size = self.MADE[name]
        said = []
        monkeypatch.setattr(
            "headatlas.interp.reference_sources.announce", lambda n, what: said.append((n, what))
        )
        hook = model.register_forward_pre_hook(lambda *_: said.append("ran"))
        hooked = model.model.register_forward_pre_hook(lambda *_: said.append("ran"))
        made = make(model)
        hook.remove()
        hooked.remove()
        values = made.values.tensors.values()
        assert said[0][0] == size == sum(v.nbytes for v in values)
        assert said[0][1].startswith("keeping ")
        assert said[1] == "ran"

    @pytest.mark.parametrize("saved", [False, True])
    def test_before_copying_a_cache(self, model, saved, monkeypatch, caplog, tmp_path):
        options = {"save": tmp_path / "run.safetensors"} if saved else {}
        cache = capture(model, None, IDS, names_filter=["pattern", "z"], **options)
        assert cache.n_bytes("blocks.1.attn.hook_pattern") == 2 * 4 * 6 * 6 * 4
        with caplog.at_level(logging.WARNING, "headatlas"):
            freeze(cache)
            assert caplog.records == []
            monkeypatch.setattr(capture_module, "_LARGE", 2 * 2 * 4 * 6 * 6 * 4)
            freeze(cache)
            assert caplog.records == []
            monkeypatch.setattr(capture_module, "_LARGE", 2 * 2 * 4 * 6 * 6 * 4 - 1)
            freeze(cache)
        assert [r.getMessage().split(",")[0] for r in caplog.records] == [
            "copying 2 tensors of a cache"
        ]
        if saved:
            assert load_cache(options["save"]).n_bytes("blocks.0.attn.hook_z") == 2 * 6 * 32 * 4


class TestMeans:
    @pytest.mark.parametrize("target", ["q", "k"])
    @pytest.mark.parametrize("family", ["llama", "gpt_neox", "deepseek_v3"])
    def test_turned_vectors_have_none(self, tiny, family, target):
        model = tiny(family)
        with pytest.raises(InputError, match=r"RoPE turns each column.*per_position=True"):
            mean(model, OTHER, "L0H1", target)
        mean(model, OTHER, "L0H1", target, per_position=True)

    @pytest.mark.parametrize("target", ["q", "k"])
    def test_of_a_model_without_rotation(self, tiny, target):
        model = tiny("gpt2")
        seen = mean(model, OTHER, "L0H1", target).values.tensors["", 0][0]
        expected = capture(model, None, OTHER, names_filter=target)[target, 0].mean((0, 1))
        head = seen[1 if target == "k" else 0, 0]
        torch.testing.assert_close(head.float(), expected[1], rtol=1e-5, atol=1e-6)


def everything(model):
    """One intervention of each action; the sets are of two sequences."""
    return {
        "zero": zero("L0H1"),
        "gate": gate("L0H1", 0.5, "k"),
        "add": add("L0H1", torch.ones(8), "q"),
        "patch": patch(model, "L0H1", tokens=OTHER),
        "mean": mean(model, OTHER, "L0H1", "pattern", per_position=True),
        "resample": resample(model, OTHER, "L0H1", "v", seed=0),
        "freeze": freeze(model, tokens=OTHER),
    }


ACTIONS = ("zero", "gate", "add", "patch", "mean", "resample", "freeze")


class TestUndone:
    @pytest.mark.parametrize("action", ACTIONS)
    def test_after_an_exception_in_the_forward_pass(self, tiny, action):
        model = tiny("llama")
        change = everything(model)[action]
        own, before = run(model, IDS).logits, state(model)

        def fail(*_):
            raise ZeroDivisionError

        handle = model.model.layers[1].self_attn.o_proj.register_forward_pre_hook(fail)
        with pytest.raises(ZeroDivisionError):
            run(model, IDS, change)
        with pytest.raises(ZeroDivisionError), intervene(model, change):
            model(IDS)
        handle.remove()
        assert_same_state(before, state(model))
        assert torch.equal(run(model, IDS).logits, own)

    @pytest.mark.parametrize("action", ACTIONS)
    def test_nested_blocks_are_a_list(self, model, action):
        """Of the same head, so that the order counts, and the inner one ends first."""
        change, shift = everything(model)[action], add("L0H1", torch.ones(8) * 0.5)
        with intervene(model, change):
            alone = run(model, IDS).logits
            with intervene(model, shift):
                both = run(model, IDS).logits
            again = run(model, IDS).logits
        assert torch.equal(alone, run(model, IDS, change).logits)
        assert torch.equal(again, alone)
        assert torch.equal(both, run(model, IDS, [change, shift]).logits)
        assert not torch.equal(both, alone)
        assert not torch.equal(alone, run(model, IDS).logits)


class TestNoOps:
    """Each action at the values that change nothing."""

    @pytest.mark.parametrize("target", TARGETS)
    def test_documents_that_are_all_the_same(self, model, target):
        same = IDS[:1].expand(2, -1)
        made = [resample(model, same, ["L0H1", "L1KV1"], target, seed=0)]
        if target != "scores":
            made.append(mean(model, same, ["L0H1", "L1KV1"], target, per_position=True))
        own = run(model, same).logits
        for one in made:
            seen = run(model, same, one).logits
            assert (seen - own).abs().max() <= TOLERANCE * own.abs().max()

    def test_a_head_that_is_zero_already(self, tiny):
        model = tiny("llama")
        with torch.no_grad():
            model.model.layers[0].self_attn.v_proj.weight[:8] = 0
        own = run(model, IDS).logits
        for target in ("v", "z", "pattern"):
            seen = run(model, IDS, zero("L0KV0", target)).logits
            assert (seen - own).abs().max() <= TOLERANCE * own.abs().max()


class TestRepr:
    def test_many_heads_and_positions(self, model):
        heads = [f"L{layer}H{head}" for layer in range(6) for head in range(4)]
        made = zero(heads, positions=range(100))
        assert repr(made) == "<zero z of 24 heads: L0H0, L0H1, … at [100 positions: 0, 1, …]>"
        assert repr(zero(heads[:4])) == "<zero z of L0H0, L0H1, L0H2, L0H3>"
        values = patch(model, "L0H1", tokens=IDS).values
        assert repr(values) == "<values of 1 layers from a run of 2 × 6 tokens>"


NAN, INF = float("nan"), float("inf")


@pytest.mark.usefixtures("as_users_call")
class TestArguments:
    """Each one a clear error, in one line."""

    @pytest.mark.parametrize(
        ("made", "message"),
        [
            (lambda: gate("x", 0.5), "a head is written L18H6.*got 'x'"),
            (lambda: gate("L0H1", "x"), "factor must be a number or a tensor; got 'x'"),
            (lambda: gate("L0H1", None), "factor must be a number or a tensor; got None"),
            (lambda: gate("L0H1", NAN), "factor must be finite"),
            (lambda: gate("L0H1", torch.tensor([INF])), "factor must be finite"),
            (lambda: gate("L0H1", 10**400), "factor must be a number or a tensor"),
            (lambda: gate("L0H1", torch.ones(1, 1)), r"got torch.float32 \(1, 1\)"),
            (lambda: gate("L0H1", torch.tensor(True)), r"got torch.bool \(\)"),
            (lambda: zero(5), "heads are names such as 'L0H1', or a collection of them; got int"),
            (lambda: zero([5]), "a head is written L18H6.*got 5"),
            (lambda: zero(None), "name the heads"),
            (lambda: zero("L0H1", None), "target is one of"),
            (lambda: zero("L0H1", ["z"]), "target is one of"),
            (lambda: add("L0H1", [0.0] * 8), "vector must be floating point.*got list"),
            (lambda: add("L0H1", torch.tensor(1.0)), "vector must be floating point"),
            (lambda: add("L0H1", torch.full((8,), -INF)), "vector must be finite"),
            (lambda: add("L0H1", torch.tensor([0.0, NAN]), "scores"), "vector must be finite"),
            (lambda: Intervention("cut", "z", None), "action is one of zero, gate, add, patch"),
            (lambda: Intervention(["zero"], "z", None), "action is one of"),
            (lambda: Intervention("zero", "z", None, None, torch.ones(1)), "zero takes no values"),
            (lambda: Intervention("patch", "z", None), r"Make it with patch\(…\)"),
            (lambda: Intervention("mean", "z", None, None, torch.ones(8)), "values of another run"),
            (lambda: Intervention("gate", "z", None), "factor must be a number.*got NoneType"),
            (lambda: Intervention("gate", "z", None, None, torch.ones(2)), "factor must be a numb"),
            (lambda: Intervention("add", "z", None, None, torch.ones(1, 8)), "vector must be"),
        ],
    )
    def test_of_values(self, made, message):
        with pytest.raises(InputError, match=message) as caught:
            made()
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("seed", [None, "0", 0.0, -1, 1 << 64, [1], torch.tensor(0.5)])
    def test_of_seeds(self, model, seed):
        with pytest.raises(InputError, match=r"seed must be an integer, 0 to 2\^64 - 1; got"):
            resample(model, IDS, "L0H1", seed=seed)

    def test_whole_actions_take_every_head(self, model):
        """Built by hand, with None for all heads."""
        half = Intervention("gate", "z", None, None, torch.tensor(0.5))
        names = [f"L{layer}H{head}" for layer in (0, 1) for head in range(4)]
        seen = run(model, IDS, half).logits
        assert torch.equal(seen, run(model, IDS, gate(names, 0.5)).logits)
        with pytest.raises(InputError, match="freeze holds the pattern; got target 'z'"):
            Intervention("freeze", "z", None, None, freeze(model, tokens=IDS).values)
