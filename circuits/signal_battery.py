"""The battery of `classify` for models that read images or sounds."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from transformers import PreTrainedModel

from ..interp.errors import InputError
from ..interp.probes import MIN_PROMPTS, SIGNAL_SET, Prompts
from ..interp.signal_prompts import signal_prompts
from .arguments import whole_number
from .asked import AnyKind, check_names
from .kinds import KINDS, Kind, choose_kinds, listed

_LOG = logging.getLogger("headatlas")

_ON_SEQUENCES = ("previous_token", "offset", "first_position", "current_token")
_ON_GRIDS = ("current_token", *(kind.name for kind in KINDS.values() if kind.of_signals))


@dataclass(frozen=True, eq=False)
class SignalBattery:
    """How many images or sounds to score on.

    Args:
        prompts: how many to make, where none are given.
        seed: seed of these, of sampled rows, halves and bootstrap.
        inputs: images or sounds to score on; None makes noise.
    """

    prompts: Any = 64
    seed: Any = 0
    inputs: Any = None

    # what a battery on text has beside
    text: ClassVar[None] = None
    treebank: ClassVar[None] = None
    null_draws: ClassVar[int] = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompts", whole_number("prompts", self.prompts, MIN_PROMPTS))
        object.__setattr__(self, "seed", whole_number("seed", self.seed, 0))

    @staticmethod
    def read(model: PreTrainedModel, options: Mapping[str, Any], **own: Any) -> SignalBattery:
        """A battery of the options of `classify`.

        Args:
            model: the model.
            options: those that are for text, of which none may be given.
            **own: the fields.

        Raises:
            InputError: an option for text, or one of them is not of the sort described.
        """
        given = [
            name for name, value in options.items() if value is not None and not _is_unsaid(value)
        ]
        if given and isinstance(options[given[0]], Tensor | Mapping):
            raise InputError(
                f"the second argument is a tokenizer, which {type(model).__name__} has no use for; "
                f"got {type(options[given[0]]).__name__}. Pass images or sounds as inputs=."
            )
        if given:
            raise InputError(
                f"{type(model).__name__} reads {model.main_input_name}, so {given[0]} would go "
                "unread; leave it out. Kinds, prompts, seed, rule and inputs apply."
            )
        return SignalBattery(**own)

    def prompt_sets(self, model: PreTrainedModel, *, causal: bool) -> dict[str, Prompts]:
        """The one set of documents, by name.

        Raises:
            InputError: too few inputs, or such as the model cannot read.
        """
        made = signal_prompts(model, self.inputs, n=self.prompts, seed=self.seed, causal=causal)
        return {SIGNAL_SET: made}

    def kinds(
        self, kinds: AnyKind | Sequence[AnyKind] | None, sets: Mapping[str, Prompts]
    ) -> tuple[Kind, ...]:
        """What to score: of kinds that nobody named, those that fit the tokens' layout.

        Raises:
            InputError: an unknown kind, or one that needs text.
        """
        prompts = sets[SIGNAL_SET]
        if kinds is None:
            names = _ON_GRIDS if "row" in prompts.marks else _ON_SEQUENCES
            if names is _ON_SEQUENCES and prompts.signal is not None and prompts.signal.ndim == 4:
                _LOG.warning("the images' tokens form no grid; they are scored as a sequence")
            chosen = [kind.on_signals() for kind in choose_kinds([*names])]
            return tuple(kind for kind in chosen if _scores(kind, prompts))
        every = listed(kinds)
        check_names(every)
        chosen = choose_kinds(every)
        needy = [kind.name for kind in chosen if kind.null != "uniform" and kind.name in KINDS]
        if needy:
            raise InputError(
                f"{', '.join(needy)} is about the tokens of a text; of images and sounds there "
                f"are {', '.join(dict.fromkeys((*_ON_SEQUENCES, *_ON_GRIDS)))}."
            )
        return tuple(kind.on_signals() for kind in chosen)

    def origin(self, sets: Mapping[str, Any]) -> dict[str, Any]:
        """What was scored on, for an atlas's settings."""
        prompts: Prompts = sets[SIGNAL_SET]
        grid = [int(prompts.marks[axis].max()) + 1 for axis in ("row", "column") if prompts.marks]
        shape = [] if prompts.signal is None else [*prompts.signal.shape]
        made = "made noise" if self.inputs is None else "given"
        return {"signals": {"origin": made, "shape": shape, "grid": grid or None}}


def _is_unsaid(value: Any) -> bool:
    return value is None or (isinstance(value, int) and value == 0)


def _scores(kind: Kind, prompts: Prompts) -> bool:
    """Whether some row of the prompts is scored."""
    found = kind.variants(prompts)
    own = found.values() if kind.candidates else [found[""]]
    return any(bool((pairs[0].q >= 0).any()) for pairs in own)
