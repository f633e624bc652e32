"""Validation of a probe call: every error says what is wrong, what arrived and what to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real

import torch
from torch import Tensor

from .masks import Mask
from .values import Match, Request, Scores, Weights

_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def check_request(request: Request, mask: Mask) -> None:
    """Raise unless the call is well formed (its value objects: see `check_kinds`).

    Args:
        request: The call.
        mask: Its mask.

    Raises:
        ValueError: Shapes, sizes or row indices do not fit together.
        TypeError: A tensor has the wrong kind of values.

    Example:
        >>> x = torch.zeros(1, 2, 3, 4)
        >>> check_request(Request(q=x, k=x, v=x, scores=Scores()), Mask())
    """
    _check_qkv(request)
    _check_mask(mask, request)
    _check_scores(request.scores, request)
    for index, match in enumerate(request.matches):
        _check_match(match, index, request)
    _check_places(request)
    if request.weights is not None:
        _check_weights(request.weights, request)
    if request.lse is not None:
        if not isinstance(request.lse, Tensor) or not request.lse.is_floating_point():
            raise TypeError("lse must be a floating-point tensor, as a former call returned it.")
        _check_shape("lse", request.lse, tuple(request.q.shape[:3]), "[batch, head, query]")


def check_kinds(mask: object, scores: object, matches: object, weights: object) -> None:
    """Raise unless the value objects of a call are what they should be.

    Args:
        mask: A `Mask`.
        scores: A `Scores`.
        matches: A sequence of `Match`.
        weights: A `Weights`, or None.

    Raises:
        TypeError: Something else arrived.

    Example:
        >>> check_kinds(Mask(), Scores(), (), None)
    """
    for name, value, kind in (("mask", mask, Mask), ("scores", scores, Scores)):
        if not isinstance(value, kind):
            raise TypeError(
                f"{name} must be a {kind.__name__}; got {type(value).__name__}. Leave it out for "
                f"the default, {kind.__name__}(). A mask or bias as a tensor goes into "
                "Scores(bias=...), as 0 and -inf."
            )
    if weights is not None and not isinstance(weights, Weights):
        raise TypeError(f"weights must be a Weights or None; got {type(weights).__name__}.")
    if isinstance(matches, Match):
        raise TypeError("matches must be a sequence; got a single Match. Write matches=[match].")
    if not isinstance(matches, Sequence):
        raise TypeError(
            f"matches must be a sequence of Match; got {type(matches).__name__}. For none, "
            "leave it out."
        )
    for index, match in enumerate(matches):
        if not isinstance(match, Match):
            raise TypeError(f"matches[{index}] must be a Match; got {type(match).__name__}.")


def _check_shape(name: str, tensor: Tensor, wanted: tuple[int, ...], words: str) -> None:
    if tuple(tensor.shape) != wanted:
        raise ValueError(
            f"{name} must have shape {words} = {list(wanted)}; got {list(tensor.shape)}."
        )


def _check_integers(name: str, tensor: object) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"{name} must be a tensor of integers; got {type(tensor).__name__}. Convert it with "
            "torch.as_tensor."
        )
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"{name} must hold integers; got {tensor.dtype}. Convert with .long().")


def _check_qkv(request: Request) -> None:
    q, k, v = request.q, request.k, request.v
    named = [("q", q), ("k", k)] + ([] if v is None else [("v", v)])
    for name, x in named:
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a torch tensor; got {type(x).__name__}.")
        if x.ndim != 4:
            raise ValueError(
                f"{name} must be [batch, head, position, width]; got {list(x.shape)}. "
                "Add the missing axes, for example x[None] for the batch."
            )
        if x.dtype not in _FLOATS:
            raise TypeError(f"{name} must be a floating-point tensor; got {x.dtype}.")
        if x.dtype != q.dtype or x.device != q.device:
            raise TypeError(
                f"q, k and v must share dtype and device; q is {q.dtype} on {q.device}, {name} is "
                f"{x.dtype} on {x.device}. Convert {name}."
            )
        if x.shape[0] != q.shape[0]:
            raise ValueError(f"{name} has batch {x.shape[0]} but q has {q.shape[0]}.")
    if v is None and request.lse is None:
        raise ValueError("v is None and no lse was given. Pass v, or the lse of a former call.")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q has d_key {q.shape[-1]} but k has {k.shape[-1]}; they must agree.")
    if 0 in (q.shape[1], q.shape[-1], 1 if v is None else v.shape[-1]):
        raise ValueError(
            f"heads and widths must be at least 1; q is {list(q.shape)}"
            + ("." if v is None else f", v is {list(v.shape)}.")
        )
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"q has {q.shape[1]} heads, not a multiple of k's {k.shape[1]}. Grouped-query "
            "attention needs a whole number of query heads per key/value head."
        )
    if v is not None and v.shape[1:3] != k.shape[1:3]:
        raise ValueError(
            f"v must have k's heads and keys {list(k.shape[1:3])}; got {list(v.shape[1:3])}."
        )


def _check_places(request: Request) -> None:
    """The further tensors of a call: floating point, and where q is."""
    scores, device = request.scores, request.q.device
    for name, x in (
        ("scores.bias", scores.bias),
        ("scores.sinks", scores.sinks),
        ("lse", request.lse),
    ):
        if x is not None and x.device != device:
            raise TypeError(f"{name} is on {x.device}, but q is on {device}. Move one of them.")


def _check_mask(mask: Mask, request: Request) -> None:
    batch, n_query, _ = request.sizes
    if isinstance(mask.window, bool) or not isinstance(mask.window, Integral | None):
        raise TypeError(
            f"window must be a whole number of keys or None; got {mask.window!r}. A mask without "
            "a window is Mask()."
        )
    if mask.window is not None and mask.window < 1:
        raise ValueError(f"window must be at least 1; got {mask.window}. None means no window.")
    if mask.q_pos is not None:
        _check_integers("mask.q_pos", mask.q_pos)
        _check_shape("mask.q_pos", mask.q_pos, (batch, n_query), "[batch, query]")
    if mask.k_range is not None:
        _check_integers("mask.k_range", mask.k_range)
        shapes = ((batch, 2), (batch, n_query, 2))
        if tuple(mask.k_range.shape) not in shapes:
            raise ValueError(
                f"mask.k_range must have shape [batch, 2] = {list(shapes[0])} or [batch, query, 2]"
                f" = {list(shapes[1])}; got {list(mask.k_range.shape)}."
            )


def _check_scores(scores: Scores, request: Request) -> None:
    batch, n_query, n_key = request.sizes
    heads = request.q.shape[1]
    for name, number in (("scale", scores.scale), ("softcap", scores.softcap)):
        if number is not None and not isinstance(number, Real):
            raise TypeError(f"scores.{name} must be a number or None; got {number!r}.")
    if scores.scale is not None and not math.isfinite(scores.scale):
        raise ValueError(f"scale must be finite; got {scores.scale}. None means d_key ** -0.5.")
    cap = scores.softcap
    if cap is not None and not (cap > 0 and math.isfinite(cap)):
        raise ValueError(f"softcap must be positive and finite; got {cap}. None means no cap.")
    if scores.sinks is not None:
        if not isinstance(scores.sinks, Tensor) or not scores.sinks.is_floating_point():
            raise TypeError("scores.sinks must be a floating-point tensor [head].")
        _check_shape("scores.sinks", scores.sinks, (heads,), "[head]")
    bias = scores.bias
    if bias is None:
        return
    if not isinstance(bias, Tensor):
        raise TypeError(f"scores.bias must be a tensor; got {type(bias).__name__}.")
    if not bias.is_floating_point():
        raise TypeError(
            f"scores.bias is added to the scores and must be floating point; got {bias.dtype}. "
            "Turn a boolean mask into 0 and -inf."
        )
    wanted = (batch, heads, n_query, n_key)
    fits = bias.ndim == 4 and bias.shape[3] == n_key
    if not fits or any(n not in (1, full) for n, full in zip(bias.shape, wanted, strict=True)):
        raise ValueError(
            f"scores.bias must broadcast to [batch, head, query, key] = {list(wanted)} with the "
            f"full key axis; got {list(bias.shape)}."
        )


def _check_match(match: Match, index: int, request: Request) -> None:
    batch, n_query, n_key = request.sizes
    sides = (("q_label", match.q_label, n_query), ("k_label", match.k_label, n_key))
    for side, label, length in sides:
        name = f"matches[{index}].{side}"
        _check_integers(name, label)
        words = "[batch, query]" if side == "q_label" else "[batch, key]"
        _check_shape(name, label, (batch, length), words)


def _check_weights(weights: Weights, request: Request) -> None:
    batch, n_query, _ = request.sizes
    n_heads = request.q.shape[1]
    heads = () if weights.heads is None else weights.heads
    if not isinstance(heads, Sequence) or not all(
        isinstance(h, Integral) and not isinstance(h, bool) for h in heads
    ):
        raise TypeError(
            f"weights.heads must be a sequence of head indices; got {weights.heads!r}. Write "
            "heads=(0, 3)."
        )
    bad = [h for h in heads if not 0 <= h < n_heads]
    if bad:
        raise ValueError(f"weights.heads must lie in 0..{n_heads - 1}; got {bad}.")
    if weights.dtype is not None and not weights.dtype.is_floating_point:
        raise TypeError(f"weights.dtype must be floating point; got {weights.dtype}.")
    _check_pool(weights)
    if weights.rows is None:
        return
    _check_integers("weights.rows", weights.rows)
    if weights.rows.ndim != 2 or weights.rows.shape[0] != batch:
        raise ValueError(
            f"weights.rows must have shape [batch, rows] with batch {batch}; got "
            f"{list(weights.rows.shape)}."
        )
    if weights.rows.numel():
        low, high = (int(x) for x in torch.aminmax(weights.rows))
        if low < -1 or high >= n_query:
            raise ValueError(
                f"weights.rows must lie in -1..{n_query - 1} (-1 is an unused slot); got values "
                f"from {low} to {high}."
            )


def _check_pool(weights: Weights) -> None:
    pool, reduce = weights.pool, weights.reduce
    if reduce not in ("mean", "max"):
        raise ValueError(f"weights.reduce must be 'mean' or 'max'; got {reduce!r}.")
    if pool is None:
        if reduce != "mean":
            raise ValueError(
                f"weights.reduce is {reduce!r} but there is no weights.pool to reduce. Pass "
                "pool=(rows, keys), or leave reduce out."
            )
        return
    whole = isinstance(pool, tuple) and len(pool) == 2
    if not whole or any(isinstance(n, bool) or not isinstance(n, Integral) for n in pool):
        raise TypeError(
            f"weights.pool must be a tuple of two whole numbers, query rows and keys per cell; "
            f"got {pool!r}."
        )
    if min(pool) < 1:
        raise ValueError(
            f"weights.pool must hold at least 1 row and 1 key per cell; got {pool}. None pools "
            "nothing."
        )
    if weights.rows is not None:
        raise ValueError(
            "weights.rows and weights.pool were both given, but the grid of a pool covers all "
            "rows. Leave one of them out."
        )
