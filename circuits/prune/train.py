"""Train gates on attention heads, with the model frozen or fine-tuned along."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ...interp.errors import InputError
from ...interp.probes import Prompts
from ...interp.sites import check_model, unbridged
from ..fingerprint import fingerprint_model
from .gate_result import GateResult
from .settings import GateTraining
from .text_loss import predicting
from .train_file import TrainingFile, identity_of
from .training import Progress, Training

__all__ = ["GateResult", "GateTraining", "train_gates"]


@torch.inference_mode(False)
def train_gates(
    model: Any,
    documents: Any,
    *,
    config: GateTraining,
    start: GateResult | None = None,
    checkpoint: str | Path | None = None,
    progress: Progress | None = None,
    watch: Callable[[Mapping[str, Any]], None] | None = None,
) -> GateResult:
    """Train hard-concrete gates on z, the heads' outputs before W_O.

        L = mean loss per predicted token + λ Σ_h P(z_h ≠ 0)

    or, with a target sparsity, plus the Lagrangian of `Constraint`. Gates are drawn anew for each
    batch. The model runs in eval mode, without dropout; its attention runs fused, and no pattern
    is written out. A frozen model's weights get no gradients. Training works on a copy (which
    shares the weights, if they are frozen): the given model is never changed.

    Args:
        model: a transformers decoder with a language-model head.
        documents: a `Prompts`, or what holds one as `prompts`; padded on either side. Where they
            say which predictions count (`Prompts.counted`), only those are learnt from.
        config: how to train.
        start: an earlier result whose gates to start from, such as that of a smaller λ. Its
            weights are not taken: load them into the model for that.
        checkpoint: a `.safetensors` file. The state is written to it every `config.every` updates;
            if it exists, training goes on from it, to the same numbers bit for bit on the same
            machine with equally many threads, after checking that it is of the same model,
            documents and settings.
        progress: called with (stage, updates done, updates).
        watch: called after each update with its row of the history.

    Returns:
        The gates, and with `finetune` the trained weights. Weights trained without `recover` fit
        the gates' values as they are; after it, they fit heads that are cut or whole.

    Raises:
        InputError: no decoder with a head, one that is being edited, documents that predict
            nothing, gates of another model to start from, a loss that is not finite, a checkpoint
            of something else, or peft missing.

    Example:
        >>> import numpy as np
        >>> import headatlas as ha
        >>> from headatlas.interp.probes import random_prompts
        >>> model, tokenizer = ha.load("tiny")
        >>> prompts = random_prompts(np.arange(100, 900), 4, 32, bos_id=tokenizer.bos_token_id)
        >>> config = GateTraining(target=0.25, steps=3, batch=2)
        >>> result = train_gates(model, prompts, config=config)
        >>> len(result.removed()), len(result.history)
        (8, 3)

    Reference:
        Louizos 2018; Voita 2019; Xia 2022, 2023.
    """
    model = unbridged(model)
    if not isinstance(config, GateTraining):
        raise InputError(f"config is a GateTraining; got {type(config).__name__}.")
    prompts = _read_prompts(documents)
    training = Training(check_model(model), prompts, config, start)
    file = None
    if checkpoint is not None:
        first = {} if start is None else start.state
        identity = identity_of(fingerprint_model(model), prompts, config, first)
        file = TrainingFile(Path(checkpoint), identity)
        training.resume(file)
    training.run(file, progress, watch)
    return training.result(model)


def _read_prompts(documents: Any) -> Prompts:
    prompts = getattr(documents, "prompts", documents)
    if not isinstance(prompts, Prompts):
        raise InputError(
            f"documents are what read_documents gives; got {type(documents).__name__}. Write "
            "read_documents(texts, model, tokenizer, n=256, seq_len=128)."
        )
    return predicting(prompts)
