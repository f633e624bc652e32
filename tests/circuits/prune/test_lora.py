"""Gates with low-rank additions to the weights."""

import sys

import pytest
import torch

from headatlas.circuits.prune.lora import add_lora, merge_lora
from headatlas.circuits.prune.train import train_gates
from headatlas.circuits.prune.working_copy import frozen_copy
from headatlas.interp.errors import InputError
from tests.circuits.causal.models import gpt2, llama, repeats
from tests.circuits.prune.trained import assert_same, snapshot, training


def test_without_peft_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(InputError, match=r'pip install "headatlas\[lora\]"'):
        train_gates(llama(layers=2), repeats(4), config=training(finetune="lora"))


@pytest.mark.parametrize("build", [llama, gpt2])
def test_merged_weights_are_those_of_a_plain_model(build):
    pytest.importorskip("peft")
    model, prompts = build(layers=2), repeats(4)
    before = snapshot(model)
    config = training(
        finetune="lora", rank=2, steps=40, batch=4, model_lr=0.02, lam=0.0, init=20.0,
        gradient_checkpointing=True,
    )  # fmt: skip
    result = train_gates(model, prompts, config=config)
    assert_same(snapshot(model), before)
    assert result.history["loss_nats"].iloc[-1] < result.history["loss_nats"].iloc[0] - 0.2
    own = model.state_dict()
    assert result.weights.keys() == own.keys()
    changed = {name for name, value in own.items() if not torch.equal(value, result.weights[name])}
    assert changed
    assert not any("norm" in name or "ln_" in name or "lm_head" in name for name in changed)
    for name in changed:
        assert torch.linalg.matrix_rank(result.weights[name] - own[name], tol=1e-5) <= 2
    fresh = build(seed=1, layers=2)
    fresh.load_state_dict(result.weights)
    again = train_gates(fresh, prompts, config=training(steps=1, batch=4, init=20.0)).history
    assert again["loss_nats"].iloc[0] == pytest.approx(
        result.history["loss_nats"].iloc[-1], abs=0.2
    )


def test_a_killed_run_goes_on_to_the_same_numbers(tmp_path):
    pytest.importorskip("peft")
    model, prompts, path = llama(layers=2), repeats(4), tmp_path / "gates.safetensors"
    config = training(finetune="lora", every=2)
    whole = train_gates(model, prompts, config=config)

    def kill(_stage, done, _total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_gates(model, prompts, config=config, checkpoint=path, progress=kill)
    again = train_gates(model, prompts, config=config, checkpoint=path)
    assert again.history.equals(whole.history)
    assert all(torch.equal(value, again.weights[name]) for name, value in whole.weights.items())


def weight_of(layer):
    """[out, in] of a linear layer, whichever way it is kept."""
    return layer.weight.T if type(layer).__name__ == "Conv1D" else layer.weight


@pytest.mark.parametrize("build", [llama, gpt2])
def test_additions_begin_at_nothing_and_count_twice(build):
    """y = W x + 2 B A x, in the forward pass and in the merged weight."""
    pytest.importorskip("peft")
    model = build(layers=2)
    twin, ids = frozen_copy(model), torch.arange(1, 13)[None]
    names = {
        name for name, module in model.named_modules()
        if type(module).__name__ in ("Linear", "Conv1D") and name != "lm_head"
    }  # fmt: skip
    own = {name: weight_of(model.get_submodule(name)).detach().double() for name in names}
    add_lora(twin, 3, seed=0)
    with torch.no_grad():
        assert torch.equal(twin(ids).logits, model(ids).logits)
    torch.manual_seed(4)
    expected = {}
    for name in names:
        layer = twin.get_submodule(name)
        down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        assert down.shape == (3, own[name].shape[1])
        assert up.shape == (own[name].shape[0], 3)
        assert down.abs().max() > 0 == up.abs().max()
        assert down.requires_grad
        assert up.requires_grad
        with torch.no_grad():
            down.copy_(torch.randn(down.shape) / 8)
            up.copy_(torch.randn(up.shape) / 8)
        expected[name] = own[name] + 2 * up.detach().double() @ down.detach().double()
    with torch.no_grad():
        added = twin(ids).logits
    merge_lora(twin)
    for name in names:
        found = weight_of(twin.get_submodule(name)).detach().double()
        torch.testing.assert_close(found, expected[name], rtol=1e-5, atol=1e-6)
        assert (found - own[name]).abs().max() > 0.01
        assert torch.equal(weight_of(model.get_submodule(name)).detach().double(), own[name])
    plain = build(layers=2)
    with torch.no_grad():
        for name, value in expected.items():
            weight_of(plain.get_submodule(name)).copy_(value)
        torch.testing.assert_close(added, plain(ids).logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(twin(ids).logits, plain(ids).logits, rtol=1e-4, atol=1e-4)
    assert twin.state_dict().keys() == model.state_dict().keys()
