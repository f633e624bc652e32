"""Small random models of the families whose projections are laid out differently."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from headatlas.interp.heads import HeadId
from tests.conftest import SPECIAL, VOCAB, build_tiny

FALCON = {
    **SPECIAL,
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "attn_implementation": "sdpa",
}
FALCONS = {
    "falcon": {"multi_query": True},
    "falcon-mha": {"multi_query": False, "alibi": True, "bias": True},
    "falcon-groups": {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
}
NAMES = (
    "llama", "gemma3-mqa", "gpt2", "gpt_neox", "phi3", "deepseek_v3", "bert", "t5", "bart",
    "gpt_oss", *FALCONS,
)  # fmt: skip


def make(name: str) -> Any:
    """The model of one of NAMES, in eval mode."""
    if name in FALCONS:
        config = AutoConfig.for_model("falcon", **{**FALCON, **FALCONS[name]})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(config).eval()
            with torch.no_grad():
                for weight in model.parameters():
                    weight.copy_(weight + 0.15 * torch.randn(weight.shape))
        return model
    if name == "gemma3-mqa":
        return build_tiny("gemma3_text", num_key_value_heads=1)
    return build_tiny(name, attn="eager" if name == "gpt_oss" else "sdpa")


@pytest.fixture(scope="session")
def whole() -> Any:
    """`whole("llama")`: one model per name for all tests, which leave it as it is."""
    made: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in made:
            made[name] = make(name)
        return made[name]

    return get


def all_heads(name: str) -> list[HeadId]:
    """Every head, by stack, layer and number."""
    stacks = ("enc", "dec", "cross") if name in ("t5", "bart") else ("",)
    return [HeadId(s, layer, head) for s in stacks for layer in range(2) for head in range(4)]


def inputs(name: str, left: bool) -> dict[str, Any]:
    """Two sequences, the second padded."""
    ids = torch.arange(3, 19).reshape(2, 8) * 5 % VOCAB
    mask = torch.ones_like(ids)
    mask[1, slice(0, 3) if left else slice(-3, None)] = 0
    more = {"decoder_input_ids": ids[:, :5].flip(0)} if name in ("t5", "bart") else {}
    return {"input_ids": ids, "attention_mask": mask, **more}


def logits(model: Any, given: dict[str, Any]) -> torch.Tensor:
    """Logits or last states where tokens stand."""
    with torch.no_grad():
        output = model(**given, use_cache=False)
    values = getattr(output, "logits", None)
    values = output[0] if values is None else values
    mask = given["attention_mask"].bool()
    return values[mask] if values.shape[:2] == mask.shape else values
