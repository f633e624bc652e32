"""The shapes that the cost of attention depends on: widths, heads, windows, latents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from types import MappingProxyType

from ...interp.errors import InputError, shown

MOST = 2**40 - 1
"""The largest length, width or count; products of all of them are still floats."""

MOST_LAYERS = 10_000


@dataclass(frozen=True)
class LatentShape:
    """The low-rank path of multi-head latent attention (MLA).

    A token's keys and values of all heads come from one latent of `d_latent` numbers; `d_rope`
    more, shared by all heads, carry its position. The query may have a latent of its own.

    Attributes:
        d_latent: d_c, width of the latent of keys and values.
        d_rope: d_R, width of the rotary key that all heads share; 0 if there is none.
        q_rank: width of the query's latent; None where queries are projected directly.

    Reference:
        DeepSeek-AI 2024 (DeepSeek-V2), section 2.1.
    """

    d_latent: int
    d_rope: int
    q_rank: int | None = None

    def __post_init__(self) -> None:
        _check_fields(self, may_be_zero="d_rope")


@dataclass(frozen=True)
class LayerShape:
    """The shape of one attention layer.

    Attributes:
        d_model: D, width of the residual stream.
        n_heads: h, query heads.
        n_kv_heads: g, key and value heads; a divisor of h. With a latent it equals h.
        d_head: d_k, width of a query or key of one head; with a latent its rotary part included.
        d_value: d_v, width of a value of one head.
        window: keys a query sees at most, itself included; None: all.
        causal: whether a query sees no later key.
        latent: the low-rank path of MLA; None for MHA, GQA and MQA.

    Raises:
        InputError: a number is missing, not positive, or contradicts another.
    """

    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_value: int
    window: int | None = None
    causal: bool = True
    latent: LatentShape | None = None

    def __post_init__(self) -> None:
        _check_fields(self)
        h, g = self.n_heads, self.n_kv_heads
        if h % g:
            raise InputError(
                f"{h} query heads cannot share {g} key-value heads evenly; the number of KV heads "
                f"must divide the number of heads."
            )
        if self.window is not None and not self.causal:
            raise InputError(
                "windows that look both ways are not counted here; leave the window out."
            )
        if self.latent is not None and g != h:
            raise InputError(f"a latent serves all {h} heads; leave out the {g} key-value heads.")
        if self.latent is not None and self.latent.d_rope >= self.d_head:
            raise InputError(
                f"the rotary part of a key ({self.latent.d_rope}) must be narrower than the key "
                f"({self.d_head}); the head's width counts it in."
            )

    @property
    def d_plain(self) -> int:
        """Width of the part of a key that comes out of the latent: d_k − d_R (MLA alone)."""
        return self.d_head - (self.latent.d_rope if self.latent else 0)

    @property
    def query_weights(self) -> int:
        """Weights that make queries: D·h·d_k, or D·r + r·h·d_k through a latent of r."""
        width = self.n_heads * self.d_head
        if self.latent is None or self.latent.q_rank is None:
            return self.d_model * width
        return (self.d_model + width) * self.latent.q_rank

    @property
    def down_weights(self) -> int:
        """Weights that make keys and values, D·g·(d_k + d_v); in MLA the latent, D·(d_c + d_R)."""
        if self.latent is None:
            return self.d_model * self.n_kv_heads * (self.d_head + self.d_value)
        return self.d_model * self.cache_width

    @property
    def up_weights(self) -> int:
        """Weights from the latent to each head's keys and values: d_c·h·(d_k − d_R + d_v), or 0."""
        if self.latent is None:
            return 0
        return self.latent.d_latent * self.n_heads * (self.d_plain + self.d_value)

    @property
    def output_weights(self) -> int:
        """Weights of W_O: h·d_v·D."""
        return self.n_heads * self.d_value * self.d_model

    @property
    def weights(self) -> int:
        """All projection weights: 4D² for MHA with h·d_k = h·d_v = D."""
        return self.query_weights + self.down_weights + self.up_weights + self.output_weights

    @property
    def cache_width(self) -> int:
        """Numbers kept per token: g·(d_k + d_v), in MLA d_c + d_R."""
        if self.latent is None:
            return self.n_kv_heads * (self.d_head + self.d_value)
        return self.latent.d_latent + self.latent.d_rope

    @property
    def kind(self) -> str:
        """`"MLA"`, `"MHA"` (g = h), `"MQA"` (g = 1) or `"GQA"`."""
        if self.latent is not None:
            return "MLA"
        if self.n_kv_heads == self.n_heads:
            return "MHA"
        return "MQA" if self.n_kv_heads == 1 else "GQA"

    def keys_read(self, context: int) -> int:
        """Keys that one query at the end of `context` tokens reads, its own included."""
        return context if self.window is None else min(context, self.window)

    def keys_kept(self, context: int) -> int:
        """Tokens to keep for the next query after `context` tokens: at most window − 1."""
        return context if self.window is None else min(context, self.window - 1)

    def pairs(self, seq_len: int, *, exact: bool) -> int:
        """Query-key pairs of one head over `seq_len` tokens.

        Dense: N², what hardware computes that masks after multiplying. Exact: those that the mask
        keeps, N(N + 1)/2 for a causal layer, and w(w + 1)/2 + (N − w)·w with a window w < N.
        """
        if not (exact and self.causal):
            return seq_len * seq_len
        near = self.keys_read(seq_len)
        return near * (near + 1) // 2 + (seq_len - near) * near


@dataclass(frozen=True)
class AttentionShapes:
    """The attention layers of a model, in order.

    Attributes:
        layers: one shape per attention layer; layers without attention do not count.
        name: how tables call the model.
    """

    layers: tuple[LayerShape, ...]
    name: str = "these shapes"

    def __post_init__(self) -> None:
        if not self.layers:
            raise InputError(f"{self.name} has no attention layers; there is nothing to cost.")
        check_count("the number of layers", len(self.layers), MOST_LAYERS)
        if len({layer.causal for layer in self.counts}) > 1:
            raise InputError(f"{self.name} mixes causal and other layers; cost each part alone.")

    @cached_property
    def counts(self) -> Mapping[LayerShape, int]:
        """How many layers have each shape, in order of first appearance."""
        return MappingProxyType(Counter(self.layers))

    @property
    def causal(self) -> bool:
        """Whether its layers see no later key, so that it can decode from a cache."""
        return self.layers[0].causal


def uniform_shapes(
    layers: int,
    *,
    n_heads: int,
    d_model: int | None = None,
    n_kv_heads: int | None = None,
    d_head: int | None = None,
    d_value: int | None = None,
    window: int | None = None,
    latent: LatentShape | None = None,
    name: str = "these shapes",
) -> AttentionShapes:
    """Shapes of a causal model whose layers are all alike.

    Args:
        layers: L, how many attention layers.
        n_heads: h, query heads.
        d_model: D; h·d_head if unsaid.
        n_kv_heads: g; h if unsaid (MHA).
        d_head: d_k; D / h if unsaid.
        d_value: d_v; d_head if unsaid (with a latent: d_head without its rotary part).
        window: keys a query sees at most; None: all.
        latent: of MLA.
        name: how tables call it.

    Raises:
        InputError: neither d_model nor d_head is given, or the numbers contradict each other.

    Example:
        >>> shapes = uniform_shapes(80, d_model=8192, n_heads=64)
        >>> shapes.layers[0].d_head, shapes.layers[0].kind
        (128, 'MHA')
    """
    check_count("layers", layers, MOST_LAYERS)
    check_count("n_heads", n_heads)
    for label, value in (("d_model", d_model), ("d_head", d_head)):
        if value is not None:
            check_count(label, value)
    if d_head is None:
        if d_model is None:
            raise InputError("the width of the model or of a head is missing (d_model, d_head).")
        if d_model % n_heads:
            raise InputError(
                f"d_model = {d_model} is no multiple of {n_heads} heads; give the head's width too."
            )
        d_head = d_model // n_heads
    if d_value is None:
        d_value = d_head - (latent.d_rope if latent else 0)
        if d_value <= 0 and latent is not None:
            d_value = d_head  # the layer's own check names what is wrong
    layer = LayerShape(
        d_model=n_heads * d_head if d_model is None else d_model, n_heads=n_heads,
        n_kv_heads=n_heads if n_kv_heads is None else n_kv_heads, d_head=d_head, d_value=d_value,
        window=window, latent=latent,
    )  # fmt: skip
    return AttentionShapes((layer,) * layers, name)


def _check_fields(value: LatentShape | LayerShape, *, may_be_zero: str = "") -> None:
    for field in fields(value):
        number = getattr(value, field.name)
        if field.name == "causal" and type(number) is not bool:
            raise InputError(f"causal must be True or False; got {number!r}.")
        if field.name == "latent" and not isinstance(number, LatentShape | None):
            raise InputError(f"latent must be a LatentShape or None; got {number!r}.")
        if field.name in ("causal", "latent") or (field.default is None and number is None):
            continue
        if not (field.name == may_be_zero and type(number) is int and number == 0):
            check_count(field.name, number)


def check_count(name: str, value: object, most: int = MOST) -> None:
    """Refuse what is not a whole number from 1 to `most`.

    Raises:
        InputError: it is not; the message calls it `name`.
    """
    if type(value) is not int or not 1 <= value <= most:
        raise InputError(f"{name} must be a whole number from 1 to {most:,}; got {shown(value)}.")
