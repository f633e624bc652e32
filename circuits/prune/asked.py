"""What was asked of a pruning, checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from numbers import Real
from typing import Any

from ...interp.errors import InputError, shown
from ...interp.heads import HeadId
from ...interp.plain_numbers import as_index
from ...interp.tokens import context_length
from ..arguments import whole_number
from ..atlas import HeadAtlas
from ..causal.decoder import check_decoder
from .counts import nearest_count
from .held_out import Reading
from .methods import RANDOM, check_methods, grades_of
from .settings import GateTraining
from .survivors import fingerprint_labels

SEQ_LEN = 128


@dataclass(frozen=True, eq=False)
class Asked:
    """What was asked for.

    Args:
        heads: all heads of the model.
        methods: in the order asked for.
        kind: what `values` are, `sparsity` or `lam`.
        values: rising.
        config: how gates are trained; None: the defaults.
        atlas: labels of the model.
        draws: of random methods.
        level: coverage of intervals.
        seed: of everything random.
    """

    heads: tuple[HeadId, ...]
    methods: tuple[str, ...]
    kind: str
    values: tuple[float, ...]
    config: GateTraining | None
    atlas: HeadAtlas | None
    draws: int
    level: float
    seed: int

    @property
    def order(self) -> tuple[str, ...]:
        """In which order methods run: l0 says how many heads go, layer_random follows another."""
        return tuple(sorted(self.methods, key=lambda name: (name != "l0", name == "layer_random")))

    def training(self, value: float, *, warm: bool = False) -> GateTraining:
        """How gates are trained for one of the values.

        Args:
            value: the sparsity or λ.
            warm: whether they start from gates of a smaller one. Then nothing is warmed up: a
                target or price that rose from 0 would first open what is closed.
        """
        wanted: dict[str, Any] = {"target": None, "lam": None}
        wanted["target" if self.kind == "sparsity" else "lam"] = value
        if warm:
            wanted["penalty_warmup"] = 0.0
        if self.config is None:
            return GateTraining(seed=self.seed, **wanted)
        return dataclasses.replace(self.config, **wanted)

    def settings(self) -> dict[str, Any]:
        """Everything needed to ask it again."""
        config = dataclasses.asdict(self.training(self.values[0]))
        return {
            "methods": [*self.methods], self.kind: [*self.values], "asked": self.kind,
            "draws": self.draws, "level": self.level, "seed": self.seed,
            "atlas": None if self.atlas is None else fingerprint_labels(self.atlas, self.heads),
            "config": {k: v for k, v in config.items() if k not in ("target", "lam", "every")},
        }  # fmt: skip

    def reading(
        self, model: Any, train: Any, evaluated: Any, seq_len: Any, prepend_bos: bool | None
    ) -> Reading:
        """How texts are read.

        Raises:
            InputError: numbers that do not fit.
        """
        context = context_length(model)
        length = default_seq_len(context) if seq_len is None else as_index(seq_len)
        if length is None or length < 2:
            raise InputError(
                f"seq_len is a whole number of tokens, at least 2; got {shown(seq_len)}."
            )
        return Reading(
            None if train is None else whole_number("train_documents", train, 1),
            whole_number("eval_documents", evaluated, 1), length, prepend_bos, self.seed,
        )  # fmt: skip


def default_seq_len(context: int | None) -> int:
    """Tokens per document where nothing is said: 128, or the model's context."""
    return min(SEQ_LEN, context or SEQ_LEN)


def check_asked(
    model: Any,
    method: Any,
    sparsity: Any,
    lam: Any,
    config: Any,
    atlas: Any,
    draws: Any,
    level: Any,
    seed: Any,
) -> Asked:
    """Check what was asked for.

    Raises:
        InputError: it is of another type, out of range, or does not go together.
    """
    sites = check_decoder(model)
    heads = tuple(head for site in sites for head in site.heads)
    methods = check_methods([method] if isinstance(method, str) else _listed("method", method))
    if config is not None and not isinstance(config, GateTraining):
        raise InputError(f"config is a GateTraining; got {type(config).__name__}.")
    if config is not None and sparsity is None and lam is None:
        sparsity, lam = config.target, config.lam
    kind, values = check_values(sparsity, lam, methods)
    for value in values if kind == "sparsity" else ():
        count = nearest_count(value, len(heads))
        if not 0 < count < len(heads):
            raise InputError(
                f"sparsity {value:g} of {len(heads)} heads is {count} heads; "
                f"give a share between {1 / len(heads):.3g} and {1 - 1 / len(heads):.3g}."
            )
    if atlas is not None or "functional" in methods:
        grades_of(atlas, heads)
    if not isinstance(level, float) or not 0 < level < 1:
        raise InputError(f"level is a number between 0 and 1, such as .95; got {level!r}.")
    return Asked(
        heads, methods, kind, values, config, atlas, whole_number("draws", draws, 1), level,
        whole_number("seed", seed, 0),
    )  # fmt: skip


def check_values(
    sparsity: Any, lam: Any, methods: tuple[str, ...]
) -> tuple[str, tuple[float, ...]]:
    """What is asked for, `sparsity` or `lam`, and its values, rising.

    Raises:
        InputError: both, a value out of range, or λ without l0.
    """
    if sparsity is not None and lam is not None:
        raise InputError("give sparsity or lam, not both.")
    if lam is None:
        values = _numbers("sparsity", 0.5 if sparsity is None else sparsity)
        for value in values:
            if not 0 < value < 1:
                raise InputError(
                    f"sparsity is a share of the heads, above 0 and below 1; got {value:g}."
                )
        return "sparsity", values
    if "l0" not in methods:
        raise InputError(
            f"lam is the price of heads in the training of l0; got it for {', '.join(methods)}. "
            "Say which share of the heads goes, or add l0."
        )
    values = _numbers("lam", lam)
    if values[0] < 0:
        raise InputError(f"lam is a price in nats per token, at least 0; got {values[0]:g}.")
    return "lam", values


def is_random(method: str) -> bool:
    """Whether a method's order is drawn."""
    return method in RANDOM


def _numbers(name: str, given: Any) -> tuple[float, ...]:
    found = []
    for value in [given] if isinstance(given, Real) else _listed(name, given):
        if isinstance(value, bool) or not isinstance(value, Real) or value != value:
            raise InputError(f"{name} is a number or several; got {shown(value)}.")
        found.append(float(value))
    if not found:
        raise InputError(f"{name} is a number or several; got none.")
    return tuple(sorted(set(found)))


def _listed(name: str, given: Any) -> list[Any]:
    if isinstance(given, str) or not isinstance(given, Collection):
        raise InputError(f"{name} is one or a list of several; got {shown(given)}.")
    return [*given]
