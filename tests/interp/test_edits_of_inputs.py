"""The edit seam at q, k, v and the scores."""

import pytest
import torch

from headatlas.interp.attach import Edit, attach
from headatlas.interp.errors import InputError
from headatlas.interp.sites import attention_sites
from headatlas.kernels.api import Match

from .edits import IDS, logits, zero_head
from .test_families import TOLERANCE, own_implementation, relative_error


def observe(model, edits):
    calls = []
    with torch.no_grad(), attach(model, edits=edits, observers=[calls.append]):
        model(IDS)
    return calls


class TestOrder:
    def test_each_target_sees_what_came_before(self, tiny):
        model, order = tiny("llama"), []

        def note(target):
            def change(call, value):
                if call.site.layer == 0:
                    order.append((target, len(order)))
                    if target == "scores":
                        assert (call.q == 1).all()
                    if target == "pattern":
                        torch.testing.assert_close(value, call.score_matrix.softmax(-1))
                return torch.ones_like(value) if target == "q" else value

            return Edit(target, change)

        targets = ["z", "pattern", "scores", "v", "k", "q"]
        calls = observe(model, [note(target) for target in targets])
        assert [target for target, _ in order] == ["q", "k", "v", "scores", "pattern", "z"]
        assert (calls[0].q == 1).all()

    def test_edits_of_one_target_see_each_other(self, tiny):
        model = tiny("llama")
        edits = [Edit("v", lambda call, v: torch.ones_like(v)), Edit("v", lambda call, v: v * 3)]
        assert all((call.v == 3).all() for call in observe(model, edits))
        assert all(torch.allclose(call.z, torch.tensor(3.0)) for call in observe(model, edits))


class TestStatistics:
    def test_probe_follows_edited_queries_and_keys(self, tiny):
        """Edits of q, k and v leave the pattern unwritten and its statistics known."""
        model = tiny("llama")
        edits = [
            Edit("q", lambda call, q: q * 2),
            Edit("k", lambda call, k: k.repeat_interleave(2, 1) * torch.rand(4, 1, 1)),
        ]
        here = torch.arange(6).expand(2, 6)
        for call in observe(model, edits):
            assert call._pattern is None
            assert call.k.shape == (2, 4, 6, 8)
            mass = call.probe([Match(here - 1, here)]).mass
            expected = call.score_matrix.softmax(-1)
            torch.testing.assert_close(mass[..., 1:, 0], expected.diagonal(-1, 2, 3))
            torch.testing.assert_close(call.pattern, expected)

    def test_edited_scores_have_no_probe(self, tiny):
        calls = observe(tiny("llama"), [Edit("scores", lambda call, s: s / 2)])
        with pytest.raises(InputError, match=r"were edited.*call\.pattern"):
            calls[0].probe()
        torch.testing.assert_close(calls[0].pattern, calls[0].score_matrix.softmax(-1))
        torch.testing.assert_close(calls[0].lse, calls[0].score_matrix.logsumexp(-1))


class TestShapes:
    @pytest.mark.parametrize("target", ["k", "v"])
    def test_keys_and_values_per_query_head(self, tiny, target):
        """The same numbers per query head change nothing; a later edit sees the larger shape."""
        model, seen = tiny("llama"), []
        own = logits(model)
        edits = [
            Edit(target, lambda call, x: x.repeat_interleave(2, 1)),
            Edit(target, lambda call, x: seen.append(x.shape[1]) or x),
        ]
        with attach(model, edits=edits):
            assert relative_error(logits(model), own) <= TOLERANCE
        assert seen == [4, 4]

    @pytest.mark.parametrize("target", ["k", "v"])
    def test_one_query_head_of_a_group(self, tiny, target):
        model = tiny("llama")

        def change(call, x):
            x = x.repeat_interleave(2, 1)
            x[:, 1] = 0
            return x

        with attach(model, edits=[Edit(target, change)]):
            seen = logits(model)
        if target == "v":
            with attach(model, edits=[zero_head("z", 1), zero_head("z", 1, layer=1)]):
                assert relative_error(seen, logits(model)) <= TOLERANCE
        else:
            uniform = Edit(
                "scores",
                lambda call, s: torch.cat(
                    [s[:, :1], s[:, 1:2].masked_fill(s[:, 1:2] > float("-inf"), 0.0), s[:, 2:]], 1
                ),
            )
            with attach(model, edits=[uniform]):
                assert relative_error(seen, logits(model)) <= TOLERANCE
        assert relative_error(seen, logits(model)) > 20 * TOLERANCE

    @pytest.mark.parametrize(
        ("target", "bad"),
        [
            ("k", lambda call, k: k.repeat_interleave(4, 1)),
            ("k", lambda call, k: k[:, :1]),
            ("v", lambda call, v: v[..., :4]),
            ("q", lambda call, q: q[:, :2]),
            ("scores", lambda call, s: s[:, :, :, :3]),
            ("scores", lambda call, s: s.half()),
        ],
    )
    def test_other_shapes_are_refused(self, tiny, target, bad):
        with pytest.raises(InputError, match=rf"an edit of {target} at .* must return"):
            observe(tiny("llama"), [Edit(target, bad)])

    def test_the_error_names_both_shapes(self, tiny):
        with pytest.raises(InputError, match=r"\(2, 2, 6, 8\) or \(2, 4, 6, 8\)"):
            observe(tiny("llama"), [Edit("k", lambda call, k: k[:, :1])])

    def test_z_is_not_known_before(self, tiny):
        with pytest.raises(InputError, match="z is not known yet"):
            observe(tiny("llama"), [Edit("v", lambda call, v: v * call.z.mean())])


class TestSites:
    def test_elsewhere_nothing_is_written_out(self, tiny):
        model = tiny("llama")
        own = observe(model, [])
        first, second = attention_sites(model)
        edit = Edit("pattern", lambda call, a: a * 0, frozenset([second]))
        calls = observe(model, [edit])
        assert calls[0]._pattern is None
        assert torch.equal(calls[0].z, own[0].z)
        assert (calls[1].z == 0).all()
        assert edit.acts_at(second)
        assert not edit.acts_at(first)


@pytest.mark.parametrize("target", ["q", "k", "v", "scores"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "t5", "deepseek_v3", "bert"])
def test_identities(tiny, family, target):
    """Softcap, sinks, position bias and MLA pass through the seam unharmed."""
    model = tiny(family, attn=own_implementation(family))
    inputs = {"decoder_input_ids": IDS[:, :4]} if family == "t5" else {}
    with torch.no_grad():
        own = model(IDS, **inputs)[0]
        with attach(model, edits=[Edit(target, lambda call, x: x.clone())]):
            seen = model(IDS, **inputs)[0]
    assert relative_error(seen, own) <= TOLERANCE


@pytest.mark.parametrize("target", ["q", "k", "v", "scores"])
@pytest.mark.parametrize("family", ["gpt2", "bart"])
def test_gradients_are_finite_differences(tiny, family, target):
    model = tiny(family, dtype=torch.float64)
    inputs = {"decoder_input_ids": IDS[:1, :3]} if family == "bart" else {}
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(4, 6, 8, dtype=torch.float64, generator=generator)

    def output(gate):
        def change(call, x):
            if target == "scores":
                return x + gate * noise[:, : x.shape[2], :1] * torch.arange(x.shape[3])
            return x + gate * noise[:, : x.shape[2]]

        with attach(model, edits=[Edit(target, change)]):
            return model(IDS[:1], **inputs).logits[..., :4]

    gate = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(output, gate)
