"""Reading a checkpoint through transformers: nothing random, nothing executed, no noise."""

from __future__ import annotations

import contextlib
import inspect
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .checkpoint import Held, check_folder, is_panic
from .errors import InputError, one_line
from .gguf_file import check_gguf

PRUNED_FILE = "pruned.json"
"""Beside a model whose layers keep fewer heads than its config says."""

_MAX_PACKING = 8  # quantised formats put up to eight 4-bit weights into one stored integer
# modules and parameters built per tensor of the files: around each weight there are some parts
# without any (activations, dropouts, containers), and files may store experts as one tensor
_MAX_PIECES = 50
_MIN_PIECES = 20_000
_TOKENIZER_FILES = (
    "tokenizer*", "vocab*", "merges.txt", "*.model", "*.tiktoken", "tekken.json",
    "special_tokens_map.json", "added_tokens.json", "*.spm",
)  # fmt: skip


class PrunedModelError(InputError):
    """A folder holds a model with heads cut out, which needs its own reader.

    Args:
        folder: where its files are.
        name: what the message calls it.
    """

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(
            f"{name!r} is a pruned model: {PRUNED_FILE} says which heads its layers keep. Load it "
            f"with headatlas.load_pruned({str(folder)!r})."
        )
        self.folder = folder


def read_folder(folder: Path, *, dtype: torch.dtype, name: str) -> tuple[nn.Module, Any]:
    """Read model and tokenizer from a folder of `config.json`, safetensors and tokenizer files.

    Args:
        folder: an existing directory.
        dtype: of the weights in memory.
        name: how error messages call the model.

    Returns:
        (model in eval mode, tokenizer), the tokenizer None only when no file in the folder looks
        like a part of one.

    Raises:
        InputError: something is missing, corrupt, only there as pickle, or leaves weights random;
            a `PrunedModelError` where heads were cut out that the config still counts.
    """
    if (folder / PRUNED_FILE).exists():
        raise PrunedModelError(folder, name)
    held = check_folder(folder, name)
    with quiet(), reading(name):
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        source = {"pretrained_model_name_or_path": folder, "use_safetensors": True}
        model = _read_model(config, source | {"local_files_only": True, "dtype": dtype}, name, held)
        tokenizer = None
        if any(next(folder.glob(pattern), None) for pattern in _TOKENIZER_FILES):
            tokenizer = read_tokenizer(folder, name, {})
    return model, tokenizer


def read_gguf(path: Path, *, dtype: torch.dtype) -> tuple[nn.Module, Any]:
    """Read model and tokenizer from one GGUF file; quantised weights are unpacked to `dtype`.

    Raises:
        InputError: the file is corrupt, of a family that transformers cannot read, or incomplete.
    """
    held = check_gguf(path)
    name = path.name
    options: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
    # the progress bar of the unpacking ignores transformers' own switch
    with quiet(), contextlib.redirect_stderr(io.StringIO()), reading(name):
        import transformers

        config = transformers.AutoConfig.from_pretrained(path.parent, **options)
        source = options | {"pretrained_model_name_or_path": path.parent, "dtype": dtype}
        if hasattr(transformers, "GgufConfig"):  # without it, weights could stay packed
            source["quantization_config"] = transformers.GgufConfig(dequantize=True)
        model = _read_model(config, source, name, held)
        tokenizer = read_tokenizer(path.parent, name, {"gguf_file": path.name})
    return model, tokenizer


def read_tokenizer(folder: Path, name: str, options: dict[str, Any]) -> Any:
    """The tokenizer of a folder, read without running any code of its own.

    Args:
        folder: where its files are.
        name: what messages call the model.
        options: passed on to transformers.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        folder, trust_remote_code=False, local_files_only=True, **options
    )
    # a folder that lacks the vocabulary gives a tokenizer that turns every text into nothing
    if not tokenizer("the cat sat on the mat", add_special_tokens=False)["input_ids"]:
        raise InputError(
            f"the tokenizer of {name!r} gives no tokens for plain English: its vocabulary is "
            f"missing. Add tokenizer.json to the folder, or take the other tokenizer files away."
        )
    return tokenizer


def _read_model(config: Any, source: dict[str, Any], name: str, held: Held) -> nn.Module:
    from transformers import AutoModel

    model_class = _class_for(config)
    if model_class is None:
        model_class, declared = _auto_class_for(config), False
    else:
        declared = True
    check_size(model_class, config, name, held)
    model, missing = _attempt(model_class, config, source)
    if missing and all("pooler." in key for key in missing) and _has_pooling_switch(type(model)):
        # a sentence encoder saved without the pooling layer, which no attention head sees
        model, missing = _attempt(type(model), config, source | {"add_pooling_layer": False})
    if missing and not declared:
        # nobody asked for the head that the fallback class added; without it nothing is random
        prefix = getattr(type(model), "base_model_prefix", "") + "."
        if not any(key.startswith(prefix) for key in missing):
            model, missing = _attempt(AutoModel, config, source)
    if missing:
        first = ", ".join(sorted(missing)[:3])
        raise InputError(
            f"{name!r} lacks {len(missing)} weights of {type(model).__name__} ({first}"
            f"{', …' if len(missing) > 3 else ''}); they would be random. Give the complete "
            f"checkpoint, or one whose config names the class it was saved from."
        )
    return model.eval()


def check_size(model_class: Any, config: Any, name: str, held: Held) -> None:
    """Refuse a config far larger than its files, before memory is taken for random weights."""
    most = _MAX_PACKING * held.weights + 1_000_000
    make = getattr(model_class, "_from_config", None) or model_class.from_config
    with torch.device("meta"), _bounded(most, held, name):
        announced = sum(weight.numel() for weight in make(config).parameters())
    if announced > most:
        raise _too_large(name, f"{announced:,} weights", held)


@contextlib.contextmanager
def _bounded(most_weights: int, held: Held, name: str) -> Iterator[None]:
    """Stop the building of a model early, whatever entry of the config makes it too large."""
    thread, pieces, weights = threading.get_ident(), 0, 0
    most_pieces = max(_MIN_PIECES, _MAX_PIECES * held.tensors)

    def count(module: nn.Module, key: str, piece: Any) -> None:
        nonlocal pieces, weights
        if threading.get_ident() != thread or piece is None:
            return
        pieces += 1
        if isinstance(piece, nn.Parameter):
            weights += piece.numel()
        # twice: a weight that two modules share comes by twice
        if weights > 2 * most_weights:
            raise _too_large(name, f"more than {weights:,} weights", held)
        if pieces > most_pieces:
            raise _too_large(name, f"more than {most_pieces:,} layers and other parts", held)

    hooks = torch.nn.modules.module
    handles = [
        hooks.register_module_module_registration_hook(count),
        hooks.register_module_parameter_registration_hook(count),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _too_large(name: str, announced: str, held: Held) -> InputError:
    return InputError(
        f"the config of {name!r} announces {announced} and its files hold {held.weights:,} "
        f"weights in {held.tensors:,} tensors; they do not belong together."
    )


def _attempt(model_class: Any, config: Any, source: dict[str, Any]) -> tuple[nn.Module, set[str]]:
    model, info = model_class.from_pretrained(**source, config=config, output_loading_info=True)
    return model, set(info["missing_keys"]) | {key for key, *_ in info["mismatched_keys"]}


def _has_pooling_switch(model_class: type) -> bool:
    return "add_pooling_layer" in inspect.signature(model_class.__init__).parameters


def _class_for(config: Any) -> Any:
    """The transformers class that the config names, when there is one for this kind of config."""
    import transformers

    for name in getattr(config, "architectures", None) or ():
        found = getattr(transformers, name, None) if isinstance(name, str) else None
        if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
            continue
        config_class = found.config_class
        if isinstance(config_class, type) and isinstance(config, config_class):
            return found
    return None


def _auto_class_for(config: Any) -> Any:
    """The auto class whose task fits a config that names no class."""
    import transformers as hf

    kind = type(config)
    if getattr(config, "is_encoder_decoder", False):
        if kind in hf.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING:
            return hf.AutoModelForSeq2SeqLM
    elif kind in hf.MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False):
        # before the causal test: BERT and its kin are listed there as well
        return hf.AutoModelForMaskedLM
    elif kind in hf.MODEL_FOR_CAUSAL_LM_MAPPING:
        return hf.AutoModelForCausalLM
    return hf.AutoModel


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
    """What fails in here fails because of the files: say so in one line, whatever the exception.

    transformers raises almost any type on odd files (KeyError, AttributeError, RuntimeError …), so
    this is the one place that catches them all.
    """
    try:
        yield
    except InputError:
        raise
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise InputError(f"{name!r} does not fit into memory: {one_line(error)}.") from error
    except BaseException as error:
        # not the requests to stop (KeyboardInterrupt, SystemExit, …), but what Rust panics raise
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        raise InputError(
            f"transformers cannot read {name!r}: {type(error).__name__}: {one_line(error)}."
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Switch off transformers' progress bars and log lines, and put the settings back after."""
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
    )
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_bars_off = are_progress_bars_disabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()  # this also switches on the hub's bars
            if hub_bars_off:
                disable_progress_bars()
