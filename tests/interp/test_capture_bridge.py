"""Captures beside the cache of TransformerLens's TransformerBridge, on the same weights."""

import pytest
import torch

from headatlas.interp.capture import capture

from .bridges import boot
from .weight_models import IDS, build


def both(tiny, families, family, folder):
    """Our capture and the bridge's cache: the bridge rewires its model, so it gets its own."""
    model, other = (build(tiny, families, family) for _ in range(2))
    own = capture(model, None, IDS, names_filter=lambda name: True)
    bridge = boot(other, folder)
    bridge.cfg.use_attn_result = True
    with torch.no_grad():
        _, cache = bridge.run_with_cache(IDS)
    return own, cache


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma", "gemma3_text"])
def test_the_same_names_and_values(tiny, families, family, tmp_path):
    own, cache = both(tiny, families, family, tmp_path)
    compared = set()
    for name, tensor in own.items():
        if name not in cache:
            continue
        theirs = cache[name]
        if theirs.ndim == 3:  # some of the bridge's projections keep their heads side by side
            theirs = theirs.unflatten(-1, tensor.shape[-2:])
        compared.add(name.rsplit("hook_", 1)[1])
        finite = torch.isfinite(tensor)
        torch.testing.assert_close(tensor[finite], theirs[finite], rtol=1e-5, atol=2e-5)
        # where we say -inf, the bridge has a number so low that its weight is zero
        assert (theirs[~finite] < -1e30).all()
    rotary = set() if family == "gpt2" else {"rot_q", "rot_k"}
    assert compared == {"q", "k", "v", "attn_scores", "pattern", "z", "result"} | rotary


def test_heads_of_latent_attention(tiny, families, tmp_path):
    """The bridge cuts z by d_head, not d_value: one number too many per head, and heads mixed."""
    own, cache = both(tiny, families, "deepseek_v3", tmp_path)
    z, theirs = own["z", 1], cache["blocks.1.attn.hook_z"]
    assert z.shape == (2, 6, 4, 6)
    assert theirs.shape != z.shape
    torch.testing.assert_close(z.flatten(2), theirs.flatten(2), rtol=1e-5, atol=2e-5)
    pattern, v = own["pattern", 1], own["v", 1]
    torch.testing.assert_close(torch.einsum("bhqk,bkhd->bqhd", pattern, v), z)
    result = own["result", 1]
    for head in range(4):  # what a head adds is the output without the others
        only = torch.zeros_like(z)
        only[:, :, head] = z[:, :, head]
        weight = build(tiny, families, "deepseek_v3").model.layers[1].self_attn.o_proj.weight
        torch.testing.assert_close(result[:, :, head], only.flatten(2) @ weight.T)
