"""Pruned models in folders: safetensors and JSON, read without running anything they hold.

An ordinary result is what `save_pretrained` writes. Any other folder holds

    config.json         the config of the whole model
    model.safetensors   the weights after the cut
    pruned.json         schema_version, class, and per attention module the heads it keeps

`load_pruned` builds the class from the config without weights, gives each listed part its size,
sets the head counts, and fills the weights in.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.initialization import no_init_weights

from ....interp.checkpoint import check_folder
from ....interp.errors import InputError, one_line, shown
from ....interp.files import atomic_write
from ....interp.pretrained import check_size, quiet, read_folder, read_tokenizer, reading
from ....interp.sites import check_model
from .compare import probe_logits
from .cut import Cut
from .pruned_file import FILE, as_text, read_pruned
from .pruning import Pruning, mark, pruning_of
from .surgery import resize, restructure

__all__ = ["load_pruned", "save_pruned"]

_WEIGHTS = "model.safetensors"


def save_pruned(
    model: PreTrainedModel, folder: str | os.PathLike[str], *, tokenizer: Any = None
) -> Path:
    """Write a model that `remove_heads` made to a folder.

    A model that its family's config can hold (`pruning_of(model).ordinary`) becomes an ordinary
    checkpoint, for `from_pretrained`, without `pruned.json`; any other is read by `load_pruned`,
    which reads both. `pruning_of(model).saved_as` says which it is, and why.

    Args:
        model: the pruned model.
        folder: made if it does not exist. The weights of a model in it go first and the new ones
            come last, after them `pruned.json` where there is one, so that an interrupted write is
            never read as a whole model.
        tokenizer: saved beside it.

    Returns:
        The folder.

    Raises:
        InputError: the folder cannot be written.

    Example:
        >>> import tempfile
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> from headatlas.circuits.prune.remove.remove import remove_heads
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=8, n_layer=1, n_head=2))
        >>> folder = save_pruned(remove_heads(model, "L0H1"), tempfile.mkdtemp())
        >>> loaded, _ = load_pruned(folder)
        >>> loaded.transformer.h[0].attn.c_proj.weight.shape
        torch.Size([4, 8])
    """
    model, target = check_model(model), Path(folder)
    pruning = pruning_of(model)
    try:
        target.mkdir(parents=True, exist_ok=True)
        for stale in (target / _WEIGHTS, target / f"{_WEIGHTS}.index.json", target / FILE):
            stale.unlink(missing_ok=True)
        with quiet():
            if tokenizer is not None:
                tokenizer.save_pretrained(target)
            if pruning is None or pruning.ordinary:
                model.save_pretrained(target)
                return target
            _write(model, pruning.cuts, target)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"cannot write the model to {str(folder)!r}: {one_line(error)}."
        ) from error
    return target


def _write(model: PreTrainedModel, cuts: Sequence[Cut], folder: Path) -> None:
    from safetensors.torch import save_file

    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    settings = getattr(model, "generation_config", None)
    if settings is not None and model.can_generate():
        settings.save_pretrained(folder)
    held: dict[int, str] = {}
    weights: dict[str, Tensor] = {}
    for name, weight in model.state_dict(keep_vars=True).items():
        if held.setdefault(id(weight), name) == name:  # a tied weight once
            weights[name] = weight.detach().contiguous().cpu()
    with atomic_write(folder / _WEIGHTS) as partial:
        save_file(weights, partial, metadata={"format": "pt"})
    with atomic_write(folder / FILE) as partial:
        partial.write_text(as_text(type(model).__name__, cuts), encoding="utf-8")


def load_pruned(
    folder: str | os.PathLike[str], *, dtype: torch.dtype = torch.float32
) -> tuple[PreTrainedModel, Any]:
    """Read a model that `save_pruned` wrote, of either kind, in eval mode.

    Only JSON and safetensors are read, and no code that a folder brings is run.

    Args:
        folder: what `save_pruned` was given.
        dtype: floating type of the weights in memory.

    Returns:
        (model, tokenizer); the tokenizer is None where the folder has none.

    Raises:
        InputError: no such folder; files missing, corrupt, or only there as pickle; a class that
            transformers lacks; weights that are missing, left over, or of another shape than
            `pruned.json` says; a model that does not run.

    Reference: `headatlas.circuits.prune.remove.files` describes the format.
    """
    place = Path(folder)
    name = str(folder)
    try:
        if not place.is_dir():
            raise InputError(f"no folder {name!r}; give one that save_pruned wrote.")
        whole = not (place / FILE).exists()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot read {name[:200]!r}: {one_line(error)}.") from error
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InputError(f"dtype must be a floating torch dtype; got {shown(dtype)}.")
    if whole:
        model, tokenizer = read_folder(place, dtype=dtype, name=name)
        return check_model(model), tokenizer
    kind, cuts = read_pruned(place / FILE)
    model = _build(place, kind, cuts, name)
    _fill(model, _read_weights(place, dtype, name), name)
    mark(model, Pruning(cuts, ordinary=False))
    _try_out(model, name)
    return model, _tokenizer(place, name)


def _build(folder: Path, kind: str, cuts: Sequence[Cut], name: str) -> PreTrainedModel:
    """The model in its shape after the cut, its weights not yet filled in."""
    held = check_folder(folder, name)
    with quiet(), reading(name):
        import transformers

        source: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
        config = transformers.AutoConfig.from_pretrained(folder, **source)
        found: Any = getattr(transformers, kind, None)
        fits = isinstance(found, type) and issubclass(found, PreTrainedModel)
        config_class = getattr(found, "config_class", None)
        if not fits or not isinstance(config_class, type) or not isinstance(config, config_class):
            raise InputError(
                f"{FILE} of {name!r} names the class {kind[:80]!r}, which is no transformers model "
                "of its config's kind. Save the model again."
            )
        check_size(found, config, name, held)
        with torch.random.fork_rng(devices=[]), no_init_weights():
            model = found(config).eval()
        model.tie_weights()
        modules = dict(model.named_modules())
        for cut in cuts:
            if cut.module not in modules or cut.output not in modules:
                raise InputError(
                    f"{FILE} of {name!r} names a module that {kind} lacks: {cut.module[:80]!r} "
                    f"with {cut.output[:80]!r}. Save the model again."
                )
        with torch.no_grad():
            for cut in cuts:
                if not cut.whole:
                    resize(model, cut)
            restructure(model, cuts)
        if (folder / "generation_config.json").is_file():
            settings = transformers.GenerationConfig.from_pretrained(folder, local_files_only=True)
            model.generation_config = settings
    return model


def _read_weights(folder: Path, dtype: torch.dtype, name: str) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not (folder / _WEIGHTS).is_file():
        raise InputError(f"{name!r} has no {_WEIGHTS}. Save the model again with save_pruned.")
    try:
        weights = load_file(folder / _WEIGHTS)
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(
            f"{_WEIGHTS} of {name!r} is corrupt or cut off: {one_line(error)}."
        ) from error
    return {
        key: value.to(dtype) if value.is_floating_point() else value
        for key, value in weights.items()
    }


def _fill(model: nn.Module, weights: Mapping[str, Tensor], name: str) -> None:
    """Put the weights in, each where its name and shape fit, every one of them."""
    wanted = model.state_dict(keep_vars=True)
    there = {id(weight) for key, weight in wanted.items() if key in weights}
    missing = [key for key, weight in wanted.items() if id(weight) not in there]
    extra = [key for key in weights if key not in wanted]
    if missing or extra:
        what = f"lacks the weight {missing[0]!r}" if missing else f"holds {extra[0]!r:.80} beside"
        raise InputError(f"{name!r} {what}; its files do not belong together. Save it again.")
    for key, weight in weights.items():
        if weight.shape != wanted[key].shape:
            raise InputError(
                f"{key!r} of {name!r} has shape {tuple(weight.shape)}; by config.json and {FILE} "
                f"it must be {tuple(wanted[key].shape)}. Save the model again."
            )
    filled = {id(wanted[key]): nn.Parameter(weight) for key, weight in weights.items()
              if isinstance(wanted[key], nn.Parameter)}  # fmt: skip
    for module in model.modules():
        for key, weight in module._parameters.items():
            if weight is not None and id(weight) in filled:
                module._parameters[key] = filled[id(weight)]
    buffers = {key for key, value in wanted.items() if not isinstance(value, nn.Parameter)}
    rest = {key: value for key, value in weights.items() if key in buffers}
    model.load_state_dict(rest, strict=False)


def _try_out(model: PreTrainedModel, name: str) -> None:
    try:
        probe_logits(model)
    except Exception as error:  # a file that contradicts itself may break it in any way
        raise InputError(
            f"the model in {name!r} does not run as {FILE} has it: {type(error).__name__}: "
            f"{one_line(error)}. Save it again."
        ) from error


def _tokenizer(folder: Path, name: str) -> Any:
    if not any(next(folder.glob(pattern), None) for pattern in ("tokenizer*", "vocab*")):
        return None
    with quiet(), reading(name):
        return read_tokenizer(folder, name, {})
