"""Hard-concrete gates: closed forms, gradients, groups."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headatlas.circuits.prune import gates as gates_module
from headatlas.circuits.prune.gates import BETA, Gates, gate_edit, p_open, sample_gate
from headatlas.circuits.prune.text_loss import Batch
from headatlas.interp.attach import attach
from headatlas.interp.errors import InputError
from headatlas.interp.forward import run_whole
from headatlas.interp.heads import HeadId
from headatlas.interp.sites import Site, attention_sites
from tests.circuits.causal.models import gpt2, llama, repeats

GQA = [Site(f"attn{i}", "", i, 6, 2, 8, 8, causal=True) for i in range(2)]


def spread(gates, seed=0):
    """Gates at random log α's."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in gates.parameters():
            weight.copy_(2 * torch.randn(weight.shape))
    return gates


def test_probability_of_an_open_gate_at_zero():
    assert float(p_open(torch.tensor(0.0))) == pytest.approx(0.832, abs=5e-4)


def test_test_gate_is_exact_at_its_ends():
    at = torch.tensor([-2.398, -2.397, 2.397, 2.398])
    low, above, below, high = gates_module.test_gate(at).tolist()
    assert (low, high) == (0.0, 1.0)
    assert 0 < above < 1e-3
    assert 1 - 1e-3 < below < 1


@given(
    st.floats(-6, 6),
    st.sampled_from([0.33, 0.5, BETA, 1.0]),
)
def test_probability_is_the_share_of_draws_that_are_not_zero(log_alpha, beta):
    """On a grid of noise instead of draws, so to the grid's step."""
    u = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    where = torch.tensor(log_alpha, dtype=torch.float64)
    share = (sample_gate(where, u, beta) > 0).double().mean()
    assert float(p_open(where, beta)) == pytest.approx(float(share), abs=1 / 2000)


def test_sampled_gate_by_hand():
    u, log_alpha = torch.tensor([0.3], dtype=torch.float64), torch.tensor([0.4])
    s = 1 / (1 + np.exp(-(np.log(0.3 / 0.7) + 0.4) / BETA))
    assert float(sample_gate(log_alpha.double(), u)[0]) == pytest.approx(1.2 * s - 0.1, rel=1e-6)


@pytest.mark.parametrize("per", ["head", "group", "both"])
def test_gradients_of_expected_and_drawn_gates(per):
    """Against finite differences, in float64."""
    gates = spread(Gates(GQA, per)).double()
    weights = torch.linspace(-1, 2, len(gates), dtype=torch.float64)

    def drawn():
        return (gates.draw(np.random.default_rng(3), 4) * weights).sum()

    for function in (drawn, gates.expected_open):
        gates.zero_grad()
        function().backward()
        for weight in gates.parameters():
            numeric = finite_difference(function, weight)
            assert weight.grad is not None
            assert weight.grad.abs().max() > 0
            assert torch.allclose(weight.grad, numeric, atol=1e-8)


def finite_difference(function, weight, step=1e-5):
    found = torch.zeros_like(weight)
    with torch.no_grad():
        for i in range(len(weight)):
            value = weight[i].clone()
            weight[i] = value + step
            up = function().detach()
            weight[i] = value - step
            found[i] = (up - function()) / (2 * step)
            weight[i] = value
    return found


def test_gradient_of_the_loss_through_attention():
    """From a text's loss through every layer to log α, against finite differences."""
    model = gpt2(layers=2).double()  # whose norms keep float64
    gates = Gates(attention_sites(model), init=0.0).double()
    batch = Batch(repeats(3, side="left"), torch.device("cpu"))

    drawn = []
    with attach(model, edits=[gate_edit(gates, lambda: drawn[-1])]):

        def gated():
            drawn.append(gates.draw(np.random.default_rng(1)))
            return batch.cross_entropy(model)

        gated().backward()
        numeric = finite_difference(gated, gates.log_alpha)
    assert gates.log_alpha.grad.abs().max() > 1e-3
    assert torch.allclose(gates.log_alpha.grad, numeric, rtol=1e-5, atol=1e-6)


def test_query_heads_of_a_group_share_its_gate():
    gates = spread(Gates(GQA, "group"))
    assert gates.group_log_alpha.shape == (4,)
    for values in (gates.test_values(), gates.draw(np.random.default_rng(0))[0]):
        values = values.view(4, 3)
        assert torch.equal(values, values[:, :1].expand(-1, 3))
        assert len(set(values[:, 0].tolist())) > 1
    single = p_open(gates.group_log_alpha).sum()
    assert torch.allclose(gates.expected_open(), 3 * single)


def test_both_multiplies_a_head_s_gate_with_its_group_s():
    both = spread(Gates(GQA, "both"))
    own = gates_module.test_gate(both.log_alpha)
    groups = gates_module.test_gate(both.group_log_alpha).repeat_interleave(3)
    assert torch.equal(both.test_values(), own * groups)
    p = p_open(both.log_alpha) * p_open(both.group_log_alpha).repeat_interleave(3)
    assert torch.allclose(both.open_probabilities(), p)
    shares = (both.draw(np.random.default_rng(0), 4000) > 0).float().mean(0)
    assert torch.allclose(shares, p, atol=0.05)


def test_ranks_are_the_log_alpha_of_a_single_gate():
    alone = spread(Gates(GQA, "head"))
    assert np.array_equal(alone.ranks(), alone.log_alpha.detach().double().numpy())
    both = spread(Gates(GQA, "both"))
    equivalent = torch.from_numpy(both.ranks())
    assert torch.allclose(p_open(equivalent).float(), both.open_probabilities(), atol=1e-6)
    with torch.no_grad():
        for weight in both.parameters():
            weight.fill_(40.0)
    assert np.isfinite(both.ranks()).all()


def test_draws_differ_and_repeat_with_the_seed():
    gates = spread(Gates(GQA))
    first, second = (gates.draw(np.random.default_rng(5), 3) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first[0], first[1])
    assert first.shape == (3, 12)


def test_values_of_a_site():
    gates = spread(Gates(GQA))
    assert torch.equal(gates.values(GQA[1]), gates.test_values()[6:])
    drawn = gates.values(GQA[0], sample=True, rng=np.random.default_rng(0))
    assert torch.equal(drawn, gates.draw(np.random.default_rng(0))[0, :6])
    with pytest.raises(InputError, match="pass rng"):
        gates.values(GQA[0], sample=True)
    other = Site("elsewhere", "", 9, 6, 2, 8, 8, causal=True)
    with pytest.raises(InputError, match="no site 'elsewhere'"):
        gates.values(other)


def test_frame_has_a_row_per_head():
    gates = spread(Gates(GQA, "group"))
    frame = gates.frame()
    assert list(frame) == [
        "site", "layer", "head", "kv_head", "log_alpha", "p_open", "gate", "kept",
    ]  # fmt: skip
    assert frame["kv_head"].tolist() == [0, 0, 0, 1, 1, 1] * 2
    assert frame["kept"].tolist() == (gates.test_values() > 0).tolist()
    cut = gates.frame(removed={HeadId("", 1, 5)})
    assert cut["kept"].tolist() == [True] * 11 + [False]
    assert gates.open_probability()[HeadId("", 0, 2)] == frame["p_open"].iloc[2]


def test_gates_scale_each_document_s_heads():
    """A gate of 0 is a head removed: for each document its own."""
    model, prompts = llama(layers=2), repeats(2)
    ids = torch.from_numpy(prompts.ids)
    gates = Gates(attention_sites(model))
    values = torch.ones(2, len(gates))
    values[0, 1], values[1, 6] = 0, 0
    with attach(model, edits=[gate_edit(gates, lambda: values)]):
        both = run_whole(model, ids).logits
    for document in range(2):
        with attach(model, edits=[gate_edit(gates, lambda d=document: values[d : d + 1])]):
            alone = run_whole(model, ids[document : document + 1]).logits[0]
        assert torch.allclose(both[document], alone, atol=1e-4)
    with attach(model, edits=[gate_edit(gates, lambda: None)]):
        assert torch.allclose(run_whole(model, ids).logits, run_whole(llama(layers=2), ids).logits)


def test_gates_are_not_trained_where_gradients_are_off():
    model = llama(layers=2)
    gates = Gates(attention_sites(model))
    drawn = gates.draw(np.random.default_rng(0))
    edit = gate_edit(gates, lambda: drawn)
    with attach(model, edits=[edit]), pytest.raises(InputError, match="gradients are off"):
        run_whole(model, torch.tensor([[1, 2, 3]]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per": "layer"}, "got 'layer'"),
        ({"sites": []}, "at least one attention site"),
        ({"beta": 0.0}, "beta lies in"),
        ({"init": float("nan")}, "is finite"),
    ],
)
def test_wrong_gates_are_refused(options, message):
    options = {"sites": GQA, **options}
    with pytest.raises(InputError, match=message):
        Gates(options.pop("sites"), **options)
