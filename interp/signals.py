"""Images and sounds: what a model that reads no text is run on."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig

from .brief import Brief
from .errors import InputError, one_line
from .forward import undisturbed

_IMAGES, _FEATURES, _WAVES = "pixel_values", "input_features", "input_values"
_SIGNALS = (_IMAGES, _FEATURES, _WAVES)
# what a processor says of padding; where it has none, nothing need be told
_PADDING = ("attention_mask", "pixel_mask", "padding_mask")


@dataclass(frozen=True, eq=False, repr=False)
class Signal(Brief):
    """A batch of images or sounds.

    Args:
        name: the model's keyword for them: pixel_values, input_features or input_values.
        values: one after the other along the first axis.
    """

    name: str
    values: Float[Tensor, "batch ..."]

    def rows(self, start: int, stop: int) -> Signal:
        """Some of them."""
        return Signal(self.name, self.values[start:stop])


def reads_signal(model: PreTrainedModel) -> bool:
    """Whether the model reads images or sounds, and so no token ids (in its encoder)."""
    return model.main_input_name in _SIGNALS


def read_signal(model: PreTrainedModel, given: Any) -> Signal:
    """A batch of images or sounds as the model takes it, on its device and in its dtype.

    Args:
        model: a transformers model that reads a signal.
        given: the tensor [batch, …], or what the model's processor gives under return_tensors="pt".

    Raises:
        InputError: a model that reads text, something else, numbers that are not finite, or a
            processor's output with more than the signal, such as padding.

    Example:
        >>> from transformers import ViTConfig, ViTModel
        >>> config = ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        ...     intermediate_size=8, image_size=8, patch_size=4)
        >>> read_signal(ViTModel(config), torch.zeros(1, 3, 8, 8))
        Signal(name='pixel_values', values=[1, 3, 8, 8] float32)
    """
    name, kind = model.main_input_name, type(model).__name__
    if not reads_signal(model):
        raise InputError(f"{kind} reads {name}, neither images nor sounds.")
    values = given
    if isinstance(given, Mapping):
        values = given.get(name)
        masks = {key for key, mask in given.items() if key in _PADDING and _is_full(mask)}
        strange = [key for key in given if key != name and key not in masks]
        if strange:
            raise InputError(
                f"{kind} reads {name}; what was given holds {strange[0]} besides, which is not "
                "read here. Pass images of one size, or sounds of one length, without padding."
            )
    if not isinstance(values, Tensor) or not values.is_floating_point() or values.ndim < 2:
        got = (
            f"{values.dtype} {tuple(values.shape)}"
            if isinstance(values, Tensor)
            else type(values).__name__
        )
        raise InputError(
            f"{kind} reads {name}: a tensor of floats [batch, …], or its processor's output under "
            f'return_tensors="pt". Got {got}.'
        )
    if not values.numel() or not bool(values.isfinite().all()):
        raise InputError(
            f"{name} {list(values.shape)} is empty or holds numbers that are not finite."
        )
    return Signal(name, values.to(model.device, model.dtype))


def _is_full(mask: Any) -> bool:
    whole = isinstance(mask, Tensor) and not mask.is_floating_point()
    return whole and bool((mask != 0).all())


def run_signal(
    model: PreTrainedModel, signal: Signal, *, whole: bool = False, grad: bool = False, **more: Any
) -> Any:
    """Run the model in eval mode, by default without its head where its class has a base model.

    Args:
        model: a transformers model that reads a signal.
        signal: what it reads.
        whole: with its head.
        grad: whether to record gradients.
        **more: further keywords; an encoder-decoder model needs `decoder_input_ids`.

    Returns:
        The model's output object.

    Example:
        >>> from transformers import ViTConfig, ViTModel
        >>> config = ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        ...     intermediate_size=8, image_size=8, patch_size=4)
        >>> model = ViTModel(config)
        >>> run_signal(model, Signal("pixel_values", torch.zeros(1, 3, 8, 8)))[0].shape
        torch.Size([1, 5, 8])
    """
    base = model.base_model
    bare = not whole and signal.name in inspect.signature(base.forward).parameters
    part: nn.Module = base if bare else model
    with undisturbed(part), nullcontext() if grad else torch.no_grad():
        return part(**signal_options(part, signal), **more)


def signal_options(model: nn.Module, signal: Signal) -> dict[str, Any]:
    """Keywords of a forward on a signal.

    Args:
        model: the model, or the part of it that runs.
        signal: what it reads.
    """
    options: dict[str, Any] = {signal.name: signal.values}
    takes = inspect.signature(model.forward).parameters
    if "interpolate_pos_encoding" in takes:
        size = _first(getattr(model, "config", None), "image_size")
        height, width = (size, size) if isinstance(size, int) else _pair(size)
        if height and tuple(signal.values.shape[-2:]) != (height, width):
            options["interpolate_pos_encoding"] = True
    if "use_cache" in takes:
        options["use_cache"] = False
    return options


def probe_signal(model: PreTrainedModel, n: int, more: Mapping[str, Any]) -> Signal:
    """Noise of a shape that the model takes, found by trying the likely ones.

    Args:
        model: the model, in eval mode.
        n: how many images or sounds.
        more: further keywords of its forward.

    Raises:
        InputError: it runs on none of the shapes.
    """
    failed, tried = "", []
    for shape in _shapes(model):
        signal = Signal(
            model.main_input_name, noise((n, *shape), seed=0).to(model.device, model.dtype)
        )
        try:
            model(**signal_options(model, signal), **more)
            return signal
        except Exception as error:  # whatever a model's own code raises
            failed = failed or f"{type(error).__name__}: {one_line(error)}"
            tried.append(str([n, *shape]))
    raise InputError(
        f"{type(model).__name__} could not run on {model.main_input_name} of "
        f"{' or '.join(tried)} alone, before any hook: {failed}"
    )


def noise(shape: tuple[int, ...], seed: int) -> Float[Tensor, "*shape"]:
    """White noise of standard deviation 1, the same on every machine and device."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _shapes(model: PreTrainedModel) -> Iterator[tuple[int, ...]]:
    """Shapes of one image or sound, likeliest first."""
    config = model.config
    if model.main_input_name == _IMAGES:
        channels = _first(config, "num_channels", "in_channels", "in_chans") or 3
        size = _first(config, "image_size", "img_size", "input_size") or 224
        image = (channels, *((size, size) if isinstance(size, int) else _pair(size)))
        frames = _first(config, "num_frames")
        yield from [image] if frames is None else [(frames, *image), image]
        return
    bins = _first(
        config, "num_mel_bins", "feature_size", "n_mels", "mel_bins", "input_feat_per_channel",
        "feature_projection_input_dim", "input_dim",
    ) or 80  # fmt: skip
    length = _first(config, "max_length", "max_source_positions") or 64
    if model.main_input_name == _WAVES and _first(config, "num_mel_bins") is None:
        yield from ((4000,), (1, 4000), (16_000,))
        return
    for frames in (length, 2 * length, 128):
        shapes = ((bins, frames), (frames, bins))
        yield from reversed(shapes) if model.main_input_name == _WAVES else shapes


def _first(config: Any, *names: str) -> Any:
    """The first of these options that a config has, or one of its inner configs."""
    inner = [c for c in vars(config).values() if isinstance(c, PreTrainedConfig)]
    for one in (config, *inner):
        for name in names:
            if (value := getattr(one, name, None)) is not None:
                return value
    return None


def _pair(size: Any) -> tuple[int, int]:
    """Height and width of a size in any of the ways that configs write it."""
    if isinstance(size, Mapping):
        size = (size.get("height"), size.get("width"))
    if isinstance(size, list | tuple) and len(size) == 2:
        return int(size[0]), int(size[1])
    return 0, 0
