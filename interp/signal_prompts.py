"""Prompt sets of images or sounds: given ones, or noise with the spectrum of natural ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from .errors import InputError
from .forward import undisturbed
from .grid import token_cells
from .probes import MIN_PROMPTS, SIGNAL_SET, Prompts
from .signals import Signal, probe_signal, read_signal


def signal_prompts(
    model: PreTrainedModel,
    inputs: Any = None,
    *,
    n: int = 64,
    seed: int = 0,
    causal: bool = False,
) -> Prompts:
    """The set `signals`: one document per image or sound, its tokens numbered by place.

    Args:
        model: a transformers model that reads images or sounds.
        inputs: these, as its processor gives them or as a tensor [batch, …]; None makes noise.
        n: how many to make.
        seed: of the noise.
        causal: whether the model's queries see earlier keys only.

    Returns:
        The prompts; where tokens form a grid, `marks` has each one's row and column.

    Raises:
        InputError: fewer than 16, inputs that the model cannot read, or a model that cannot be
            hooked.
    """
    if inputs is None:
        with undisturbed(model), torch.no_grad():
            shape = probe_signal(model, 1, {}).values.shape[1:]
        signal = read_signal(model, pink_noise((n, *shape), seed))
    else:
        signal = read_signal(model, inputs)
        n = len(signal.values)
    if n < MIN_PROMPTS:
        raise InputError(
            f"classification takes {MIN_PROMPTS} images or sounds or more; got {n}. Fewer leave "
            "the bootstrap over them without meaning."
        )
    return _as_prompts(signal, token_cells(model, signal), causal)


def _as_prompts(signal: Signal, cells: np.ndarray, causal: bool) -> Prompts:
    shape = (len(signal.values), len(cells))
    places = np.broadcast_to(np.arange(len(cells)), shape)
    marks = {
        name: np.broadcast_to(cells[:, axis], shape) for axis, name in enumerate(("row", "column"))
    }
    return Prompts(
        SIGNAL_SET, places.copy(), np.ones(shape, bool), bos=False, causal=causal,
        marks=marks if (cells >= 0).any() else {}, signal=signal.values.float().cpu().numpy(),
    )  # fmt: skip


def pink_noise(shape: tuple[int, ...], seed: int) -> Float[Tensor, "*shape"]:
    """Random signals whose power falls as natural images' and sounds' does, with deviation 1.

    Power falls as 1/f² over height and width, as 1/f over time alone.

    Args:
        shape: [batch, time] of waves, else [batch, …, height, width].
        seed: of the noise.

    Example:
        >>> one = pink_noise((1, 3, 32, 32), seed=0)
        >>> round(float(one.std()), 3), float(one.diff(dim=-1).std()) < 1
        (1.0, True)

    Reference:
        Field 1987 (images); Voss and Clarke 1975 (sounds).
    """
    sizes = list(shape)
    axes = (-2, -1) if len(sizes) > 2 and sizes[-2] > 1 else (-1,)
    white = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    grids = [torch.fft.fftfreq(sizes[axis]).abs() for axis in axes[:-1]]
    grids.append(torch.fft.rfftfreq(sizes[-1]))
    squared = sum(g**2 for g in torch.meshgrid(*grids, indexing="ij"))
    radius = torch.as_tensor(squared).double().sqrt()
    radius[(0,) * len(axes)] = torch.inf  # no mean
    spectrum = torch.fft.rfftn(white, dim=axes) / radius ** (len(axes) / 2)
    made = torch.fft.irfftn(spectrum, s=[sizes[axis] for axis in axes], dim=axes)
    return (made / made.std(dim=tuple(range(1, len(sizes))), keepdim=True)).float()
