"""The rotation of each layer's queries and keys, measured on the model itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...interp.attach import AttentionCall, attach
from ...interp.errors import InputError
from ...interp.forward import embedding_weight, run_base
from ...interp.frames import unobserved
from ...interp.sites import Site, unbridged
from ...interp.sources import sources
from ...interp.tokens import context_length

_TOKENS = 6
_FARTHEST = 64
_SLACK = {torch.float64: 1e-4, torch.float32: 1e-4}  # most models turn in float32
_NARROW_SLACK = 4e-2  # bfloat16 rounds cos, sin and the product


@dataclass(frozen=True, eq=False)
class Rotation:
    """RoPE of one layer: pair m of a head's dimensions turns by position · frequencies[m].

    Args:
        frequencies: radians per position, [pair].
        interleaved: pairs are (0, 1), (2, 3), …; else (m, m + n_pairs). Dimensions beyond
            2 · n_pairs do not turn.
    """

    frequencies: Float[Tensor, " pair"]
    interleaved: bool

    @property
    def width(self) -> int:
        """How many leading dimensions turn."""
        return 2 * len(self.frequencies)

    def turn(
        self, x: Float[Tensor, "*rows d_head"], positions: int
    ) -> Float[Tensor, "*rows d_head"]:
        """x R: each row turned as a query that many positions after position 0."""
        angles = self.frequencies.double() * positions
        cos, sin = angles.cos().to(x), angles.sin().to(x)
        a, b = _pairs(x, self.width, self.interleaved)
        pair = a * cos - b * sin, b * cos + a * sin
        turned = torch.stack(pair, -1).flatten(-2) if self.interleaved else torch.cat(pair, -1)
        return torch.cat([turned, x[..., self.width :]], -1)


def rotations(model: Any) -> Mapping[Site, Rotation | None]:
    """How queries of each attention module turn with their position.

    Each of 6 tokens is run alone, at positions 0, 1, 2, 4, … 64: a lone token attends to itself, so
    what arrives at a layer is the same at each position, and queries differ by the rotation alone.
    Angles are read off pair by pair, refined from near to far, and must then explain all queries.
    Frequencies that depend on the length of the text are those of a short text.

    Args:
        model: a transformers model.

    Returns:
        Site -> rotation; None where queries are not rotated.

    Raises:
        InputError: queries that turn in a way that is not RoPE on the leading dimensions, or a
            model that cannot be told positions.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=16,
        ...     num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2)
        >>> (rotation,) = rotations(LlamaForCausalLM(config)).values()
        >>> rotation.frequencies, rotation.interleaved
        (tensor([1.0000, 0.0100], dtype=torch.float64), False)

    Reference: Su et al. 2021, equation 34.
    """
    model = unbridged(model)
    turning = [site for site, found in sources(model).items() if found.q.rotated]
    found: dict[Site, Rotation | None] = dict.fromkeys(sources(model))
    if not turning:
        return found
    queries, positions = _queries(model)
    last: Rotation | None = None
    for site in turning:
        seen = queries[site].double().unflatten(0, (len(positions), _TOKENS))
        slack = _SLACK.get(queries[site].dtype, _NARROW_SLACK)
        last = _fit(seen.flatten(1, 2), positions, slack, last)
        if last is None:
            raise InputError(
                f"the queries of {site.module} turn with their position, but not as RoPE turns "
                "leading pairs of dimensions; composition through its pattern cannot be computed. "
                "Ask for kinds=('V',)."
            )
        found[site] = last
    return found


def _queries(model: Any) -> tuple[dict[Site, Tensor], list[int]]:
    """Queries [position · token, head, d_head] of each site, and the positions."""
    far = min(_FARTHEST, (context_length(model) or _FARTHEST) - 1)
    positions = [0, *(2**i for i in range(far.bit_length()) if 2**i <= far)]
    table = embedding_weight(model)
    step = max(1, table.shape[0] // _TOKENS)
    tokens = torch.arange(_TOKENS, device=table.device) * step % table.shape[0]
    ids = tokens.repeat(len(positions))[:, None]
    where = torch.tensor(positions, device=table.device).repeat_interleave(_TOKENS)[:, None]
    seen: dict[Site, Tensor] = {}

    def observe(call: AttentionCall) -> None:
        call.site.check_queries("the rotation of queries")
        seen[call.site] = call.q[:, :, 0].detach().clone()

    try:
        with unobserved(model), attach(model, observers=[observe]):
            run_base(model, ids, position_ids=where)
    except TypeError as error:
        raise InputError(
            f"{type(model).__name__} cannot be told positions ({error}), so its rotation cannot be "
            "measured. Ask for kinds=('V',)."
        ) from error
    return seen, positions


def _fit(
    seen: Tensor, positions: Sequence[int], slack: float, last: Rotation | None
) -> Rotation | None:
    """The rotation that takes seen[0] [row, head, d_head] to each other position's, if one does."""
    d_head = seen.shape[-1]
    widths = list(range(d_head - d_head % 2, 0, -2))
    layouts = [(width, interleaved) for width in widths for interleaved in (False, True)]
    if last is not None:
        layouts.insert(0, (last.width, last.interleaved))
    size = seen[0].abs().amax()
    for width, interleaved in layouts:
        rest = (seen[1:, ..., width:] - seen[:1, ..., width:]).abs()
        if rest.numel() and bool(rest.amax() > slack * size):
            continue  # what lies beyond turns too
        fitted = Rotation(_angles(seen, positions, width, interleaved), interleaved)
        gaps = [
            (fitted.turn(seen[0], position) - there).abs().amax()
            for position, there in zip(positions[1:], seen[1:], strict=True)
        ]
        if max(gaps) <= slack * size:
            return fitted
    return None


def _angles(seen: Tensor, positions: Sequence[int], width: int, interleaved: bool) -> Tensor:
    """Radians per position of each pair, each farther position refining the nearer ones' answer."""
    a0, b0 = _pairs(seen[0], width, interleaved)
    frequency = a0.new_zeros(width // 2)
    for position, there in zip(positions[1:], seen[1:], strict=True):
        a, b = _pairs(there, width, interleaved)
        angle = torch.atan2(
            (a0 * b - b0 * a).flatten(0, -2).sum(0), (a0 * a + b0 * b).flatten(0, -2).sum(0)
        )
        rest = torch.remainder(angle - position * frequency + torch.pi, 2 * torch.pi) - torch.pi
        frequency = frequency + rest / position
    return frequency.cpu()


def _pairs(x: Tensor, width: int, interleaved: bool) -> tuple[Tensor, Tensor]:
    turning = x[..., :width]
    if interleaved:
        return turning[..., 0::2], turning[..., 1::2]
    a, b = turning.chunk(2, -1)
    return a, b
