"""One training of gates: its model, its updates, its state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...interp.attach import attach
from ...interp.errors import InputError
from ...interp.forward import embedding_weight, undisturbed
from ...interp.probes import Prompts
from ...interp.resume import find_blocks
from ..causal.decoder import check_decoder
from .gate_result import GateResult, reached_share, result_of
from .gates import Gates, gate_edit
from .lora import add_lora, merge_lora
from .objective import Constraint, Penalty
from .settings import GateTraining
from .text_loss import Batch, Order
from .train_file import TrainingFile
from .training_state import load_state, state_of
from .trajectory import is_recorded, recorded, trajectory_frame
from .working_copy import frozen_copy, recompute_blocks, trainable_copy, weights_for

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total)."""

_LIMIT = 6.0
"""Largest |log α|: beyond it a gate has hardly a gradient left to come back by."""

_GATE_BETAS = (0.9, 0.99)  # a gate's gradients change with the price, so old ones soon mislead

COLUMNS = (
    "loss_nats", "penalty", "expected_open", "open_heads", "target", "price_nats", "gate_rate",
    "gate_grad_norm", "weight_grad_norm",
)  # fmt: skip


class Training:
    """Gates, weights, optimiser and history of one training; `train_gates` says what it does.

    Args:
        model: the user's, which is copied.
        prompts: the documents.
        config: how to train.
        start: whose gates to start from.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: Prompts,
        config: GateTraining,
        start: GateResult | None,
    ) -> None:
        self.config, self.prompts = config, prompts
        self.twin = trainable_copy(model) if config.finetune == "full" else frozen_copy(model)
        if config.finetune == "lora":
            add_lora(self.twin, config.rank, config.seed)
        sites = check_decoder(self.twin)
        self.device: torch.device = embedding_weight(self.twin).device
        self.gates = Gates(sites, config.per, init=config.init, beta=config.beta)
        if start is not None:
            _start_from(self.gates, start)
        self.gates.to(self.device)
        self.objective = _objective(config, self.gates).to(self.device)
        self.weights = [w for w in self.twin.parameters() if w.requires_grad]
        self.teacher = None
        if config.objective == "kl":
            self.teacher = self.twin if config.finetune is None else frozen_copy(model)
        if config.gradient_checkpointing:
            blocks = find_blocks(self.twin, sites)
            if blocks is None:
                raise InputError(
                    f"{type(model).__name__} keeps its layers in no single list, so "
                    "gradient_checkpointing cannot tell them apart. Train without it."
                )
            recompute_blocks(blocks)
        self.optimiser = torch.optim.Adam(self._groups())
        self.order = Order(len(prompts), config.seed)
        self.rows: list[list[float]] = []
        self.trajectory: list[Tensor] = [self._open()]
        self.current: Tensor | None = None  # the gates of the forward pass that is running

    def resume(self, file: TrainingFile) -> None:
        """Take up the state of a checkpoint, if there is one."""
        found = file.read()
        if found is None:
            return
        updates, state = found
        name = str(file.path)
        self.rows, found_open = load_state(self._modules(), self.optimiser, state, name)
        if len(self.rows) != updates or updates > self.config.updates:
            raise InputError(f"{name!r} is damaged: its history is not of its length.")
        n_recorded = len(recorded(updates, self.config.steps))
        if [len(one) for one in found_open] != [len(self.gates)] * n_recorded:
            raise InputError(f"{name!r} is damaged: its trajectory is not of its length.")
        self.trajectory = found_open

    def run(
        self,
        file: TrainingFile | None,
        progress: Progress | None,
        watch: Callable[[Mapping[str, Any]], None] | None,
    ) -> None:
        """Make all updates that are left."""
        total, config = self.config.updates, self.config
        edit = gate_edit(self.gates, lambda: self.current)
        with attach(self.twin, edits=[edit]), undisturbed(self.twin), torch.enable_grad():
            for update in range(len(self.rows), total):
                self.rows.append(self._update(update))
                done = update + 1
                if is_recorded(done, config.steps):
                    self.trajectory.append(self._open())
                if file is not None and (done % config.every == 0 or done == total):
                    file.write(done, self._state())
                if watch is not None:
                    watch(self._row(update))
                if progress is not None:
                    progress("train gates", done, total)

    def result(self, model: PreTrainedModel) -> GateResult:
        """What was found."""
        weights = None
        if self.config.finetune is not None:
            if self.config.finetune == "lora":
                merge_lora(self.twin)
            weights = weights_for(model, self.twin)
        history = pd.DataFrame([self._row(update) for update in range(len(self.rows))])
        updates = recorded(len(self.rows), self.config.steps)
        trajectory = trajectory_frame(self.gates.heads, updates, self.trajectory)
        return result_of(self.config, self.gates, history, weights, trajectory)

    def _update(self, update: int) -> list[float]:
        """One update, and its row of the history."""
        config, share = self.config, self.config.warmed(update)
        self.optimiser.zero_grad(set_to_none=True)
        loss = self._backward(update)
        expected = self.gates.expected_open()
        term = self.objective.term(expected, share)
        price = self.objective.price(expected.detach(), share)
        if update < config.steps:
            term.backward()
        most = math.inf if config.clip is None else config.clip
        norms = [
            float(nn.utils.clip_grad_norm_([w for w in part if w.grad is not None], most))
            for part in (list(self.gates.parameters()), self.weights)
        ]
        if not math.isfinite(loss + sum(norms)):
            raise InputError(
                f"the loss or its gradient is not finite in update {update + 1}. Lower lr or "
                "model_lr, or load the model in a wider dtype."
            )
        for group in self.optimiser.param_groups:
            steady = group["maximize"]  # the multipliers, which must be able to go back to the end
            group["lr"] = group["full_lr"] * (1.0 if steady else config.rate(update))
        self.optimiser.step()
        limit = max(_LIMIT, abs(config.init))
        with torch.no_grad():
            for weight in self.gates.parameters():
                weight.clamp_(-limit, limit)
        target = math.nan if config.target is None else self.objective.target * share
        open_heads = float((self.gates.test_values() > 0).sum())
        return [
            loss, float(term.detach()), float(expected.detach()), open_heads, target, price,
            config.lr * config.rate(update), *norms,
        ]  # fmt: skip

    def _backward(self, update: int) -> float:
        """Forward and backward passes of one update; the mean loss per predicted token."""
        size = min(self.config.batch, len(self.prompts))
        first = update * size * self.config.accumulate
        batches = [
            Batch(self.prompts.select(self.order.at(first + part * size, size)), self.device)
            for part in range(self.config.accumulate)
        ]
        n_tokens, total = sum(batch.n_tokens for batch in batches), 0.0
        for part, batch in enumerate(batches):
            with self._autocast():
                loss = self._loss(batch, self._drawn(update, part, size)) / n_tokens
            if loss.requires_grad:
                loss.backward()
            total += float(loss.detach())
        self.current = None
        return total

    def _loss(self, batch: Batch, gates: Tensor) -> Tensor:
        whole = None
        if self.teacher is not None:
            self.current = None
            whole = batch.log_probs(self.teacher, grad=False)
        self.current = gates
        if whole is None:
            return batch.cross_entropy(self.twin)
        return batch.divergence(self.twin, whole)

    def _drawn(self, update: int, part: int, size: int) -> Tensor:
        """The gates of a forward pass: drawn, or after the cut 0 and 1."""
        if update >= self.config.steps:
            return self._cut
        rng = np.random.default_rng((self.config.seed, 51, update, part))
        return self.gates.draw(rng, size if self.config.draws == "document" else 1)

    @cached_property
    def _cut(self) -> Tensor:
        """The gates after the cut, [1, head]."""
        kept = result_of(self.config, self.gates, pd.DataFrame(), None).gates["kept"]
        return torch.from_numpy(kept.to_numpy(np.float32)).to(self.device)[None]

    def _autocast(self) -> AbstractContextManager[Any]:
        on = self.config.autocast
        if on is None:
            on = self.device.type != "cpu"
        return torch.autocast(self.device.type, torch.bfloat16) if on else nullcontext()

    def _groups(self) -> list[dict[str, Any]]:
        config = self.config
        groups = [
            {"params": list(self.gates.parameters()), "lr": config.lr, "betas": _GATE_BETAS},
            {
                "params": list(self.objective.parameters()), "lr": config.multiplier_lr,
                "maximize": True,
            },
            {"params": self.weights, "lr": config.model_lr},
        ]  # fmt: skip
        return [{**group, "full_lr": group["lr"]} for group in groups if group["params"]]

    @torch.no_grad()
    def _open(self) -> Tensor:
        """P(open) of every head now."""
        return self.gates.open_probabilities().float().cpu()

    def _state(self) -> dict[str, Tensor]:
        return state_of(self._modules(), self.optimiser, self.rows, self.trajectory)

    def _modules(self) -> dict[str, nn.Module]:
        return {"gates": self.gates, "objective": self.objective, "model": self.twin}

    def _row(self, update: int) -> dict[str, Any]:
        values = dict(zip(COLUMNS, self.rows[update], strict=True))
        return {
            "update": update + 1,
            "stage": "gates" if update < self.config.steps else "recover",
            **values,
            "open_heads": int(values["open_heads"]),
            "open_probability": values["expected_open"] / len(self.gates),
        }


def _objective(config: GateTraining, gates: Gates) -> Any:
    if config.lam is not None:
        return Penalty(config.lam)
    share = reached_share(gates, config.target or 0.0)
    return Constraint(share, len(gates), config.stiffness)


def _start_from(gates: Gates, start: Any) -> None:
    """Take over the parameters of an earlier result."""
    if not isinstance(start, GateResult):
        raise InputError(f"start is a GateResult; got {type(start).__name__}.")
    own = gates.state_dict()
    if start.heads != gates.heads or {k: v.shape for k, v in start.state.items()} != {
        k: v.shape for k, v in own.items()
    }:
        raise InputError(
            f"start has gates on {len(start.heads)} heads per {start.config.per}; this training "
            f"has {len(gates)} heads per {gates.per}. Start from gates of the same model and sort."
        )
    gates.load_state_dict(dict(start.state))
