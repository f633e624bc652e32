"""Rotary positions: pairs of dimensions turned by an angle that grows with the position."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import InputError, shown
from .checks import MOST, WIDEST, check_count, check_flag, check_number

FASTEST = WIDEST / MOST  # radians per position whose angles stay finite at any position

# cos and sin of every angle, [batch or 1, 1, pos, pairs]
Rotation = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding (RoPE) of queries and keys.

    Pair m of a head turns by the angle position · f_m, so that q·k depends on the distance alone:

        (a, b) → (a cos − b sin, b cos + a sin),   f_m = theta^(−2m / d_rotary).

    Angles are computed in float32 whatever the weights' dtype, as the models were trained.

    Args:
        theta: base of the default frequencies.
        d_rotary: how many leading dimensions turn; None means all.
        interleaved: pairs are (0, 1), (2, 3), … (GPT-J) instead of (m, m + d_rotary / 2) (GPT-NeoX,
            Llama).
        inv_freq: the frequencies f_m themselves, in place of theta: scaled variants.
        attention_factor: factor on cos and sin (YaRN).

    Raises:
        InputError: an odd d_rotary; a theta or attention_factor that is not positive and finite;
            an inv_freq that is no tuple, or holds what is negative or not finite; an interleaved
            that is no bool; a theta so small or a frequency so large that angles overflow.

    Example:
        >>> rope = Rope(theta=100.0)
        >>> rope.frequencies(4)
        tensor([1.0000, 0.1000])
        >>> rotation = rope.rotation(torch.tensor([[0, 1]]), 4, torch.float32)
        >>> rotate(torch.tensor([[[[1.0, 0, 0, 0], [1.0, 0, 0, 0]]]]), rotation)
        tensor([[[[1.0000, 0.0000, 0.0000, 0.0000],
                  [0.5403, 0.0000, 0.8415, 0.0000]]]])

    Reference: Su et al. 2021, equation 34; Peng et al. 2023 for YaRN's factor.
    """

    theta: float = 10_000.0
    d_rotary: int | None = None
    interleaved: bool = False
    inv_freq: tuple[float, ...] | None = None
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        check_number("theta", self.theta, least=1 / FASTEST)
        check_number("attention_factor", self.attention_factor)
        if self.d_rotary is not None:
            check_count("d_rotary", self.d_rotary)
            if self.d_rotary % 2:
                raise InputError(f"d_rotary must be even, RoPE turns pairs; got {self.d_rotary}.")
        check_flag("interleaved", self.interleaved)
        if self.inv_freq is not None and not isinstance(self.inv_freq, tuple):
            raise InputError(
                f"inv_freq must be a tuple of numbers or None; got {shown(self.inv_freq)}."
            )
        for frequency in self.inv_freq or ():
            check_number("inv_freq", frequency, least=0.0, most=FASTEST)

    def width(self, d_head: int) -> int:
        """How many dimensions of a head of width `d_head` turn."""
        return d_head if self.d_rotary is None else self.d_rotary

    def check_width(self, d_head: int) -> None:
        """Refuse heads that these rotations do not fit.

        Raises:
            InputError: an odd width, a head narrower than d_rotary, or the wrong number of
                frequencies.
        """
        width = self.width(d_head)
        if width % 2 or width > d_head:
            raise InputError(
                f"RoPE turns pairs among the {d_head} dimensions of a head; it cannot turn {width}."
                " Give an even d_rotary, at most the head's width."
            )
        if self.inv_freq is not None and len(self.inv_freq) != width // 2:
            raise InputError(
                f"{width} rotary dimensions need {width // 2} frequencies; inv_freq has "
                f"{len(self.inv_freq)}."
            )

    def frequencies(self, d_head: int) -> Float[Tensor, " pair"]:
        """The angle per position of each pair, in radians."""
        if self.inv_freq is not None:
            return torch.tensor(self.inv_freq, dtype=torch.float32)
        width = self.width(d_head)
        return 1.0 / (self.theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width))

    def rotation(
        self, positions: Int[Tensor, "batch pos"], d_head: int, dtype: torch.dtype
    ) -> Rotation:
        """cos and sin of every angle, for `rotate`.

        Args:
            positions: position of each token.
            d_head: width of the heads to turn.
            dtype: type of the heads to turn.

        Returns:
            cos and sin [batch, 1, pos, pair].
        """
        frequencies = self.frequencies(d_head).to(positions.device)
        angles = positions[:, None, :, None].float() * frequencies
        factor = self.attention_factor
        return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)


def rotate(
    x: Float[Tensor, "batch head pos d_head"], rotation: Rotation, *, interleaved: bool = False
) -> Float[Tensor, "batch head pos d_head"]:
    """Turn the leading dimensions of every head; those beyond the rotation pass through.

    Args:
        x: queries or keys.
        rotation: from `Rope.rotation`.
        interleaved: how pairs are laid out, see `Rope`.

    Returns:
        x turned, in the same layout.
    """
    cos, sin = rotation
    width = 2 * cos.shape[-1]
    turning, rest = x[..., :width], x[..., width:]
    if interleaved:
        a, b = turning[..., 0::2], turning[..., 1::2]
    else:
        a, b = turning.chunk(2, dim=-1)
    pair = (a * cos - b * sin, b * cos + a * sin)
    turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat([turned, rest], -1) if rest.shape[-1] else turned
