"""The results of ablation as values: tables, files, and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ...interp.errors import InputError
from ...interp.heads import HeadId
from ...interp.plain_text import counted
from ..table_file import write_table
from .evaluation import Evaluation
from .said import REPEATED, TEXT, said_one_by_one, said_together

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

SCHEMA_VERSION = 1
"""Raised when a reader of the old files would misread the new ones."""

Evaluations = Mapping[str, Mapping[str, Evaluation]]
"""By sort of documents, then by method."""


@dataclass(frozen=True, eq=False, repr=False)
class Ablation:
    """What removing some heads together does to a model's predictions.

    Args:
        heads: the removed heads.
        method: how they were removed: `zero`, `mean` or `resample`.
        rows: two rows, `documents` = `text` and `repeated` (the loss at the second copies of
            repeated random tokens): `heads` (as "L1H1 L2H2"), `origin`, `method`, tokens `n`,
            `n_documents`, losses in nats/token, and Δ loss, perplexity ratio and KL with their
            intervals.
        evaluations: what they come from, per document.
        caveats: what limits the figures, in sentences.
        settings: everything needed to run it again.
    """

    heads: tuple[HeadId, ...]
    method: str
    rows: pd.DataFrame
    evaluations: Evaluations
    caveats: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def delta_loss_nats(self) -> float:
        """Rise of the loss on text, in nats/token."""
        return self._of(TEXT)["delta_loss_nats"]

    @property
    def perplexity_ratio(self) -> float:
        """exp(Δ loss) on text."""
        return self._of(TEXT)["perplexity_ratio"]

    @property
    def kl_nats(self) -> float:
        """KL(whole ‖ ablated) on text, in nats/token."""
        return self._of(TEXT)["kl_nats"]

    @property
    def delta_second_copy_nats(self) -> float:
        """Rise of the loss at the second copies of repeated random tokens, in nats/token."""
        return self._of(REPEATED)["delta_loss_nats"]

    def per_document(self) -> pd.DataFrame:
        """One row per document of either sort."""
        return _per_document(self.evaluations).drop(columns="set")

    def save(self, path: str | Path) -> Path:
        """Write the result; the suffix picks the format.

        JSON holds everything; CSV and Parquet the rows, Parquet the rest but single documents as
        metadata under the key `headatlas`.

        Raises:
            InputError: another suffix, or the file cannot be written.
        """
        return _save(self, path, {"heads": [*map(str, self.heads)], "method": self.method})

    def _of(self, documents: str) -> dict[str, Any]:
        return self.rows.loc[self.rows["documents"] == documents].iloc[0].to_dict()

    def __repr__(self) -> str:
        names = ", ".join(map(str, self.heads[:4]))
        more = f" and {len(self.heads) - 4} more" if len(self.heads) > 4 else ""
        lines = [f"{names}{more} removed ({self.method} ablation)"]
        lines += [
            said_together(self._of(documents), by_method[self.method])
            for documents, by_method in self.evaluations.items()
        ]
        return "\n".join([*lines, *(f"  {sentence}" for sentence in self.caveats)])


@dataclass(frozen=True, eq=False, repr=False)
class AblationSweep:
    """What removing each head by itself does to a model's predictions.

    Args:
        heads: the heads, in order.
        methods: how they were removed.
        rows: one row per head × method × documents: the address; then as in `Ablation`. Intervals
            hold for all heads and methods at once, for each sort of documents.
        evaluations: what they come from, per document; the sets are the heads.
        caveats: what limits the figures, in sentences.
        settings: everything needed to run it again.
    """

    heads: tuple[HeadId, ...]
    methods: tuple[str, ...]
    rows: pd.DataFrame
    evaluations: Evaluations
    caveats: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def table(self, *, method: str | None = None, top: int | None = None) -> pd.DataFrame:
        """Heads with text and second copies side by side, the largest Δ loss on text first.

        Args:
            method: one of `methods`; None: the first.
            top: how many heads; None: all.

        Raises:
            InputError: heads were not removed that way.
        """
        chosen = self.methods[0] if method is None else self._known(method)
        rows = self.rows.loc[self.rows["method"] == chosen]
        wide = {}
        for documents, prefix in ((TEXT, ""), (REPEATED, "second_copy_")):
            own = rows.loc[rows["documents"] == documents].reset_index(drop=True)
            wide |= {f"{prefix}{name}": own[name] for name in _SHOWN}
        table = pd.DataFrame({"head": [*map(str, self.heads)], **wide})
        table = table.sort_values("delta_loss_nats", ascending=False, kind="stable")
        return (table if top is None else table.head(top)).reset_index(drop=True)

    def per_document(self) -> pd.DataFrame:
        """One row per head, method and document of either sort."""
        found = _per_document(self.evaluations)
        found.insert(0, "head", [str(self.heads[place]) for place in found.pop("set")])
        return found

    def plot(
        self,
        value: str = "delta_loss_nats",
        *,
        method: str | None = None,
        documents: str | None = None,
        title: str | None = None,
        theme: str = "light",
    ) -> Figure:
        """Maps of layers × heads, one per method and sort of documents, each with its own colours.

        `interp.plots.write_figure` writes the figure.

        Args:
            value: `delta_loss_nats`, `perplexity_ratio` or `kl_nats`.
            method: one of `methods`; None: all, below one another.
            documents: `text` or `repeated` (second copies); None: both, side by side.
            title: of the figure; None says what is shown.
            theme: `light` or `dark`.

        Raises:
            InputError: no such value, method, documents or theme.
        """
        from .heat_map import VALUES, draw  # plotly takes its time

        sorts = [*self.evaluations] if documents is None else [documents]
        if value not in VALUES or sorts[0] not in self.evaluations:
            raise InputError(
                f"a heat map shows {', '.join(VALUES)} on {' or '.join(self.evaluations)}; got "
                f"{value!r} on {' and '.join(map(str, sorts))!r}."
            )
        methods = self.methods if method is None else (self._known(method),)
        return draw(self.rows, value, methods, sorts, title, theme)

    def save(self, path: str | Path) -> Path:
        """Write the sweep; as `Ablation.save`.

        Raises:
            InputError: another suffix, or the file cannot be written.
        """
        heads, methods = [*map(str, self.heads)], [*self.methods]
        return _save(self, path, {"heads": heads, "methods": methods})

    def _known(self, method: str) -> str:
        if method not in self.methods:
            raise InputError(f"heads were removed by {', '.join(self.methods)}; got {method!r}.")
        return method

    def __repr__(self) -> str:
        apart = " one at a time" if len(self.heads) > 1 else ""
        lines = [f"{counted(len(self.heads), 'head')} removed{apart} ({', '.join(self.methods)})"]
        for documents, by_method in self.evaluations.items():
            own = self.rows.loc[self.rows["documents"] == documents]
            lines += said_one_by_one(own, dict(by_method))
        return "\n".join([*lines, *(f"  {sentence}" for sentence in self.caveats)])


_SHOWN = ("delta_loss_nats", "delta_low", "delta_high", "perplexity_ratio", "kl_nats")


def _per_document(evaluations: Evaluations) -> pd.DataFrame:
    tables = []
    for documents, by_method in evaluations.items():
        for method, one in by_method.items():
            table = one.per_document()
            table.insert(1, "documents", documents)
            table.insert(2, "method", method)
            tables.append(table)
    return pd.concat(tables, ignore_index=True)


def _save(found: Ablation | AblationSweep, path: str | Path, named: dict[str, Any]) -> Path:
    meta = {
        "schema_version": SCHEMA_VERSION,
        **named,
        "summary": repr(found),
        "caveats": [*found.caveats],
        "settings": dict(found.settings),
    }
    single = {"per_document": _arrays(found.evaluations)}
    return write_table(Path(path), found.rows, meta, beside=single)


def _arrays(evaluations: Evaluations) -> dict[str, Any]:
    """Figures per document: tokens and base loss [document], loss and KL [set][document]."""
    found: dict[str, Any] = {}
    for documents, by_method in evaluations.items():
        first = next(iter(by_method.values()))
        found[documents] = {"n": first.n.tolist(), "base_loss_nats": first.base.tolist()}
        for method, one in by_method.items():
            found[documents][method] = {"loss_nats": one.loss.tolist(), "kl_nats": one.kl.tolist()}
    return found


def merged_rows(tables: Sequence[tuple[dict[str, Any], pd.DataFrame]]) -> pd.DataFrame:
    """Tables below one another, each with the columns that say what it is of in front.

    Example:
        >>> merged_rows([({"method": "mean"}, pd.DataFrame({"n": [3, 4]}))]).to_numpy().tolist()
        [['mean', 3], ['mean', 4]]
    """
    marked = [table.assign(**said).loc[:, [*said, *table]] for said, table in tables]
    return pd.concat(marked, ignore_index=True)
