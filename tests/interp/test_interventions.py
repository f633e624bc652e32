"""What an intervention changes, against attention written out by hand."""

import pytest
import torch

from headatlas.interp.capture import capture
from headatlas.interp.errors import InputError
from headatlas.interp.interventions import (
    add,
    freeze,
    gate,
    mean,
    patch,
    resample,
    run,
    zero,
)
from headatlas.interp.sites import attention_sites

from .edits import IDS
from .llama_by_hand import forward
from .test_families import TOLERANCE

TARGETS = ("q", "k", "v", "scores", "pattern", "z")
OTHER = torch.tensor([[9, 5, 40, 11, 7, 9], [8, 7, 6, 5, 4, 3], [60, 61, 62, 63, 64, 65]])
HIDDEN = torch.ones(6, 6, dtype=torch.bool).triu(1)


@pytest.fixture(scope="module")
def model(tiny):
    return tiny("llama")


def assert_same_logits(seen, expected):
    assert (seen - expected).abs().max() <= TOLERANCE * expected.abs().max()


def put(heads, rows, new):
    """A change by hand: `new(slice [batch, row, width], head)` in place of some heads' rows."""

    def change(value):
        changed = value.clone()
        for head in heads:
            part = value[:, head] if rows is None else value[:, head][:, rows]
            if rows is None:
                changed[:, head] = new(part, head)
            else:
                changed[:, head, rows] = new(part, head)
        return changed

    return change


def check(model, intervention, changes):
    """The change is as predicted, and it is one."""
    own, _ = forward(model, IDS)
    expected, _ = forward(model, IDS, changes)
    assert (expected - own).abs().max() > 100 * TOLERANCE * own.abs().max()
    assert_same_logits(run(model, IDS, intervention).logits, expected)


def test_the_hand_written_model_is_the_model(model):
    logits, seen = forward(model, IDS)
    assert_same_logits(run(model, IDS).logits, logits)
    assert seen[1, "pattern"].shape == (2, 4, 6, 6)


@pytest.mark.parametrize("positions", [None, [1, 4, 5]])
@pytest.mark.parametrize("target", TARGETS)
class TestAgainstHandWrittenAttention:
    """Head L0H1 of a group of two: its neighbour keeps the group's keys and values."""

    def test_zero(self, model, target, positions):
        def new(part, _head):
            if target != "scores":
                return torch.zeros_like(part)
            return torch.where(part == float("-inf"), part, 0.0)

        check(
            model,
            zero("L0H1", target, positions=positions),
            {(0, target): put([1], positions, new)},
        )

    def test_gate(self, model, target, positions):
        factor = torch.tensor([0.25, -1.5])

        def scale(part, head):
            return torch.where(part == float("-inf"), part, part * (-1.5 if head == 0 else 0.25))

        check(
            model,
            gate(["L0H3", "L0H0"], factor, target, positions=positions),
            {(0, target): put([0, 3], positions, scale)},
        )

    def test_add(self, model, target, positions):
        if target == "pattern":
            with pytest.raises(InputError):
                add("L0H1", torch.ones(6), target)
            return
        width = 6 if target == "scores" else 8
        vector = torch.randn(width, generator=torch.Generator().manual_seed(3)) * 2
        if target == "k" and positions is None:  # all scores of a row move alike: softmax is blind
            same = run(model, IDS, add("L0H2", vector, target)).logits
            assert_same_logits(same, forward(model, IDS)[0])
            return
        check(
            model,
            add("L0H2", vector, target, positions=positions),
            {(0, target): put([2], positions, lambda x, _: x + vector)},
        )

    def test_patch_from_a_run(self, model, target, positions):
        _, other = forward(model, OTHER[:2])

        def new(_part, head):
            values = other[0, target][:, head]
            return values if positions is None else values[:, positions]

        check(
            model,
            patch(model, "L0H1", target, tokens=OTHER[:2], positions=positions),
            {(0, target): put([1], positions, new)},
        )

    def test_patch_from_a_cache(self, model, target, positions):
        kind = {"q": "rot_q", "k": "rot_k", "scores": "attn_scores"}.get(target, target)
        cache = capture(model, None, OTHER[:1], names_filter=kind, heads=["L1H3", "L0H1"])
        _, other = forward(model, OTHER[:1])

        def new(part, head):
            values = other[0, target][:, head].expand(2, -1, -1)
            return (values if positions is None else values[:, positions]).clone()

        check(
            model,
            patch(cache, "L0H1", target, positions=positions),
            {(0, target): put([1], positions, new)},
        )

    def test_resample(self, model, target, positions):
        documents = OTHER[: len(IDS)]
        intervention = resample(model, documents, "L0H1", target, seed=1, positions=positions)
        donors = intervention.values.donors
        assert all(donor != own for own, donor in enumerate(donors))
        _, other = forward(model, documents)

        def new(_part, head):
            values = other[0, target][list(donors)][:, head]
            return values if positions is None else values[:, positions]

        check(model, intervention, {(0, target): put([1], positions, new)})

    def test_mean_per_position(self, model, target, positions):
        if target == "scores":
            with pytest.raises(InputError):
                mean(model, OTHER, "L0H1", target, per_position=True)
            return
        _, other = forward(model, OTHER)

        def new(part, head):
            values = other[0, target][:, head].mean(0, keepdim=True)
            return (values if positions is None else values[:, positions]).expand_as(part)

        check(
            model,
            mean(model, OTHER, "L0H1", target, positions=positions, per_position=True),
            {(0, target): put([1], positions, new)},
        )

    def test_mean(self, model, target, positions):
        if target in ("scores", "pattern", "q", "k"):  # of other keys, or at other angles
            with pytest.raises(InputError, match=f"{target} .*has no mean over columns"):
                mean(model, OTHER, "L0H1", target)
            return
        _, other = forward(model, OTHER)
        check(
            model,
            mean(model, OTHER, "L0H1", target, positions=positions),
            {
                (0, target): put(
                    [1],
                    positions,
                    lambda x, h: other[0, target][:, h].mean((0, 1)).expand_as(x),
                )
            },
        )


@pytest.mark.parametrize("target", TARGETS)
def test_a_key_value_head_is_its_group(model, target):
    own, _ = forward(model, IDS)
    by_group = run(model, IDS, gate("L1KV1", 0.5, target)).logits
    by_head = run(model, IDS, gate(["L1H2", "L1H3"], 0.5, target)).logits
    assert_same_logits(by_group, by_head)
    assert (by_group - own).abs().max() > 100 * TOLERANCE * own.abs().max()


def test_query_heads_and_key_value_heads_mix(model):
    factor = torch.tensor([0.5, 2.0])
    expected, _ = forward(
        model,
        IDS,
        {(0, "v"): lambda v: v * torch.tensor([0.5, 1.0, 2.0, 2.0])[:, None, None]},
    )
    assert_same_logits(run(model, IDS, gate(["L0H0", "L0KV1"], factor, "v")).logits, expected)


def test_vectors_per_head_and_position(model):
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(2, 2, 8, generator=generator)
    per_head = torch.randn(2, 8, generator=generator)

    def change(z):
        z = z.clone()
        for place, head in enumerate((3, 0)):
            z[:, head] += per_head[place]
            for order, row in enumerate((4, 2)):
                z[:, head, row] += vectors[place, order]
        return z

    expected, _ = forward(model, IDS, {(1, "z"): change})
    interventions = [
        add(["L1H3", "L1H0"], vectors, positions=[4, 2]),
        add(["L1H3", "L1H0"], per_head),
    ]
    assert_same_logits(run(model, IDS, interventions).logits, expected)


def test_scores_steer_a_key(model):
    """A number per key column, those beyond its end untouched, and a single one, which cancels."""
    expected, _ = forward(
        model,
        IDS,
        {(0, "scores"): put([1], None, lambda s, _: s + torch.tensor([0, 3.0, 0, 0, 0, 0]))},
    )
    assert_same_logits(
        run(model, IDS, add("L0H1", torch.tensor([0, 3.0]), "scores")).logits, expected
    )
    same = run(model, IDS, add("L0H1", torch.tensor([3.0]), "scores")).logits
    assert_same_logits(same, forward(model, IDS)[0])


def test_linear_algebra_of_zeroed_heads(tiny):
    """In the last layer: the residual stream loses z[h] W_O[h], exactly."""
    model = tiny("llama", num_hidden_layers=1)
    _, seen = forward(model, IDS)
    weight = model.model.layers[0].self_attn.o_proj.weight
    kept = []
    attention_sites(model)  # which runs the model
    hook = model.model.layers[0].self_attn.register_forward_hook(
        lambda module, args, output: kept.append(output[0])
    )
    run(model, IDS)
    run(model, IDS, zero(["L0H1", "L0H2"]))
    hook.remove()
    lost = sum(seen[0, "z"][:, h] @ weight[:, 8 * h : 8 * h + 8].T for h in (1, 2))
    assert_same_logits(kept[0] - kept[1], lost)


class TestFrozenPatterns:
    def test_only_values_change(self, model):
        """Olsson's pattern-preserving ablation, written out."""
        _, own = forward(model, IDS)
        changes = {
            (0, "z"): put([1], None, lambda x, _: torch.zeros_like(x)),
            (0, "pattern"): lambda _: own[0, "pattern"],
            (1, "pattern"): lambda _: own[1, "pattern"],
        }
        expected, _ = forward(model, IDS, changes)
        seen = run(model, IDS, [freeze(model, tokens=IDS), zero("L0H1")]).logits
        assert_same_logits(seen, expected)
        whole = run(model, IDS, zero("L0H1")).logits
        assert (seen - whole).abs().max() > 100 * TOLERANCE * whole.abs().max()

    def test_from_a_cache_for_some_heads(self, model):
        cache = capture(model, None, OTHER[:1], names_filter="pattern")
        _, other = forward(model, OTHER[:1])
        check(
            model,
            freeze(cache, ["L1H2", "L1H0"]),
            {
                (1, "pattern"): put(
                    [0, 2], None, lambda _, h: other[1, "pattern"][:, h].expand(2, -1, -1)
                )
            },
        )

    def test_its_own_patterns_change_nothing(self, model):
        own = run(model, IDS).logits
        assert_same_logits(run(model, IDS, freeze(model, tokens=IDS)).logits, own)
