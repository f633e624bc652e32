"""What was cut out of a model, kept with the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from torch import nn

from ....interp.errors import InputError
from ....interp.heads import HeadId
from .cut import Cut

_MARK = "headatlas_pruning"
_CONFIG_MARK = "headatlas_pruned"  # in config.json too, so that no reader takes it for the whole


@dataclass(frozen=True)
class Pruning:
    """What `remove_heads` cut out of a model.

    Attributes:
        cuts: per attention module, in call order: what it was before by the model's config, and
            what it keeps. Of an ordinary model, what it was in the whole model.
        ordinary: whether the model is an ordinary one of its class, which `from_pretrained` reads;
            else its layers differ from its config, and `load_pruned` reads it.
        drift: how far the logits are from those of the masked model, in float32 for narrower
            models, relative to the largest; None for a model that was loaded.
        reason: why it is not ordinary, in words; empty for a model that was loaded.
        earlier: the cuts of the ordinary result that these heads were cut out of, by the whole
            model; empty where they were cut out of the whole model.
    """

    cuts: tuple[Cut, ...]
    ordinary: bool
    drift: float | None = None
    reason: str = ""
    earlier: tuple[Cut, ...] = ()

    @classmethod
    def of(
        cls,
        cuts: Sequence[Cut],
        earlier: Sequence[Cut],
        *,
        ordinary: bool,
        drift: float | None = None,
        reason: str = "",
    ) -> Pruning:
        """What these cuts come to after earlier ones, which an ordinary model's config forgot."""
        made = cls(tuple(cuts), ordinary, drift, reason, tuple(earlier))
        return replace(made, cuts=made.whole, earlier=()) if ordinary else made

    @property
    def whole(self) -> tuple[Cut, ...]:
        """The cuts by the whole model: what each attention module was in it, and what it keeps."""
        if not self.earlier:
            return self.cuts
        return tuple(
            first if cut.whole else _of_the_whole(first, cut)
            for first, cut in zip(self.earlier, self.cuts, strict=True)
        )

    @property
    def removed(self) -> tuple[HeadId, ...]:
        """The heads that are gone, by their addresses in the whole model."""
        return tuple(
            HeadId(cut.stack, cut.layer, head)
            for cut in self.whole
            for head in range(cut.n_heads)
            if head not in cut.kept
        )

    @property
    def n_removed(self) -> int:
        """How many heads are gone."""
        return sum(cut.n_heads - len(cut.kept) for cut in self.whole)

    @property
    def saved_as(self) -> str:
        """What `save_pruned` makes of the model, in words.

        Example:
            >>> Pruning((), ordinary=True).saved_as
            'an ordinary checkpoint, which from_pretrained reads'
        """
        if self.ordinary:
            return "an ordinary checkpoint, which from_pretrained reads"
        why = f": {self.reason}" if self.reason else ""
        return f"a folder that headatlas.load_pruned alone reads{why}"

    @property
    def heads_before(self) -> Mapping[HeadId, HeadId]:
        """The address of each head of this model in the whole model.

        Heads are numbered anew in each layer, and layers without heads do not count.

        Example:
            >>> from transformers import GPT2Config, GPT2LMHeadModel
            >>> from headatlas.circuits.prune.remove.remove import remove_heads
            >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=8, n_layer=1, n_head=2))
            >>> pruning_of(remove_heads(model, "L0H0")).heads_before
            {L0H0: L0H1}
        """
        layers: Counter[str] = Counter()
        found = {}
        for cut in self.whole:
            if not cut.kept:
                continue
            layer = layers[cut.stack]
            layers[cut.stack] += 1
            for head, before in enumerate(cut.kept):
                found[HeadId(cut.stack, layer, head)] = HeadId(cut.stack, cut.layer, before)
        return found


def _of_the_whole(first: Cut, second: Cut) -> Cut:
    """One cut in place of two, of which the second counts by what the first left."""
    kept = tuple(first.kept[head] for head in second.kept)
    return replace(second, n_heads=first.n_heads, n_kv_heads=first.n_kv_heads, kept=kept)


def left_by(cuts: Sequence[Cut]) -> list[tuple[str, int]]:
    """Modules in order, with how many heads the cuts left them."""
    return [(cut.module, len(cut.kept)) for cut in cuts]


def pruning_of(model: nn.Module) -> Pruning | None:
    """What was cut out of a model; None: nothing that is known.

    An ordinary model knows no more once it was saved and loaded.

    Example:
        >>> pruning_of(nn.Linear(2, 2)) is None
        True
    """
    found = model.__dict__.get(_MARK)
    return found if isinstance(found, Pruning) else None


def mark(model: nn.Module, pruning: Pruning) -> None:
    """Keep with a model what was cut out of it, and keep it from files that would not reload."""
    model.__dict__[_MARK] = pruning
    if not pruning.ordinary:
        model.__dict__["save_pretrained"] = _refuse_to_save
        config: Any = model.config
        setattr(config.get_text_config(), _CONFIG_MARK, True)


def is_pruned_config(config: Any) -> bool:
    """Whether a config is that of a pruned model and says nothing of the heads it keeps."""
    return bool(getattr(config.get_text_config(), _CONFIG_MARK, False))


def _refuse_to_save(*_: Any, **__: Any) -> NoReturn:
    raise InputError(
        "this model's layers have fewer heads than its config can say, so from_pretrained would "
        "not read it again. Save it with save_pruned(model, folder), load it with load_pruned."
    )
