"""What attention costs: FLOPs, bytes moved, and the length where the quadratic part takes over."""

from __future__ import annotations

from ...interp.errors import InputError
from .kv_cache import check_causal
from .operations import Cost, Pass, layer_cost, total_cost
from .shapes import AttentionShapes, LayerShape, check_count


def prefill_cost(
    shapes: AttentionShapes,
    seq_len: int,
    *,
    batch: int = 1,
    dtype: str = "fp16",
    exact: bool = False,
) -> Cost:
    """Cost of a forward pass over whole sequences, all layers together.

    Per layer and sequence of N tokens, P pairs of query and key, for MHA with h·d_k = h·d_v = D:

        QKV 6ND², scores 2PD, softmax 5hP, AV 2PD, output 2ND²

    and in general QKV 2ND(h·d_k + g·d_k + g·d_v), scores 2P·h·d_k, AV 2P·h·d_v, output 2N·h·d_v·D.
    MLA projects through its latents: see `LayerShape`. P is N² when dense; `exact` counts only what
    the mask keeps, N(N + 1)/2 without a window. Bytes are those of the dense computation: `exact`
    does not change them.

    Args:
        shapes: the model's attention.
        seq_len: N, tokens per sequence.
        batch: sequences.
        dtype: of weights and activations, scores included.
        exact: count the pairs the mask keeps, in place of all.

    Raises:
        InputError: a number below 1, or an unknown dtype.

    Example:
        >>> from headatlas.circuits.cost.shapes import uniform_shapes
        >>> cost = prefill_cost(uniform_shapes(1, d_model=64, n_heads=4), 10)
        >>> [operation.flops for operation in cost.operations]  # 6·10·64², 2·10²·64, 5·4·10², …
        [245760, 12800, 2000, 12800, 81920]

    Reference:
        Vaswani 2017, section 3.2; Dao 2022 for the fused kernel. Deviation: Dao's count reads K and
        V once for each block of queries that fits the chip's memory; here once, the lower bound.
    """
    check_count("seq_len", seq_len)
    check_count("batch", batch)
    passes = {
        layer: Pass(batch, seq_len, seq_len, layer.pairs(seq_len, exact=exact), False)
        for layer in shapes.counts
    }
    return total_cost(
        (layer_cost(layer, passes[layer], dtype), n) for layer, n in shapes.counts.items()
    )


def decode_cost(
    shapes: AttentionShapes,
    context: int,
    *,
    batch: int = 1,
    dtype: str = "fp16",
    mla: str = "absorbed",
) -> Cost:
    """Cost of generating one token from a cache, all layers together.

    As `prefill_cost` with one query and P = M keys, M = min(context, window). With a latent, the
    scores can be taken against the latents themselves: absorbing the up-projections into query and
    output costs 2h·d_c·(d_k − d_R) and 2h·d_c·d_v, then scores 2M·h·(d_c + d_R) and AV 2M·h·d_c.
    `"expanded"` projects all M latents up again at each step, 2M·d_c·h·(d_k − d_R + d_v).

    Args:
        shapes: a causal model's attention.
        context: N, tokens the new query may see, itself included.
        batch: sequences.
        dtype: of weights, activations and cache.
        mla: how latents are used, `"absorbed"` or `"expanded"`; of no effect without latents.

    Raises:
        InputError: a model that is not causal, a number below 1, an unknown dtype or way.

    Example:
        >>> from headatlas.circuits.cost.shapes import uniform_shapes
        >>> from headatlas.circuits.cost.devices import find_device
        >>> cost = decode_cost(uniform_shapes(80, d_model=8192, n_heads=64), 4096)
        >>> round(cost.fused.intensity, 2), cost.fused.regime(find_device("h100"), "fp16")
        (1.01, 'memory-bound')

    Reference:
        Shazeer 2019, section 2.4; DeepSeek-AI 2024, section 2.1.2 (absorption).
    """
    check_count("context", context)
    check_count("batch", batch)
    check_causal(shapes, "does not decode token by token")
    check_mla(mla)
    passes = {
        layer: Pass(batch, 1, layer.keys_read(context), layer.keys_read(context), mla == "absorbed")
        for layer in shapes.counts
    }
    return total_cost(
        (layer_cost(layer, passes[layer], dtype), n) for layer, n in shapes.counts.items()
    )


def crossover(shapes: AttentionShapes, *, exact: bool = False) -> float | None:
    """The length from which on scores and AV cost more FLOPs than the projections.

    2P·h(d_k + d_v) ≥ 2N·W with W the projections' weights, both summed over layers. Dense, P = N²:

        N = Σ W / Σ h(d_k + d_v)

    which is 2D for MHA with h·d_k = h·d_v = D, where W = 4D², and D(1 + g/h) for GQA. Below it the
    quadratic term does not dominate prefill. `exact` counts the pairs a mask keeps: causal layers
    without a window cross at about twice the dense length.

    Args:
        shapes: the model's attention.
        exact: count the pairs the mask keeps, in place of all.

    Returns:
        Tokens: dense, where both sides are equal; exact, the first whole length. None if windows
        keep attention below the projections at every length.

    Example:
        >>> from headatlas.circuits.cost.shapes import uniform_shapes
        >>> crossover(uniform_shapes(2, d_model=4096, n_heads=32))
        8192.0
        >>> crossover(uniform_shapes(2, d_model=4096, n_heads=32, n_kv_heads=8))
        5120.0
    """
    counts = shapes.counts
    weights = sum(n * layer.weights for layer, n in counts.items())
    if not exact:
        return weights / sum(n * _pair_width(layer) for layer, n in counts.items())

    def crossed(seq_len: int) -> bool:
        pairs = sum(
            n * _pair_width(layer) * layer.pairs(seq_len, exact=True) for layer, n in counts.items()
        )
        return pairs >= seq_len * weights

    if all(layer.window is not None for layer in counts) and not crossed(1):
        limit = sum(n * _pair_width(layer) * (layer.window or 0) for layer, n in counts.items())
        if limit <= weights:  # pairs / N rises towards the window and never gets there
            return None
    low, high = 0, 1
    while not crossed(high):  # pairs / N never falls with N
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if crossed(middle) else (middle, high)
    return float(high)


def _pair_width(layer: LayerShape) -> int:
    return layer.n_heads * (layer.d_head + layer.d_value)


def check_mla(mla: str) -> None:
    """Refuse what is no way of decoding with latents.

    Raises:
        InputError: it is neither "absorbed" nor "expanded".
    """
    if mla not in ("absorbed", "expanded"):
        raise InputError(f"mla is 'absorbed' or 'expanded'; got {mla!r}.")
