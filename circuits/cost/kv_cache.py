"""Bytes of the key-value cache, and what they would be with other key-value heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...interp.errors import InputError
from .devices import bytes_per_number
from .shapes import AttentionShapes, LatentShape, LayerShape, check_count

_USUAL_GROUPS = 8  # KV heads of Llama-2-70B and of most grouped models since


def cache_bytes(
    shapes: AttentionShapes, context: int, *, batch: int = 1, dtype: str = "fp16"
) -> int:
    """Bytes to keep for the next token after `context` tokens.

        Σ over layers of batch · kept tokens · numbers per token · bytes per number

    Numbers per token: g·(d_k + d_v) for MHA (g = h), GQA and MQA (g = 1); d_c + d_R for MLA. A
    layer with a window of w keeps at most its last w − 1 tokens, all that the next query sees
    beside its own.

    Args:
        shapes: a causal model's attention.
        context: N, tokens so far.
        batch: sequences.
        dtype: of the cache, such as `"fp16"`.

    Raises:
        InputError: a model that is not causal (it keeps no cache), or a number below 1.

    Example:
        >>> from headatlas.circuits.cost.shapes import uniform_shapes
        >>> large = uniform_shapes(80, d_model=8192, n_heads=64)  # 64 KV heads
        >>> f"{cache_bytes(large, 1) / 1e6:.2f} MB"
        '2.62 MB'
        >>> f"{cache_bytes(large, 4096, batch=32) / 1e9:.1f} GB"
        '343.6 GB'
        >>> grouped = uniform_shapes(80, d_model=8192, n_heads=64, n_kv_heads=8)
        >>> cache_bytes(large, 1) // cache_bytes(grouped, 1)
        8

    Reference:
        Shazeer 2019 (MQA), Ainslie 2023 (GQA), DeepSeek-AI 2024 (MLA, table 1).
    """
    check_causal(shapes, "keeps no cache")
    check_count("context", context)
    check_count("batch", batch)
    width = bytes_per_number(dtype)
    return sum(
        n * batch * layer.keys_kept(context) * layer.cache_width * width
        for layer, n in shapes.counts.items()
    )


def cache_variants(shapes: AttentionShapes) -> Mapping[str, AttentionShapes]:
    """The same model with each kind of key-value heads: what would its cache be?

    MHA: g = h. GQA: its own g, else the largest divisor of h from 8 down to 2. MQA: g = 1. MLA: its
    own latent, else DeepSeek-V2's proportions d_c = 4·d_head and d_R = d_head / 2, the rotary part
    beside d_head.

    Returns:
        Kind -> shapes. GQA is missing where h has no divisor from 2 to 8 below itself.

    Example:
        >>> from headatlas.circuits.cost.shapes import uniform_shapes
        >>> variants = cache_variants(uniform_shapes(2, d_model=512, n_heads=16))
        >>> {kind: shapes.layers[0].cache_width for kind, shapes in variants.items()}
        {'MHA': 1024, 'GQA': 512, 'MQA': 64, 'MLA': 144}

    Reference:
        Shazeer 2019 (MQA), Ainslie 2023 (GQA), DeepSeek-AI 2024 (MLA, section 2.1.4).
    """
    made: dict[str, AttentionShapes] = {}
    for kind in ("MHA", "GQA", "MQA", "MLA"):
        changed = {layer: _as_kind(layer, kind) for layer in shapes.counts}
        known = {old: new for old, new in changed.items() if new is not None}
        if len(known) == len(changed):
            made[kind] = replace(shapes, layers=tuple(known[layer] for layer in shapes.layers))
    return made


def _as_kind(layer: LayerShape, kind: str) -> LayerShape | None:
    if layer.kind == kind:
        return layer
    h = layer.n_heads
    if kind == "MLA":
        d_rope = layer.d_head // 2
        latent = LatentShape(4 * layer.d_head, d_rope)
        return replace(layer, n_kv_heads=h, d_head=layer.d_head + d_rope, latent=latent)
    groups = {"MHA": h, "MQA": 1, "GQA": _groups(h)}[kind]
    return None if groups is None else replace(layer, n_kv_heads=groups, latent=None)


def _groups(n_heads: int) -> int | None:
    usual = range(_USUAL_GROUPS, 1, -1)
    return next((g for g in usual if g < n_heads and n_heads % g == 0), None)


def check_causal(shapes: AttentionShapes, why: str) -> None:
    """Refuse a model whose queries see later keys.

    Raises:
        InputError: it does.
    """
    if not shapes.causal:
        raise InputError(f"{shapes.name} sees later tokens and so {why}; only causal models do.")
