"""Whether labels hold under another seed, length, BOS, sort of text or dtype."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from ..interp.errors import InputError
from ..interp.heads import HeadId
from ..interp.sites import unbridged
from ..interp.tokens import bos_token, context_length
from .classify import classify
from .grade import Rule
from .kinds import Kind, choose_kinds
from .settle import LABELLED

AXES = ("seed", "length", "bos", "text", "dtype")
"""What is varied, one at a time."""

_Key = tuple[str, int, int, str]  # site, layer, head, kind
_Table = list[dict[str, Any]]  # rows as classify gives them


@dataclass(frozen=True, eq=False)
class Stability:
    """How far labels agree between conditions.

    Args:
        rows: one row per head and kind labelled in some condition: site, layer, head, kind, grade
            (in the reference), held (conditions in which it is labelled), of (conditions in which
            it was judged), held_in and lost_in (those conditions, separated by "; ").
        agreement: one row per kind and axis: kind, axis, conditions, heads, same (share of head ×
            condition in which the head is labelled or not as in the reference), labels (share of
            the labels in either that are in both; 1 where there are none).
        reference: the condition that the others are compared with.
        left_out: conditions that could not be made, with the reason.
    """

    rows: pd.DataFrame
    agreement: pd.DataFrame
    reference: str
    left_out: tuple[str, ...]

    def heads(self, kind: str) -> list[HeadId]:
        """Heads that are labelled with this kind in every condition."""
        records: list[dict[Any, Any]] = self.rows.to_dict("records")
        return [
            HeadId(r["site"], r["layer"], r["head"])
            for r in records
            if r["kind"] == kind and not r["lost_in"]
        ]

    def __repr__(self) -> str:
        always = sum(not lost for lost in self.rows["lost_in"])
        worst = self.agreement.sort_values("labels", kind="stable").head(1).to_dict("records")
        least = "".join(f"; least {r['kind']} over {r['axis']}: {r['labels']:.0%}" for r in worst)
        return (
            f"<stability: {always} of {len(self.rows)} labels hold in every condition{least} "
            f"(reference {self.reference})>"
        )


@dataclass(frozen=True)
class _Condition:
    """One way to classify."""

    seed: int
    length: int
    bos: bool
    dtype: torch.dtype

    def __str__(self) -> str:
        return (
            f"seed {self.seed}, {self.length} tokens, {'with' if self.bos else 'no'} BOS, "
            f"{_named(self.dtype)}"
        )

    def other(self, axis: str) -> str:
        """What is different about it along an axis."""
        return {
            "seed": f"seed {self.seed}",
            "length": f"{self.length} tokens",
            "bos": "with BOS" if self.bos else "no BOS",
            "dtype": _named(self.dtype),
        }[axis]


def stability(
    model: Any,
    tokenizer: Any = None,
    kinds: str | Kind | Sequence[str | Kind] | None = None,
    *,
    seeds: Sequence[int] = (0, 1),
    seq_lens: Sequence[int] = (128, 256),
    bos: Sequence[bool] = (True, False),
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.bfloat16),
    prompts: int = 64,
    rule: Rule | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Stability:
    """Classify again under changed conditions and say which labels hold.

    The reference is the first value of every axis; each other value is tried with the rest of the
    reference unchanged. A head and kind is *labelled* if it is graded weak or strong. The axis
    `text` compares the grade on random tokens with that on natural text: kinds judged on both have
    it in the reference, kinds judged on random tokens are judged again on natural text, and kinds
    that need text or a set of their own have no such axis.

        same   = mean over heads and conditions of [labelled there == labelled in the reference]
        labels = Σ |L_ref ∩ L_c| / Σ |L_ref ∪ L_c|  over the axis's conditions c

    Another dtype runs on a copy; the model is left as it was.

    Args:
        model: a transformers model.
        tokenizer: its tokenizer; without one there is no BOS and no text.
        kinds: as for `classify`.
        seeds: seeds.
        seq_lens: lengths of documents, in tokens.
        bos: whether documents begin with a BOS.
        dtypes: of the weights.
        prompts: documents per set.
        rule: margins, level and resamples.
        progress: called with ("stability", runs done, runs to do).

    Returns:
        Rows by head and kind, agreement by kind and axis.

    Raises:
        InputError: an axis without values or with one twice, or what `classify` refuses.

    Example:
        >>> import headatlas as ha
        >>> model, tokenizer = ha.load("tiny")
        >>> found = stability(model, tokenizer, "previous_token", seq_lens=(32,),
        ...     bos=(True,), dtypes=(model.dtype,), prompts=16)
        >>> found.agreement["axis"].tolist()
        ['seed', 'text']

    Reference:
        SmolLM2 and other models are labelled differently with and without BOS (Xiao 2023 on
        sinks); the measures are this project's.
    """
    model = unbridged(model)
    for name, values in (
        ("seeds", seeds),
        ("seq_lens", seq_lens),
        ("bos", bos),
        ("dtypes", dtypes),
    ):
        if not values or len(set(values)) < len(values):
            raise InputError(f"{name} names each value once, and at least one; got {values!r}.")
    possible, left_out = _possible(model, tokenizer, seq_lens, bos)
    reference = _Condition(seeds[0], possible["length"][0], possible["bos"][0], dtypes[0])
    others = [
        (axis, replace(reference, **{axis: value}))
        for axis, values in {"seed": seeds, **possible, "dtype": dtypes}.items()
        for value in values[1:]
    ]
    chosen = [k for k in choose_kinds(kinds) if tokenizer is not None or not k.needs_text]
    natural = [] if tokenizer is None else [_on_text(k) for k in chosen if k.prompts == ("random",)]
    total, done = 1 + len(others) + bool(natural), 0

    def run(condition: _Condition, asked: list[Kind]) -> _Table:
        nonlocal done
        found = classify(
            _in_dtype(model, condition.dtype), tokenizer, kinds=asked, prompts=prompts,
            seq_len=condition.length, prepend_bos=condition.bos if tokenizer is not None else None,
            rule=rule, seed=condition.seed,
        )  # fmt: skip
        done += 1
        if progress is not None:
            progress("stability", done, total)
        return found.rows.to_dict("records")

    first = run(reference, chosen)
    found = [_Judged("", "reference", _labelled(first))]
    found += [_Judged(axis, c.other(axis), _labelled(run(c, chosen))) for axis, c in others]
    found += _by_text(first, run(reference, natural) if natural else None, rule or Rule())
    return Stability(_rows(first, found), _agreement(first, found), str(reference), tuple(left_out))


@dataclass(frozen=True, eq=False)
class _Judged:
    """What one condition says: a truth value by (site, layer, head, kind)."""

    axis: str
    name: str
    labelled: dict[_Key, bool]
    against: dict[_Key, bool] | None = None  # None: the reference


def _possible(
    model: Any, tokenizer: Any, seq_lens: Sequence[int], bos: Sequence[bool]
) -> tuple[dict[str, list[Any]], list[str]]:
    """The lengths and BOS policies that this model can be given, and what is left out."""
    context = context_length(model)
    lengths = [n for n in seq_lens if context is None or n <= context]
    left = [f"{n} tokens: the context is {context}" for n in seq_lens if n not in lengths]
    if not lengths:
        raise InputError(f"no length of {[*seq_lens]} fits the model's context of {context}.")
    policies = [policy for policy in bos if not policy or _has_bos(tokenizer)]
    if len(policies) < len(bos):
        left.append("with BOS: the tokenizer has no BOS or CLS token")
    return {"length": lengths, "bos": policies or [False]}, left


def _has_bos(tokenizer: Any) -> bool:
    try:
        return bos_token(tokenizer, True) is not None
    except InputError:  # how it says that there is none
        return False


def _in_dtype(model: Any, dtype: torch.dtype) -> Any:
    return model if model.dtype == dtype else copy.deepcopy(model).to(dtype)


def _on_text(kind: Kind) -> Kind:
    return replace(kind, prompts=("natural",), legacy=None)


def _by_text(first: _Table, again: _Table | None, rule: Rule) -> list[_Judged]:
    """Random tokens against natural text, for the kinds that both can be judged on."""
    on_both = [
        row
        for row in first
        if row["details"]["prompts"] == "random" and "natural" in row["details"]
    ]
    found = []
    if on_both:
        random = {_key(r): rule.grade(r["low"], r["high"]) in LABELLED for r in on_both}
        natural = {_key(r): r["details"]["natural"]["grade"] in LABELLED for r in on_both}
        found.append(_Judged("text", "natural text", natural, against=random))
    if again is not None:
        found.append(_Judged("text", "natural text", _labelled(again)))
    return found


def _key(row: dict[str, Any]) -> _Key:
    return row["site"], int(row["layer"]), int(row["head"]), row["kind"]


def _labelled(rows: _Table) -> dict[_Key, bool]:
    return {_key(row): row["grade"] in LABELLED for row in rows}


def _rows(first: _Table, found: list[_Judged]) -> pd.DataFrame:
    judged: dict[_Key, list[tuple[str, bool]]] = {}
    for one in found:
        for key, value in one.labelled.items():
            judged.setdefault(key, []).append((one.name, value))
    grades = {_key(row): row["grade"] for row in first}
    rows = []
    for key, values in judged.items():
        held = [name for name, value in values if value]
        if held:
            lost = [name for name, value in values if not value]
            texts = "; ".join(held), "; ".join(lost)
            rows.append((*key, grades[key], len(held), len(values), *texts))
    columns = ["site", "layer", "head", "kind", "grade", "held", "of", "held_in", "lost_in"]
    return pd.DataFrame(rows, columns=columns)


def _agreement(first: _Table, found: list[_Judged]) -> pd.DataFrame:
    rows = []
    for kind in dict.fromkeys(row["kind"] for row in first):
        for axis in AXES:
            sides = [
                (
                    [one.labelled[key] for key in one.labelled if key[3] == kind],
                    [_against(one, found)[key] for key in one.labelled if key[3] == kind],
                )
                for one in found
                if one.axis == axis
            ]
            sides = [pair for pair in sides if pair[0]]
            if not sides:
                continue
            there, against = (np.concatenate(values) for values in zip(*sides, strict=True))
            either, both = int((there | against).sum()), int((there & against).sum())
            same = float((there == against).mean())
            heads = len(there) // len(sides)
            share = both / either if either else 1.0
            rows.append((kind, axis, len(sides), heads, same, share))
    columns = ["kind", "axis", "conditions", "heads", "same", "labels"]
    return pd.DataFrame(rows, columns=columns)


def _against(one: _Judged, found: list[_Judged]) -> dict[_Key, bool]:
    """What a condition is compared with; the reference comes first."""
    return found[0].labelled if one.against is None else one.against


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
