"""Interventions as values: what they say, what they refuse, how they compose, what is a no-op."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headatlas.interp.attach import attach
from headatlas.interp.capture import capture
from headatlas.interp.errors import InputError
from headatlas.interp.heads import HeadId, KvHeadId, parse_head
from headatlas.interp.intervention import Intervention, as_positions
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
from headatlas.interp.sites import attention_sites
from headatlas.interp.tokens import Tokens

from .edits import IDS, assert_same_state, state
from .test_families import TOLERANCE

TARGETS = ("q", "k", "v", "scores", "pattern", "z")


@pytest.fixture(scope="module")
def model(tiny):
    return tiny("llama")


@pytest.fixture
def runs(model):
    """How often the model ran."""
    count = []
    hook = model.register_forward_pre_hook(lambda *_: count.append(None))
    yield count
    hook.remove()


def padded(ids, mask, *, bos=False):
    mask = torch.tensor(mask, dtype=torch.bool)
    return Tokens(ids.masked_fill(~mask, 0), mask, [[""] * ids.shape[1]] * len(ids), bos)


class TestValues:
    def test_frozen(self):
        intervention = zero("L0H1")
        with pytest.raises(AttributeError):
            intervention.target = "q"

    @pytest.mark.parametrize(
        ("made", "text"),
        [
            (lambda: zero(HeadId("", 0, 1)), "<zero z of L0H1>"),
            (lambda: gate(["L0H1", KvHeadId("", 1, 0)], 2), "<gate z of L0H1, L1KV0 by 2>"),
            (lambda: gate("L0H1", torch.ones(1)), "<gate z of L0H1 with (1,) values>"),
            (
                lambda: zero("cross.L0H1", "k", positions=range(2)),
                "<zero k of cross.L0H1 at [0, 1]>",
            ),
        ],
    )
    def test_they_say_what_they_do(self, made, text):
        assert repr(made()) == text

    def test_references_say_where_they_are_from(self, model):
        cache = capture(model, None, IDS, names_filter="z")
        assert repr(patch(cache, "L0H1")) == "<patch z of L0H1 from the cache>"
        frozen = freeze(model, tokens=IDS)
        assert repr(frozen) == "<freeze pattern of all heads from a run of 2 × 6 tokens>"

    def test_the_same_value_again(self, model):
        intervention = [zero("L0H1"), gate("L1H0", 0.5)]
        first, second = (run(model, IDS, intervention).logits for _ in range(2))
        assert torch.equal(first, second)

    def test_the_model_is_as_it_was(self, tiny):
        model = tiny("llama", attn="eager").train()
        before = state(model)
        interventions = [zero("L0H1"), mean(model, IDS, "L0H2"), freeze(model, tokens=IDS)]
        run(model, IDS, interventions)
        with pytest.raises(ZeroDivisionError), intervene(model, interventions):
            1 / 0
        assert_same_state(before, state(model))

    def test_training_mode_and_gradients(self, tiny):
        model = tiny("llama", attention_dropout=0.5)
        own = run(model, IDS, zero("L0H1")).logits
        model.train()
        again = run(model, IDS, zero("L0H1"))
        assert torch.equal(again.logits, own)
        assert not again.logits.requires_grad
        assert model.training
        assert run(model, IDS, zero("L0H1"), grad=True).logits.requires_grad


class TestNoOps:
    """They change nothing, although they are asked to; their neighbours change something."""

    @pytest.fixture
    def changed(self, monkeypatch):
        """The layers in which an intervention was asked for its values."""
        layers, edit = [], Intervention.edit

        def watched(*arguments):
            made = edit(*arguments)

            def change(call, value):
                layers.append(call.site.layer)
                return made.change(call, value)

            return replace(made, change=change)

        monkeypatch.setattr(Intervention, "edit", watched)
        return layers

    @pytest.mark.parametrize("target", TARGETS)
    @pytest.mark.parametrize("positions", [None, [0, 3]])
    def test_gate_1(self, model, target, positions, changed):
        one, other = (
            gate(["L0H1", "L1KV1"], factor, target, positions=positions) for factor in (1.0, 0.5)
        )
        self.same(model, one, other, target, changed)

    @pytest.mark.parametrize("target", ["q", "k", "v", "scores", "z"])
    def test_add_0(self, model, target, changed):
        heads, width = ["L0H1", "L1KV1"], 6 if target == "scores" else 8
        none = add(heads, torch.zeros(1 if target == "scores" else 8), target)
        # at one column: the softmax does not see what all keys, or all scores of a row, gain
        some = add(heads, torch.arange(1.0, width + 1), target, positions=[1])
        self.same(model, none, some, target, changed)

    @pytest.mark.parametrize("target", TARGETS)
    def test_patch_with_itself(self, model, target, changed):
        own, other = (
            patch(model, ["L0H1", "L1KV1"], target, tokens=ids) for ids in (IDS, IDS.flip(1))
        )
        self.same(model, own, other, target, changed)

    @staticmethod
    def same(model, intervention, other, target, changed):
        own = run(model, IDS).logits
        assert changed == []
        seen = run(model, IDS, intervention).logits
        assert changed == [0, 1]
        if target in ("q", "z"):  # the same numbers take the same way
            assert torch.equal(seen, own)
        # k and v told apart per query head, and a written-out pattern, are summed in another order
        bound = TOLERANCE * own.abs().max()
        assert (seen - own).abs().max() <= bound
        assert (run(model, IDS, other).logits - own).abs().max() > bound

    @pytest.mark.parametrize("nothing", [[], (), [[], []]])
    def test_an_empty_list(self, model, nothing):
        assert torch.equal(run(model, IDS, nothing).logits, run(model, IDS).logits)

    def test_layers_that_nobody_named_are_bit_equal(self, model):
        """Their patterns are not even written out."""
        seen = []
        with intervene(model, zero("L1H0", "pattern")), attach(model, observers=[seen.append]):
            run(model, IDS)
        assert seen[0]._pattern is None
        assert seen[1]._pattern is not None


class TestComposition:
    def test_in_the_order_of_the_list(self, model):
        vector = torch.ones(8)
        shift, double = add("L0H1", vector), gate("L0H1", 2.0)
        first = run(model, IDS, [shift, double]).logits
        second = run(model, IDS, [double, shift]).logits
        assert torch.equal(first, run(model, IDS, [double, add("L0H1", 2 * vector)]).logits)
        assert not torch.equal(first, second)
        assert torch.equal(run(model, IDS, [[double], [[shift]]]).logits, second)

    def test_blocks_nest_outer_first(self, model):
        shift, double = add("L0H1", torch.ones(8)), gate("L0H1", 2.0)
        with intervene(model, shift), intervene(model, double):
            seen = run(model, IDS).logits
        assert torch.equal(seen, run(model, IDS, [shift, double]).logits)

    def test_inputs_come_before_outputs(self, model):
        """Whatever the order of the list: a pattern is zeroed after its scores were changed."""
        both = [zero("L0H1", "pattern"), add("L0H1", torch.tensor([2.0, 0.0]), "scores")]
        one = run(model, IDS, both[0]).logits
        assert torch.equal(run(model, IDS, both).logits, one)

    def test_grouped_keys_after_keys_per_head(self, model):
        """The second one meets keys that were told apart."""
        both = run(model, IDS, [gate("L0H1", 0.5, "k"), gate("L0KV0", 0.5, "k")]).logits
        factor = torch.tensor([0.5, 0.25])
        expected = run(model, IDS, gate(["L0H0", "L0H1"], factor, "k")).logits
        torch.testing.assert_close(both, expected)


class TestReferenceSets:
    def test_padding_is_left_out_of_means(self, model):
        short = padded(IDS, [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
        by_hand = [run_z(model, IDS[:1, :4]), run_z(model, IDS[1:])]
        pooled = torch.cat(by_hand, 1)[0].mean(0)
        made = mean(model, short, ["L0H1", "L1H2"])
        torch.testing.assert_close(made.values.tensors["", 0][0, 0, 0].float(), pooled[0, 1])
        torch.testing.assert_close(made.values.tensors["", 1][0, 0, 0].float(), pooled[1, 2])
        made = mean(model, short, "L0H1", per_position=True).values.tensors["", 0]
        torch.testing.assert_close(made[0, 0, 5].float(), by_hand[1][0, 5, 0, 1])
        both = (by_hand[0][0, 3, 0, 1] + by_hand[1][0, 3, 0, 1]) / 2
        torch.testing.assert_close(made[0, 0, 3].float(), both)

    def test_without_the_bos(self, model):
        tokens = padded(IDS, [[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]], bos=True)
        by_hand = [run_z(model, IDS[:1, 2:])[:, 1:], run_z(model, IDS[1:])[:, 1:]]
        made = mean(model, tokens, "L0H1", include_bos=False)
        pooled = torch.cat(by_hand, 1)[0].mean(0)
        torch.testing.assert_close(made.values.tensors["", 0][0, 0, 0].float(), pooled[0, 1])

    def test_many_documents_stream(self, model):
        ids = torch.randint(3, 97, (19, 5), generator=torch.Generator().manual_seed(0))
        sizes = []
        with attach(model, observers=[lambda call: sizes.append(len(call.q))]):
            made = mean(model, ids, "L0H1", "v")
        assert sizes == [8, 8, 8, 8, 3, 3]
        v = capture(model, None, ids, names_filter="v")["v", 0][:, :, 0].double().mean((0, 1))
        seen = made.values.tensors["", 0][0, 0, 0]
        # float64 sums of float32 values: what is left is float64's rounding
        assert (seen - v).abs().max() <= 1e-14

    @settings(deadline=None, max_examples=30)
    @given(seed=st.integers(0, 2**31), count=st.integers(2, 9))
    def test_a_donor_is_another_document(self, model, seed, count):
        ids = torch.randint(3, 97, (count, 3), generator=torch.Generator().manual_seed(1))
        first, second = (resample(model, ids, "L0H1", seed=seed).values.donors for _ in range(2))
        assert first == second
        assert len(first) == count
        assert all(own != donor and 0 <= donor < count for own, donor in enumerate(first))

    def test_seeds_differ(self, model):
        ids = torch.randint(3, 97, (20, 2))
        draws = {resample(model, ids, "L0H1", seed=seed).values.donors for seed in range(5)}
        assert len(draws) == 5


def run_z(model, ids):
    """z of both layers by position: [batch, pos, layer, head, width]."""
    cache = capture(model, None, ids, names_filter="z")
    return torch.stack([cache["z", 0], cache["z", 1]], 2)


class TestRefusals:
    """One clear error, and nothing ran."""

    @pytest.mark.parametrize(
        ("made", "message"),
        [
            (lambda: zero("L0H1", "result"), "target is one of q, k, v, scores, pattern, z"),
            (lambda: zero([]), "heads is empty"),
            (lambda: zero("H1"), "a head is written L18H6"),
            (lambda: zero("L0H1", positions=-1), "counted from 0"),
            (lambda: zero("L0H1", positions=[]), "counted from 0"),
            (lambda: zero("L0H1", positions=[1, 1]), "each named once"),
            (lambda: as_positions([0.5]), "positions are integers"),
            (lambda: as_positions("12"), "positions are integers"),
            (lambda: gate("L0H1", torch.ones(2)), "a number or one per head"),
            (lambda: gate("L0H1", torch.tensor(1)), "a number or one per head"),
            (lambda: add("L0H1", torch.zeros(2, 8)), "vector must be"),
            (lambda: add("L0H1", torch.zeros(1, 1, 8)), "vector must be"),
            (lambda: add("L0H1", torch.zeros(8).long()), "vector must be"),
            (lambda: add("L0H1", torch.zeros(8), "pattern"), "add to the scores"),
        ],
    )
    def test_at_construction(self, made, message):
        with pytest.raises(InputError, match=message):
            made()

    @pytest.mark.parametrize(
        ("made", "message"),
        [
            (lambda m: zero("L9H0"), r"no head L9H0; its layers are L0 to L1"),
            (lambda m: zero("L0H4"), r"no head L0H4; model\.layers\.0\.self_attn has 4 query"),
            (lambda m: zero("L0KV2"), r"no head L0KV2; .* has 2 key-value"),
            (lambda m: zero("enc.L0H0"), r"no head enc\.L0H0"),
            (lambda m: zero(["L0H1", "L0KV0"]), "L0H1 is named twice, by L0H1 and by L0KV0"),
            (lambda m: zero("L0H1", positions=6), "position 6 is out of range"),
            (lambda m: add("L0H1", torch.zeros(7)), "values of width 8 .* got 7"),
            (lambda m: add("L0H1", torch.zeros(7), "scores"), "has 7 keys .* this run has 6"),
            (lambda m: patch(m, "L0H1", tokens=IDS[:, :5]), "has 5 columns .* this run has 6"),
            (lambda m: patch(m, "L0H1", tokens=IDS.repeat(2, 1)), "holds 4 sequences"),
            (lambda m: freeze(m, tokens=IDS[:, :5], positions=[0]), "has 5 keys"),
            (lambda m: freeze(capture(m, None, IDS, names_filter="blocks.0.attn.hook_pattern")),
             "holds nothing for model.layers.1"),
            ("text", "expected an Intervention or a list"),
        ],
    )  # fmt: skip
    def test_before_anything_runs(self, model, runs, made, message):
        intervention = made(model) if callable(made) else made
        attention_sites(model)  # a model is surveyed once, by running it
        runs.clear()
        with pytest.raises(InputError, match=message):
            run(model, IDS, intervention)
        assert runs == []

    @pytest.mark.parametrize(
        ("made", "message"),
        [
            (lambda m: mean(m, IDS, "L0H1", "scores"), "scores has no mean"),
            (lambda m: mean(m, IDS, "L0H1", "pattern"), "pattern has no mean"),
            (lambda m: mean(m, IDS, "L0H1", include_bos=False), "Tokens that begin with a BOS"),
            (lambda m: resample(m, IDS[:1], "L0H1", seed=0), "at least two documents"),
            (lambda m: patch(m, "L0H1"), "needs tokens="),
            (lambda m: patch(m, "L0H1", "x", tokens=IDS), "target is one of"),
            (lambda m: patch(m, "L0H1", tokens=IDS.float()), "integer ids"),
        ],
    )
    def test_of_references(self, model, made, message):
        with pytest.raises(InputError, match=message):
            made(model)

    def test_padded_documents_are_not_resampled(self, model):
        tokens = padded(IDS, [[1, 1, 1, 0, 0, 0], [1] * 6])
        with pytest.raises(InputError, match="with padding"):
            resample(model, tokens, "L0H1", seed=0)

    def test_of_caches(self, model):
        cache = capture(model, None, IDS, names_filter="blocks.0.attn.hook_z", heads=["L0H1"])
        for heads, target, message in [
            ("L1H0", "z", "holds no z of L1"),
            ("L0H1", "k", "Capture it with names_filter='rot_k'"),
        ]:
            with pytest.raises(InputError, match=message):
                patch(cache, heads, target)
        with pytest.raises(InputError, match=r"holds heads \[1\] of layer 0, not L0H2"):
            patch(cache, "L0H2")
        with pytest.raises(InputError, match="leave tokens out"):
            patch(cache, "L0H1", tokens=IDS)

    @settings(deadline=None)
    @given(text=st.text(max_size=12) | st.from_regex(r"(enc\.|cross\.)?L\d{1,5}(H|KV)\d{1,5}"))
    def test_any_text_is_an_address_or_refused(self, text):
        try:
            head = parse_head(text)
        except InputError:
            return
        assert parse_head(str(head)) == head
        assert zero(text).heads == (head,)
