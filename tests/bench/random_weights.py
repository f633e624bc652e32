"""False labels on models that know nothing: random weights with peaky attention, margin 0.

    python -m tests.bench.random_weights [--models 200]

Each model is a two-layer Llama of random weights whose queries are made large, so that rows put
most of their weight on one key. Queries and keys read two codes of the token that are drawn apart,
of one length each, and nothing is written back: whether two tokens are the same says nothing about
their score, so every label is false. (With plain random weights W_Q W_Kᵀ has a trace, and a head a
small but true preference for its own token. With a small vocabulary the documents of a model would
share tokens, and what a head happens to make of those would come again in each of them.) Permuted
labels are graded beside the true ones.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import torch
from scipy import stats
from transformers import LlamaConfig, LlamaForCausalLM

import headatlas as ha
from headatlas.circuits.grade import Rule
from headatlas.circuits.kinds import choose_kinds
from headatlas.circuits.label import label
from headatlas.circuits.null_check import check_null
from headatlas.interp.probes import random_prompts

KINDS = "duplicate_token,induction"
_VOCAB, _CODE, _SHARP = 20000, 32, 6.0


def peaky_model(seed: int) -> LlamaForCausalLM:
    """A Llama of random weights whose largest attention weight is near .8 on average."""
    config = LlamaConfig(
        vocab_size=_VOCAB, hidden_size=2 * _CODE, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                weight.normal_(0, _CODE**-0.5, generator=generator)
            if "q_proj" in name:
                weight.mul_(_SHARP)[:, _CODE:] = 0
            if "k_proj" in name:
                weight[:, :_CODE] = 0
            if "o_proj" in name or "down_proj" in name:
                weight.zero_()
            if "embed_tokens" in name:
                codes = weight.view(-1, 2, _CODE)
                codes.div_(codes.norm(dim=-1, keepdim=True))
    return model


def markdown(arguments: list[str] | None = None) -> str:
    """The table: families of hypotheses with any false label, and the p-values."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=200)
    options = parser.parse_args(arguments or [])
    torch.set_num_threads(1)
    rule = Rule(margin=0.0, resamples=500)
    found: dict[str, list[tuple[bool, np.ndarray]]] = {"true": [], "permuted": []}
    for seed in range(options.models):
        prompts = random_prompts(np.arange(40, _VOCAB - 40), 32, 64, bos_id=1, seed=seed)
        sums = {"random": ha.score(peaky_model(seed), prompts, KINDS, null_draws=1, seed=seed)}
        frame = label(sums, choose_kinds(KINDS), rule, seed=seed)
        p = np.array([details["p"] for details in frame["details"]])
        found["true"].append((bool((frame["low"] > 0).any()), p))
        [check] = check_null(sums, rule, seed=seed).to_dict("records")
        found["permuted"].append((check["false_labels"] > 0, np.asarray(check["p_values"])))
    lines = [
        f"{options.models} random-weight models of 8 heads, 32 documents of 64 tokens each:",
        "",
        "| labels | models with any false label | p < .05 | p < .01 | KS p, worst head × kind "
        "(× hypotheses) |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(_row(name, entries) for name, entries in found.items())])


def _row(name: str, entries: list[tuple[bool, np.ndarray]]) -> str:
    p = np.stack([values for _, values in entries])
    worst = min(stats.kstest(p[:, h], "uniform").pvalue for h in range(p.shape[1]))
    return (
        f"| {name} | {sum(any_ for any_, _ in entries)} of {len(entries)} "
        f"| {100 * (p < 0.05).mean():.1f} % | {100 * (p < 0.01).mean():.1f} % "
        f"| {worst:.4f} ({min(1, worst * p.shape[1]):.2f}) |"
    )


if __name__ == "__main__":
    print(markdown(sys.argv[1:]))
