"""Which kinds of heads survive a cut: labels before, and labels after."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ...interp.errors import InputError
from ...interp.heads import HeadId
from ..atlas import HeadAtlas
from .curve import Cut
from .methods import LABELLED_GRADES, grades_of
from .prune_file import LABEL_COLUMNS
from .remove.pruning import Pruning

UNLABELLED, ALL = "no label", "all heads"

SURVIVOR_COLUMNS = (
    "method", "asked", "n_removed", "kind", "n_labelled", "n_surviving", "share",
)  # fmt: skip


def labels_of(atlas: HeadAtlas, heads: Sequence[HeadId]) -> pd.DataFrame:
    """The labels of an atlas, one row per head and kind: site, layer, head, kind, grade.

    Raises:
        InputError: no atlas, or one of other heads.
    """
    grades_of(atlas, heads)  # of the same heads
    rows = [
        (head.site, head.layer, head.head, kind, grade)
        for head, kinds in atlas.labels().items()
        for kind, grade in kinds.items()
    ]
    return pd.DataFrame(rows, columns=list(LABEL_COLUMNS))


def fingerprint_labels(atlas: HeadAtlas, heads: Sequence[HeadId]) -> str:
    """SHA-256 of the labels of an atlas."""
    return hashlib.sha256(labels_of(atlas, heads).to_csv().encode()).hexdigest()


def survivors_of(
    labels: pd.DataFrame,
    heads: Sequence[HeadId],
    cuts: Sequence[Cut],
    *,
    grade: str = "weak",
) -> pd.DataFrame:
    """How many heads of each kind are left after each cut.

    A head of several kinds counts for each. Of methods with several draws the mean is told.

    Args:
        labels: what `labels_of` gives.
        heads: all heads of the model.
        cuts: the cuts.
        grade: the least grade of a label that counts, `weak` or `strong`.

    Returns:
        One row per method, sparsity asked for, and kind, with the columns `SURVIVOR_COLUMNS`;
        after the kinds the heads without a label, and all heads.

    Raises:
        InputError: another grade.
    """
    if grade not in LABELLED_GRADES:
        raise InputError(f"grade is weak or strong; got {grade!r}.")
    allowed = LABELLED_GRADES[LABELLED_GRADES.index(grade) :]
    members: dict[str, set[HeadId]] = {}
    for row in labels.to_dict("records"):
        if row["grade"] in allowed:
            head = HeadId(row["site"], row["layer"], row["head"])
            members.setdefault(row["kind"], set()).add(head)
    every = set(heads)
    labelled = set[HeadId]().union(*members.values())
    members |= {UNLABELLED: every - labelled, ALL: every}
    groups: dict[tuple[str, float], list[Cut]] = {}
    for cut in cuts:
        groups.setdefault((cut.method, cut.asked), []).append(cut)
    rows = [_row(group, kind, own) for group in groups.values() for kind, own in members.items()]
    return pd.DataFrame(rows, columns=list(SURVIVOR_COLUMNS))


def labels_after(before: HeadAtlas, after: HeadAtlas, pruning: Pruning) -> pd.DataFrame:
    """Labels in a model before and after heads were cut out of it.

    Args:
        before: atlas of the whole model.
        after: atlas of the model without the heads, which are numbered anew there.
        pruning: what was cut out, `pruning_of` the latter.

    Returns:
        One row per kind: n_before, n_surviving (labelled before and still there), n_kept_label
        (of these, labelled so after), n_after.

    Raises:
        InputError: the second atlas is not of the model that is left.
    """
    names = pruning.heads_before
    if set(after) != set(names):
        raise InputError(
            f"the atlas after the cut is of {len(after)} heads, and {len(names)} are left; "
            "classify the model that remove_heads returned."
        )
    kinds = list(dict.fromkeys([*before.kinds, *after.kinds]))
    old, new = before.labels(), after.labels()
    rows: list[Mapping[str, Any]] = []
    for kind in kinds:
        had = {head for head, own in old.items() if kind in own}
        left = had & set(names.values())
        has = {names[head] for head, own in new.items() if kind in own}
        if had or has:
            rows.append({
                "kind": kind, "n_before": len(had), "n_surviving": len(left),
                "n_kept_label": len(left & has), "n_after": len(has),
            })  # fmt: skip
    columns = ["kind", "n_before", "n_surviving", "n_kept_label", "n_after"]
    return pd.DataFrame(rows, columns=columns)


def _row(group: Sequence[Cut], kind: str, members: set[HeadId]) -> tuple[Any, ...]:
    left = sum(len(members - set(cut.heads)) for cut in group) / len(group)
    removed = sum(len(cut.heads) for cut in group) / len(group)
    share = left / len(members) if members else float("nan")
    first = group[0]
    return first.method, first.asked, removed, kind, len(members), left, share
