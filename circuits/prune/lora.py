"""Low-rank additions to a model's linear layers, where peft is installed."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from transformers import PreTrainedModel

from ...interp.errors import InputError

_SCALE = 2  # of the additions: the usual alpha / rank


def add_lora(twin: PreTrainedModel, rank: int, seed: int) -> None:
    """Add trainable low-rank matrices to all linear layers but the output, in place.

    y = W x + 2 B A x, with A [rank, d_in] random and B [d_out, rank] zero, so that nothing changes
    at first. Needs the optional extra: `pip install "headatlas[lora]"`.

    Args:
        twin: a frozen copy of the model.
        rank: of the additions.
        seed: of A.

    Raises:
        InputError: peft is not installed, or it cannot handle the model.

    Reference:
        Hu 2021.
    """
    peft = _peft()
    config = peft.LoraConfig(
        r=rank, lora_alpha=_SCALE * rank, target_modules="all-linear", lora_dropout=0.0, bias="none"
    )
    devices = list({p.device for p in twin.parameters() if p.device.type == "cuda"})
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=devices):
            warnings.simplefilter("ignore")  # it says that it adapts to Conv1D
            torch.manual_seed(seed)
            peft.inject_adapter_in_model(config, twin)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise InputError(
            f"peft cannot add low-rank matrices to {type(twin).__name__}: "
            f"{' '.join(str(error).split())[:160]}. Use finetune='full'."
        ) from error
    twin.eval()


def merge_lora(twin: PreTrainedModel) -> None:
    """Add the low-rank matrices to the weights and take them out; a plain model remains.

    The weights become new tensors: a frozen copy shares its own with the user's model.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer  # pyright: ignore[reportMissingImports]

    for name, module in list(twin.named_modules()):
        if isinstance(module, BaseTunerLayer):
            module.merge(safe_merge=True)
            owner, _, own = name.rpartition(".")
            setattr(twin.get_submodule(owner), own, module.get_base_layer())


def _peft() -> Any:
    try:
        import peft  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError(
            "finetune='lora' needs peft, which is not installed; "
            'run: pip install "headatlas[lora]".'
        ) from error
    return peft
