"""What a sweep must not take for the same: other configs, other edits, narrow types, threads."""

import threading

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from headatlas.circuits.behaviour import INDUCTION
from headatlas.circuits.causal.documents import documents
from headatlas.circuits.causal.sweep import sweep
from headatlas.interp.errors import InputError
from headatlas.interp.intervene import intervene
from headatlas.interp.interventions import zero
from headatlas.interp.resume import find_blocks, is_same, keep_states
from headatlas.interp.sites import attention_sites


def llama(theta=10000.0):
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=80, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
            rope_parameters={"rope_type": "default", "rope_theta": theta},
        )
    ).eval()  # fmt: skip


def run(model, path):
    prompts = documents(model, None, prompts=16)
    return sweep(model, prompts, INDUCTION, ablations=["mean"], checkpoint=path)


def test_a_checkpoint_is_of_one_config_and_of_no_edits(tmp_path):
    path, model = tmp_path / "a.safetensors", llama()
    run(model, path)
    run(model, path)
    with pytest.raises(InputError):
        run(llama(theta=10.0), path)
    with intervene(model, zero("L0H0")), pytest.raises(InputError, match="being edited"):
        run(model, path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_caps_are_seen_in_narrow_types(dtype):
    logits = torch.linspace(-25, 25, 200).to(dtype)
    assert is_same(logits, logits)
    assert not is_same(logits, 30 * torch.tanh(logits / 30))


def test_blocks_of_threads_take_turns():
    """Overlapping without nesting, each would give back the other's forward."""
    model = llama()
    blocks = find_blocks(model, attention_sites(model))
    inside, go, found = threading.Event(), threading.Event(), {}

    def first():
        with torch.no_grad(), keep_states(blocks) as states:
            inside.set()
            go.wait(10)
            model(torch.tensor([[1, 2, 3]]))
        found["first"] = len(states.entering)

    def second():
        inside.wait(10)
        go.set()
        with torch.no_grad(), keep_states(blocks) as states:
            model(torch.tensor([[1, 2, 3]]))
        found["second"] = len(states.entering)

    threads = [threading.Thread(target=target) for target in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == {"first": 2, "second": 2}
    assert not any("forward" in module.__dict__ for module in model.modules())
