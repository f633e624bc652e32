"""What an attention layer is made of, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import InputError, shown
from .checks import WIDEST, check_count, check_flag, check_number, check_part
from .rope import Rope


@dataclass(frozen=True)
class Latent:
    """The widths of multi-head latent attention (MLA).

    Keys and values of all heads come from one latent per token, c = norm(X W_DKV), which is what
    the cache keeps, next to one rotated key per token that all heads share:

        k_h = [c W_UK_h ; rope(X W_KR)],   v_h = c W_UV_h,   q_h = [nope part ; rope(rope part)].

    Args:
        d_latent: width d_c of the latent.
        d_rope: width d_R of the shared rotary key; even.
        d_nope: width of a head's key without position.
        d_value: width of a head's value.
        q_rank: width of the queries' latent, norm(X W_DQ); None projects queries directly.
        norm_eps: epsilon of the latents' RMSNorms.

    Raises:
        InputError: a width that is no whole number from 1, an odd d_rope, or a norm_eps that is
            negative or not finite.

    Example:
        >>> latent = Latent(d_latent=16, d_rope=4, d_nope=8, d_value=6)
        >>> latent.d_nope + latent.d_rope
        12

    Reference: DeepSeek-AI 2024 (DeepSeek-V2), equations 9 to 19.
    """

    d_latent: int
    d_rope: int
    d_nope: int
    d_value: int
    q_rank: int | None = None
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("d_latent", "d_rope", "d_nope", "d_value"):
            check_count(name, getattr(self, name))
        if self.q_rank is not None:
            check_count("q_rank", self.q_rank)
        if self.d_rope % 2:
            raise InputError(f"d_rope must be even, RoPE turns pairs; got {self.d_rope}.")
        check_number("norm_eps", self.norm_eps, least=0.0)


@dataclass(frozen=True)
class QKNorm:
    """RMSNorm of each head's queries and keys before RoPE: x / √(mean x² + eps) · gain.

    Args:
        eps: added to the mean square.
        unit_offset: the gain is 1 + weight (Gemma) instead of the weight itself.

    Raises:
        InputError: an eps that is negative or not finite, or a unit_offset that is no bool.

    Example:
        >>> QKNorm(unit_offset=True)
        QKNorm(eps=1e-06, unit_offset=True)

    Reference: Henry et al. 2020; Dehghani et al. 2023.
    """

    eps: float = 1e-6
    unit_offset: bool = False

    def __post_init__(self) -> None:
        check_number("eps", self.eps, least=0.0)
        check_flag("unit_offset", self.unit_offset)


@dataclass(frozen=True)
class Traits:
    """What differs between families besides the heads' shape.

    Args:
        causal: a query sees no later key.
        window: a query at i sees keys j with i − window < j; without causality |i − j| < window.
        scale: factor on q·k; None means 1/√d_k.
        softcap: scores become softcap · tanh(score / softcap).
        sinks: one learned logit per head that joins the softmax and carries no value.
        bias: which projections have a bias: "none", "qkv", or "all", W_O included. Of MLA's input
            projections, those from the residual stream have it.
        qk_norm: norm of queries and keys per head.

    Raises:
        InputError: a window that is no whole number from 1, a softcap that is not positive, a scale
            that is not finite, an unknown bias, or a flag or a norm of another kind.

    Example:
        >>> Traits(window=4).window
        4
    """

    causal: bool = True
    window: int | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False
    bias: Literal["none", "qkv", "all"] = "none"
    qk_norm: QKNorm | None = None

    def __post_init__(self) -> None:
        if self.window is not None:
            check_count("window", self.window)
        if self.softcap is not None:
            check_number("softcap", self.softcap)
        if self.scale is not None:  # None means 1/√d_k
            check_number("scale", self.scale, least=-WIDEST)
        if not isinstance(self.bias, str) or self.bias not in ("none", "qkv", "all"):
            raise InputError(f"bias is 'none', 'qkv' or 'all'; got {shown(self.bias)}.")
        check_flag("causal", self.causal)
        check_flag("sinks", self.sinks)
        check_part("qk_norm", self.qk_norm, QKNorm)


@dataclass(frozen=True)
class AttentionConfig:
    """One attention layer: how many heads of which width, and how they attend.

    n_kv_heads = n_heads is multi-head attention (MHA), 1 is multi-query (MQA), between them
    grouped-query (GQA), where query head h reads key head h // (n_heads / n_kv_heads); with a
    `Latent` it is MLA.

    Args:
        d_model: width of the residual stream.
        n_heads: query heads.
        n_kv_heads: key and value heads; None means n_heads. Not with a latent.
        d_head: width of a head; None means d_model / n_heads. Not with a latent.
        latent: the widths of MLA.
        rope: rotary positions; None means none. With a latent they act on its rotary part alone.
        traits: causality, window, scale, softcap, sinks, biases, QK-norm.

    Raises:
        InputError: numbers out of range or that do not fit together, or a part of another kind.

    Example:
        >>> AttentionConfig(d_model=32, n_heads=4, n_kv_heads=2).kind
        'GQA'
        >>> AttentionConfig(d_model=8, n_heads=2).d_key
        4

    Reference: Vaswani et al. 2017 (MHA); Shazeer 2019 (MQA); Ainslie et al. 2023 (GQA);
    DeepSeek-AI 2024 (MLA).
    """

    d_model: int
    n_heads: int
    n_kv_heads: int | None = None
    d_head: int | None = None
    latent: Latent | None = None
    rope: Rope | None = None
    traits: Traits = Traits()

    def __post_init__(self) -> None:
        for name in ("d_model", "n_heads"):
            check_count(name, getattr(self, name))
        check_part("latent", self.latent, Latent)
        check_part("rope", self.rope, Rope)
        check_part("traits", self.traits, Traits, optional=False)
        if self.latent is not None:
            self._check_latent()
            return
        if self.d_head is None and self.d_model % self.n_heads:
            raise InputError(
                f"d_model {self.d_model} does not split into {self.n_heads} heads. Choose another "
                "n_heads, or give d_head."
            )
        check_count("d_head", self.d_key)
        check_count("n_kv_heads", self.kv_heads)
        if self.n_heads % self.kv_heads:
            raise InputError(
                f"n_heads must be a multiple of n_kv_heads; got {self.n_heads} and {self.kv_heads}."
            )
        if self.rope is not None:
            self.rope.check_width(self.d_key)

    def _check_latent(self) -> None:
        if self.n_kv_heads is not None or self.d_head is not None:
            raise InputError(
                "a latent gives every query head its own keys, values and widths. Leave n_kv_heads "
                "and d_head out."
            )
        if self.traits.qk_norm is not None:
            raise InputError("qk_norm is not defined with a latent, which has norms of its own.")
        if self.rope is not None and self.latent is not None:
            self.rope.check_width(self.latent.d_rope)
            if self.rope.width(self.latent.d_rope) != self.latent.d_rope:
                raise InputError(
                    f"with a latent RoPE turns all d_rope = {self.latent.d_rope} dimensions; got "
                    f"d_rotary {self.rope.width(self.latent.d_rope)}. Leave d_rotary out."
                )

    @property
    def kind(self) -> Literal["MHA", "MQA", "GQA", "MLA"]:
        """The variant's name; with one query head MHA and MQA are the same, called MHA."""
        if self.latent is not None:
            return "MLA"
        if self.kv_heads == self.n_heads:
            return "MHA"
        return "MQA" if self.kv_heads == 1 else "GQA"

    @property
    def kv_heads(self) -> int:
        """Key and value heads; with a latent as many as query heads."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def d_key(self) -> int:
        """Width of a query or key."""
        if self.latent is not None:
            return self.latent.d_nope + self.latent.d_rope
        return self.d_model // self.n_heads if self.d_head is None else self.d_head

    @property
    def d_value(self) -> int:
        """Width of a value."""
        return self.d_key if self.latent is None else self.latent.d_value

    @property
    def scale(self) -> float:
        """The factor on q·k."""
        return self.d_key**-0.5 if self.traits.scale is None else self.traits.scale
