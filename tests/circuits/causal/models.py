"""Random decoders small enough for a test, with weights large enough to have effects."""

import numpy as np
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from headatlas.interp.probes import Prompts

VOCAB = 60


def gpt2(seed=0, layers=3):
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=48, n_embd=16, n_layer=layers, n_head=2,
        initializer_range=0.5, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def llama(seed=0, layers=3):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.5, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def gemma2(seed=0):
    """Logits are capped after the head, so the output embedding alone is not enough."""
    torch.manual_seed(seed)
    config = Gemma2Config(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, initializer_range=0.5,
        final_logit_softcapping=2.0, bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return Gemma2ForCausalLM(config).eval()


def repeats(documents=5, length=14, seed=0, side=None):
    """Documents whose second half repeats the first; with `side`, of unequal length, padded there.

    The two longest are equally long, so that each has another no shorter.
    """
    rng = np.random.default_rng(seed)
    half = length // 2
    spans = [rng.permutation(np.arange(1, VOCAB))[:half] for _ in range(documents)]
    ids = np.stack([np.concatenate([span, span]) for span in spans])
    mask = np.ones_like(ids, bool)
    if side is not None:
        for document in range(2, documents):
            cut = slice(0, document) if side == "left" else slice(length - document, length)
            mask[document, cut] = False
    ids = np.where(mask, ids, 0)
    return Prompts("random", ids, mask, bos=False)


def loss_by_hand(logits, prompts, rows):
    """Mean loss of the next token per document over marked rows, in float64."""
    logp = logits.detach().double().log_softmax(-1).numpy()
    found = []
    for document in range(len(prompts)):
        own = [
            -logp[document, t, prompts.ids[document, t + 1]] for t in np.flatnonzero(rows[document])
        ]
        found.append(np.mean(own) if own else 0.0)
    return np.array(found)
