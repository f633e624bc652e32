"""What is said of the results of ablation: the sorts of documents, and the lines of a repr."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from ...interp.heads import HeadId
from ...interp.plain_text import counted
from .evaluation import Evaluation

TEXT, REPEATED = "text", "repeated"
"""The two sorts of documents: text, and the second copies of repeated random tokens."""

TITLES = {TEXT: "text", REPEATED: "second copies"}
"""What people read of them."""


def said_together(own: dict[str, Any], one: Evaluation) -> str:
    """Of one sort of documents: what removing heads together does to it.

    Args:
        own: the row of the table.
        one: what it comes from.
    """
    interval = ""
    if own["delta_low"] == own["delta_low"]:
        interval = f" [{own['delta_low']:+.4f}, {own['delta_high']:+.4f}]"
    return (
        f"  {TITLES[own['documents']]:13} loss {own['base_loss_nats']:.3f} "
        f"{own['delta_loss_nats']:+.4f}{interval} nats/token, "
        f"perplexity × {own['perplexity_ratio']:.4g}, KL {own['kl_nats']:.4f}; "
        f"{_said_documents(own, one)}"
    )


def said_one_by_one(rows: pd.DataFrame, by_method: dict[str, Evaluation]) -> Sequence[str]:
    """Of one sort of documents: what was read, and below it the heads that matter, by method.

    Args:
        rows: those of the table, of all methods.
        by_method: what they come from.
    """
    first = rows.iloc[0].to_dict()
    one = next(iter(by_method.values()))
    lines = [
        f"  {TITLES[first['documents']]:13} loss {first['base_loss_nats']:.3f} nats/token; "
        f"{_said_documents(first, one)}"
    ]
    for method in by_method:
        own = rows.loc[rows["method"] == method]
        worst = own.sort_values("delta_loss_nats", ascending=False, kind="stable").head(3)
        told = ", ".join(
            f"{HeadId(row['site'], row['layer'], row['head'])} {row['delta_loss_nats']:+.3f}"
            for row in worst.to_dict("records")
        )
        sure = ""
        if own["delta_low"].notna().any():  # few documents have no intervals
            sure = f"; {counted(int((own['delta_low'] > 0).sum()), 'head')} certainly above 0"
        lines.append(f"    {method}: most without {told}{sure}")
    return lines


def _said_documents(own: dict[str, Any], one: Evaluation) -> str:
    bos = "with a BOS" if one.documents.prompts.bos else "without a BOS"
    return f"{counted(own['n_documents'], 'document')} {bos}, {own['origin']}"
