"""Pruned models in folders: safetensors and JSON, read without running anything they hold.

An ordinary result is what `save_pretrained` writes. Any other folder holds

    config.json          the config of the whole model
    pruned.safetensors   the weights after the cut
    pruned.json          schema_version, class, SHA-256 of the weights, and per attention module
                         the heads it keeps

No file has the name that transformers looks for, so that `from_pretrained` refuses the folder: it
would fill layers whose heads all went with random weights, and not fail.

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

from ....interp.bridge import refuse_bridge
from ....interp.checkpoint import Held, check_counts, read_config
from ....interp.errors import InputError, one_line, shown
from ....interp.files import atomic_write, sha256_of
from ....interp.pretrained import check_size, quiet, read_folder, read_tokenizer, reading
from ....interp.sites import check_model
from .compare import probe_logits
from .cut import Cut
from .pruned_file import FILE, WEIGHTS, PrunedFile, as_text, read_pruned
from .pruning import Pruning, mark, pruning_of
from .saved_tokenizer import forget_tokenizer, write_tokenizer
from .surgery import resize, restructure
from .weights_file import fill, read_weights

__all__ = ["load_pruned", "save_pruned"]

_ORDINARY_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def save_pruned(model: nn.Module, folder: str | os.PathLike[str], *, tokenizer: Any = None) -> Path:
    """Write a model that `remove_heads` made to a folder.

    A model that its family's config can hold (`pruning_of(model).ordinary`) becomes an ordinary
    checkpoint, for `from_pretrained`, without `pruned.json`; any other is read by `load_pruned`,
    which reads both. `pruning_of(model).saved_as` says which it is, and why.

    Args:
        model: the pruned model.
        folder: made if it does not exist. The weights of a model in it go first and the new ones
            come last, after them `pruned.json` where there is one, so that an interrupted write is
            never read as a whole model.
        tokenizer: saved beside it. That of an earlier `save_pruned` goes in any case.

    Returns:
        The folder.

    Raises:
        InputError: the path is empty, the folder cannot be written, or a TransformerLens bridge.

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
    refuse_bridge(model, "save_pruned")
    model, target = check_model(model), Path(folder)
    if not os.fspath(folder):
        raise InputError("the path of the folder to write is empty; give one, such as 'smaller'.")
    pruning = pruning_of(model)
    try:
        target.mkdir(parents=True, exist_ok=True)
        for stale in (*_ORDINARY_WEIGHTS, WEIGHTS, FILE):
            (target / stale).unlink(missing_ok=True)
        forget_tokenizer(target)
        with quiet():
            if tokenizer is not None:
                write_tokenizer(tokenizer, target)
            if pruning is None or pruning.ordinary:
                model.save_pretrained(target)
                return target
            _write(model, pruning, target)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"cannot write the model to {str(folder)!r}: {one_line(error)}."
        ) from error
    return target


def _write(model: PreTrainedModel, pruning: Pruning, folder: Path) -> None:
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
    with atomic_write(folder / WEIGHTS) as partial:
        save_file(weights, partial, metadata={"format": "pt"})
    digest = sha256_of(folder / WEIGHTS)
    content = PrunedFile(type(model).__name__, pruning.cuts, digest, pruning.earlier)
    with atomic_write(folder / FILE) as partial:
        partial.write_text(as_text(content), encoding="utf-8")


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
            transformers lacks; weights that are not those `pruned.json` was written with, missing,
            left over, or of another shape than it says; a model that does not run.

    Reference: `headatlas.circuits.prune.remove.files` describes the format.
    """
    place = Path(folder)
    name = str(folder)
    try:
        if not name or not place.is_dir():
            raise InputError(f"no folder {name!r}; give one that save_pruned wrote.")
        whole = not any((place / own).exists() for own in (FILE, WEIGHTS))
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot read {name[:200]!r}: {one_line(error)}.") from error
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InputError(f"dtype must be a floating torch dtype; got {shown(dtype)}.")
    if whole:
        model, tokenizer = read_folder(place, dtype=dtype, name=name)
        return check_model(model), tokenizer
    said = read_pruned(place / FILE)
    weights = read_weights(place, said, dtype, name)
    model = _build(place, said, weights, name)
    fill(model, weights, name)
    mark(model, Pruning.of(said.cuts, said.earlier, ordinary=False))
    _try_out(model, name)
    return model, _tokenizer(place, name)


def _build(
    folder: Path, said: PrunedFile, weights: Mapping[str, Tensor], name: str
) -> PreTrainedModel:
    """The model in its shape after the cut, its weights not yet filled in."""
    kind = said.kind
    held = Held(len(weights), sum(weight.numel() for weight in weights.values()))
    check_counts(read_config(folder, name), held.tensors, name)
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
        _shrink(model, said.cuts, name)
        if (folder / "generation_config.json").is_file():
            settings = transformers.GenerationConfig.from_pretrained(folder, local_files_only=True)
            model.generation_config = settings
    return model


def _shrink(model: PreTrainedModel, cuts: Sequence[Cut], name: str) -> None:
    """Give a whole model the shape after the cuts."""
    modules = dict(model.named_modules())
    for cut in cuts:
        if cut.module not in modules or cut.output not in modules:
            raise InputError(
                f"{FILE} of {name!r} names a module that {type(model).__name__} lacks: "
                f"{cut.module[:80]!r} with {cut.output[:80]!r}. Save the model again."
            )
    with torch.no_grad():
        for cut in cuts:
            if not cut.whole:
                resize(model, cut)
        restructure(model, cuts)


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
