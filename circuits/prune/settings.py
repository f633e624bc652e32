"""How gates are trained."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

from ...interp.errors import InputError
from ..arguments import whole_number
from .gates import BETA, PER, START

SCHEDULES = ("constant", "linear", "cosine")
FINETUNE = (None, "full", "lora")


@dataclass(frozen=True, kw_only=True)
class GateTraining:
    """How gates are trained. Exactly one of `lam` and `target` is given.

    Args:
        lam: λ, the price of an open head in nats per token.
        target: the share of query heads to cut, in (0, 1), reached exactly: the expected share of
            closed heads is driven to it by a Lagrangian, and in the end the heads of lowest log α
            are cut.
        per: what a gate stands on: `head`, `group` (all query heads of a key-value head), or
            `both`.
        steps: updates of the gates.
        batch: documents per forward pass.
        accumulate: forward passes per update.
        draws: gates are drawn per `batch` (of one forward pass), or per `document`, which costs
            nothing and makes gradients less noisy.
        objective: `ce`, the cross-entropy of the text, or `kl`, the divergence KL(whole model ‖
            gated model), which costs one more forward pass.
        lr: learning rate of the gates' log α.
        multiplier_lr: of the multipliers of the Lagrangian; it does not fall.
        stiffness: where its quadratic multiplier λ₂ starts, in nats per token. Larger follows the
            target more closely, and leaves more gates between 0 and 1.
        model_lr: of the weights, with `finetune`.
        schedule: how learning rates of gates and weights fall over the updates: `constant`, or to 0
            in a `linear` or `cosine` way.
        lr_warmup: share of the updates in which learning rates rise from 0.
        penalty_warmup: share of `steps` in which λ, or the target, rises from 0.
        clip: largest norm of a gradient, of gates and of weights apart; None: no limit.
        beta: temperature of the gates; lower is closer to 0 and 1.
        init: log α at the start.
        finetune: None keeps the model frozen; `full` trains all weights along, `lora` low-rank
            additions to its linear layers.
        rank: of those.
        recover: further updates of the weights alone, after the cut, with removed heads at exactly
            0 and the others at exactly 1.
        autocast: whether forward passes run in bfloat16; None: on accelerators, not on a CPU.
        gradient_checkpointing: whether layers are computed again in the backward pass instead of
            kept, which saves memory and costs about a third of the time.
        seed: of the order of documents, of all noise, and of low-rank additions.
        every: updates between two checkpoints.

    Raises:
        InputError: a value that is none of these.

    Example:
        >>> GateTraining(target=0.5, steps=100).per
        'head'
    """

    lam: float | None = None
    target: float | None = None
    per: str = "head"
    steps: int = 500
    batch: int = 8
    accumulate: int = 1
    draws: str = "batch"
    objective: str = "ce"
    lr: float = 0.1
    multiplier_lr: float = 0.1
    stiffness: float = 60.0
    model_lr: float = 1e-4
    schedule: str = "linear"
    lr_warmup: float = 0.0
    penalty_warmup: float = 0.25
    clip: float | None = 1.0
    beta: float = BETA
    init: float = START
    finetune: str | None = None
    rank: int = 8
    recover: int = 0
    autocast: bool | None = None
    gradient_checkpointing: bool = False
    seed: int = 0
    every: int = 50

    def __post_init__(self) -> None:
        if (self.lam is None) == (self.target is None):
            raise InputError(
                f"give either lam, the price of a head, or target, the share of heads to cut; got "
                f"lam={self.lam!r}, target={self.target!r}."
            )
        for name, least in _WHOLE.items():
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least))
        for name, (low, high, inside) in _REAL.items():
            value = getattr(self, name)
            if value is not None or name not in ("lam", "target", "clip"):
                number = _real(name, value, low, high, inside)
                object.__setattr__(self, name, number)
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                shown = ", ".join(map(repr, known))
                raise InputError(f"{name} is one of {shown}; got {getattr(self, name)!r}.")
        if self.recover and self.finetune is None:
            raise InputError(
                "recover trains the weights after the cut, so it needs finetune='full' or 'lora'."
            )

    @property
    def updates(self) -> int:
        """Updates in all."""
        return self.steps + self.recover

    def rate(self, update: int) -> float:
        """The share of the learning rates that holds in an update, counted from 0.

        They rise and fall over `steps`, and again over `recover`.
        """
        within, length = (
            (update, self.steps) if update < self.steps else (update - self.steps, self.recover)
        )
        rise = min(1.0, (within + 1) / max(1.0, self.lr_warmup * length))
        done = within / length
        if self.schedule == "linear":
            return rise * (1 - done)
        if self.schedule == "cosine":
            return rise * (1 + math.cos(math.pi * done)) / 2
        return rise

    def warmed(self, update: int) -> float:
        """The share of λ, or of the target, that holds in an update."""
        return min(1.0, (update + 1) / max(1.0, self.penalty_warmup * self.steps))


_WHOLE = {
    "steps": 1, "batch": 1, "accumulate": 1, "rank": 1, "recover": 0, "seed": 0, "every": 1,
}  # fmt: skip
_CHOICES: dict[str, tuple[Any, ...]] = {
    "per": PER, "draws": ("batch", "document"), "objective": ("ce", "kl"), "schedule": SCHEDULES,
    "finetune": FINETUNE, "autocast": (None, True, False), "gradient_checkpointing": (True, False),
}  # fmt: skip
# lowest, highest, whether the ends themselves are out
_REAL: dict[str, tuple[float, float, bool]] = {
    "lam": (0.0, math.inf, False), "target": (0.0, 1.0, True), "lr": (0.0, math.inf, True),
    "multiplier_lr": (0.0, math.inf, True), "model_lr": (0.0, math.inf, True),
    "lr_warmup": (0.0, 1.0, False), "penalty_warmup": (0.0, 1.0, False),
    "clip": (0.0, math.inf, True), "stiffness": (0.0, math.inf, False),
    "beta": (0.01, 1.0, False), "init": (-20.0, 20.0, False),
}  # fmt: skip


def _real(name: str, value: Any, low: float, high: float, inside: bool) -> float:
    try:
        number = math.nan if isinstance(value, bool | str) else float(operator.pos(value))
    except (TypeError, ValueError):
        number = math.nan
    fits = low < number < high if inside else low <= number <= high
    if not fits or math.isinf(number):
        top = "" if math.isinf(high) else f" and {'below' if inside else 'at most'} {high:g}"
        raise InputError(
            f"{name} is a number {'above' if inside else 'of at least'} {low:g}{top}; got "
            f"{value!r}."
        )
    return number
