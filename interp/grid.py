"""Where a model's tokens stand in an image: found by changing strips of it, not from its config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import PreTrainedModel

from .attach import AttentionCall, attach
from .errors import InputError, one_line
from .frames import unobserved
from .signals import Signal, noise, read_signal, run_signal
from .sites import Site, attention_sites, check_model
from .survey_probe import is_encoder_decoder

_MOST_STRIPS = 512  # to each side; beyond, what is asked is no grid of patches
_AT_ONCE = 16  # images a forward

_Cells = dict[tuple[int, ...], np.ndarray]  # by the shape of one image
_CELLS: WeakKeyDictionary[PreTrainedModel, tuple[tuple[Site, ...], _Cells]] = WeakKeyDictionary()


class _SeenError(Exception):
    """The first attention was reached; the rest of the forward need not run."""


def token_cells(
    model: PreTrainedModel, inputs: Signal | Tensor | Mapping[str, Any]
) -> Int[np.ndarray, "token 2"]:
    """Row and column of each token in the grid of an image's patches.

    A strip of noise is changed in noise, and the values that the first attention mixes tell which
    tokens saw it. A token's row is the first strip of the image's height that reaches it, a strip
    being as high as the tokens are apart; so for columns. A spectrogram counts as an image where
    tokens are patches of it (AST), with its first axis as rows.

    Args:
        model: a transformers model that reads a signal.
        inputs: images or sounds, as its processor gives them or as a tensor [batch, …]. Their
            shape counts, what they show does not.

    Returns:
        (row, column) of each token, from 0; (−1, −1) at tokens that stand for no part of the image
        (CLS, registers), and at all tokens where they form no grid.

    Raises:
        InputError: the model reads text, cannot read these, or cannot be hooked.

    Example:
        >>> from transformers import ViTConfig, ViTModel
        >>> config = ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        ...     intermediate_size=8, image_size=8, patch_size=4)
        >>> model = ViTModel(config).eval()
        >>> token_cells(model, torch.zeros(1, 3, 8, 8)).tolist()
        [[-1, -1], [0, 0], [0, 1], [1, 0], [1, 1]]
    """
    model = check_model(model)
    signal = inputs if isinstance(inputs, Signal) else read_signal(model, inputs)
    sites, shape = attention_sites(model), tuple(signal.values.shape[1:])
    surveyed, known = _CELLS.get(model, (None, {}))
    if surveyed is not sites:  # the model was changed since
        known = {}
        _CELLS[model] = sites, known
    if shape not in known:
        known[shape] = _Strips(model, signal.name, shape).cells()
    return known[shape].copy()


class _Strips:
    """Which tokens a changed strip of the signal reaches."""

    def __init__(self, model: PreTrainedModel, name: str, shape: tuple[int, ...]) -> None:
        self.model, self.name = model, name
        self.plain, self.other = noise((2, *shape), seed=1)

    def cells(self) -> np.ndarray:
        try:
            n_tokens = self._values(self.plain[None]).shape[1]
        except InputError:
            raise
        except Exception as error:  # whatever a model's own code raises
            raise InputError(
                f"{type(self.model).__name__} could not read {self.name} "
                f"{[1, *self.plain.shape]}: {type(error).__name__}: {one_line(error)}"
            ) from error
        none = np.full((n_tokens, 2), -1)
        if self.plain.ndim not in (2, 3):  # a wave has no height; a film has a third axis
            return none
        rows = self._along(-2)
        columns = None if rows is None else self._along(-1)
        if rows is None or columns is None:
            return none
        found = np.stack([rows, columns], 1)
        inside = (found >= 0).all(1)
        full = (found[inside].max(0) + 1).prod() == inside.sum() if inside.any() else False
        single = len(np.unique(found[inside], axis=0)) == inside.sum()
        apart = bool((found[~inside] == -1).all())
        return found if full and single and apart else none

    def _along(self, axis: int) -> np.ndarray | None:
        """The first strip along an axis that reaches each token, −1 where none does."""
        size = self.plain.shape[axis]
        first, every = self._reached([self._changed(axis, 0, to) for to in (1, size)])
        if first.sum() == every.sum():
            return None
        second = self._next(axis, 1)  # the line at which the second row of tokens begins
        step = max(1, self._next(axis, second + 1) - second)
        if size > step * _MOST_STRIPS:
            return None
        # padding makes the first strip lower than the others
        edges = [0, *range(second, size, step), size]
        strips = [self._changed(axis, *edges[n : n + 2]) for n in range(len(edges) - 1)]
        reached = self._reached(strips)
        return np.where(reached.any(0), reached.argmax(0), -1)

    def _next(self, axis: int, lines: int) -> int:
        """The last number of lines that reach no more tokens than so many do."""
        size = self.plain.shape[axis]
        first, every = self._reached([self._changed(axis, 0, to) for to in (lines, size)])
        if first.sum() == every.sum():
            return size
        low, high = lines, size
        while high - low > 1:
            middle = (low + high) // 2
            (reached,) = self._reached([self._changed(axis, 0, middle)])
            low, high = (low, middle) if reached.sum() > first.sum() else (middle, high)
        return low

    def _changed(self, axis: int, start: int, stop: int) -> Tensor:
        length = self.plain.shape[axis]
        at = torch.arange(length)
        inside = ((at >= start) & (at < stop)).reshape(-1, *[1] * (-axis - 1))
        return torch.where(inside, self.other, self.plain)

    def _reached(self, signals: list[Tensor]) -> Bool[np.ndarray, "signal token"]:
        parts = []
        for start in range(0, len(signals), _AT_ONCE):
            part = signals[start : start + _AT_ONCE]
            # the same image twice: its place in a batch alone may move a value by rounding
            values = self._values(torch.stack([self.plain, *part, self.plain]))
            moved = (values[1:] - values[:1]).norm(dim=-1)
            parts.append(moved[:-1] > 8 * moved[-1].max())
        return torch.cat(parts).cpu().numpy()

    def _values(self, signals: Tensor) -> Tensor:
        """What the first attention mixes, of each token [batch, token, number]."""
        seen: list[Tensor] = []

        def stop(call: AttentionCall) -> None:
            seen.append(call.v.transpose(1, 2).flatten(2).float())
            raise _SeenError

        signal = Signal(self.name, signals.to(self.model.device, self.model.dtype))
        more = {}
        if is_encoder_decoder(self.model):  # it is not reached, but the model asks for its ids
            more["decoder_input_ids"] = torch.zeros(
                len(signals), 1, dtype=torch.int64, device=self.model.device
            )
        try:
            with unobserved(self.model), attach(self.model, observers=[stop]):
                run_signal(self.model, signal, **more)
        except _SeenError:
            pass
        return seen[0]
