"""Text that a model writes itself: ancestral sampling, with randomness of its own."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from .errors import InputError
from .forward import check_ids, embedding_weight, undisturbed
from .tokens import bos_token

_TOGETHER = 32  # documents that are written side by side


@torch.no_grad()
def sample_documents(
    model: Any,
    tokenizer: Any,
    *,
    n: int,
    seq_len: int,
    prepend_bos: bool | None = None,
    seed: int = 0,
) -> tuple[Int64[Tensor, "document pos"], bool]:
    """Documents drawn from the model's own distribution, token by token from its BOS.

        token[t + 1] ~ p(· | tokens ≤ t)    over all tokens but the special ones

    Special tokens (BOS, end of text, padding) are never drawn, so every document is text of full
    length. Each document has its own stream of random numbers: neither torch's nor NumPy's global
    state is read or changed, and the model is left as it was. Earlier keys and values are kept
    from step to step where the model offers that.

    Args:
        model: a transformers decoder with a language-model head.
        tokenizer: names the special tokens; None leaves that to the model's config.
        n: how many documents.
        seq_len: tokens per document, the BOS included where it is kept.
        prepend_bos: whether documents keep the BOS they grew from; None: as the tokenizer does.
        seed: of the draw.

    Returns:
        The ids, and whether each document begins with a BOS.

    Raises:
        InputError: a model that predicts no next token or has no token to begin with, or outputs
            that are not finite.

    Example:
        >>> import headatlas as ha
        >>> ids, bos = sample_documents(*ha.load("tiny"), n=2, seq_len=8)
        >>> ids.shape, bos, ids[:, 0].tolist()
        (torch.Size([2, 8]), True, [0, 0])
    """
    bos = bos_token(tokenizer, prepend_bos)
    first = _start(model, tokenizer) if bos is None else bos
    drop = int(bos is None)
    steps = seq_len - 1 + drop
    rngs = [np.random.default_rng((seed, 40, document)) for document in range(n)]
    uniform = torch.from_numpy(np.stack([rng.random(steps) for rng in rngs]))
    with undisturbed(model):
        batches = [_write(model, tokenizer, first, part) for part in uniform.split(_TOGETHER)]
    return torch.cat(batches)[:, drop:], bos is not None


def _write(
    model: Any, tokenizer: Any, first: int, uniform: Float[Tensor, "document step"]
) -> Int64[Tensor, "document pos"]:
    """Documents of one more token than there are steps."""
    device = embedding_weight(model).device
    ids = torch.full((len(uniform), 1), first, device=device)
    check_ids(model, ids, "the token to begin with")
    read, kept, allowed = ids, dict[str, Any](), None
    for step in uniform.to(device).T:
        out = model(input_ids=read, **kept)
        logits = getattr(out, "logits", None)
        if logits is None or logits.ndim != 3:
            raise InputError(
                f"{type(model).__name__} gives no next-token logits, so it writes no text; load it "
                "with AutoModelForCausalLM, or pass a text."
            )
        if allowed is None:
            allowed = _ordinary(model, tokenizer, logits.shape[-1]).to(device)
        drawn = _draw(logits[:, -1], allowed, step)[:, None]
        ids = torch.cat([ids, drawn], 1)
        kept = cache_options(model, out)
        read = drawn if kept else ids
    return ids.cpu()


def _draw(
    logits: Float[Tensor, "document vocab"],
    allowed: Bool[Tensor, " vocab"],
    uniform: Float[Tensor, " document"],
) -> Int[Tensor, " document"]:
    """The token at which the cumulative probability first exceeds a uniform number."""
    if not bool(torch.isfinite(logits[:, allowed]).all()):
        raise InputError(
            "the model's outputs are not finite, so no text can be drawn from it. Load it in a "
            "wider dtype, or pass a text."
        )
    p = logits.double().masked_fill(~allowed, float("-inf")).softmax(-1)
    reached = p.cumsum(-1)
    drawn = torch.searchsorted(reached, uniform[:, None] * reached[:, -1:], right=True)[:, 0]
    return drawn.clamp_max(int(allowed.nonzero().max()))


def cache_options(model: Any, out: Any) -> dict[str, Any]:
    """Keys and values of what was read so far, as the model takes them; empty if it keeps none."""
    takes = inspect.signature(model.forward).parameters
    for name in ("cache", "past_key_values"):
        if name in out and name in takes and out[name] is not None:
            return {name: out[name], "use_cache": True}
    return {}


def _ordinary(model: Any, tokenizer: Any, vocab: int) -> Bool[Tensor, " vocab"]:
    """Ids that stand for text."""
    special = set(_special(model, "bos_token_id", "eos_token_id", "pad_token_id"))
    known = vocab
    if tokenizer is not None:
        special |= set(tokenizer.all_special_ids)
        known = min(vocab, len(tokenizer))
    allowed = torch.zeros(vocab, dtype=torch.bool)
    allowed[:known] = True
    allowed[[i for i in special if 0 <= i < vocab]] = False
    if not bool(allowed.any()):
        raise InputError(f"all {known} tokens of the vocabulary are special; pass a text.")
    return allowed


def _start(model: Any, tokenizer: Any) -> int:
    """The BOS; where there is none, the token between texts."""
    names = ("bos_token_id", "eos_token_id")
    own = [getattr(tokenizer, name, None) for name in names]
    configured = [next(iter(_special(model, name)), None) for name in names]
    for token in (own[0], configured[0], own[1], configured[1]):
        if isinstance(token, int):
            return token
    raise InputError(
        f"{type(model).__name__} has no BOS to begin a text with; pass a text, or set "
        "config.bos_token_id."
    )


def _special(model: Any, *names: str) -> list[int]:
    """Special ids that the config names, one or several under a name."""
    config = model.config.get_text_config()
    entries = [getattr(config, name, None) for name in names]
    flat = [i for entry in entries for i in (entry if isinstance(entry, list) else [entry])]
    return [i for i in flat if isinstance(i, int)]
