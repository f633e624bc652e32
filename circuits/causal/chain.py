"""The result of `trace_induction`: the induction circuit, link by link, with what was measured."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...interp.errors import InputError
from ...interp.heads import HeadId
from ..table_file import plain_records, write_table

SCHEMA_VERSION = 1
"""Raised when a reader of the old files would misread the new ones."""

LINKS = {
    "previous_mass": "weight that the previous-token head puts on the key right before",
    "k_composition": "K-composition score of the two heads' weights, 0 to 1",
    "mass": "fall of the induction head's prefix-matching mass",
    "mass_through_keys": "the same, its keys alone from the run without the other head",
    "mass_through_queries": "the same, its queries alone",
    "induction_mass": "prefix-matching mass of the induction head",
    "copied_logit": "fall of the copied token's logit, less the mean logit",
    "second_copy_loss": "rise of the loss at the second copy, in nats",
    "second_copy_loss_frozen": "the same, all attention patterns held at those of the whole model",
}
"""What each link measures; falls and rises are those caused by removing the link's head."""

DECIDES = {"previous_token": "mass_through_keys", "induction": "second_copy_loss"}
"""By role: the link that decides over a head's evidence."""

_RANGES = {
    "induction_mass": (0.0, 1.0), "mass": (-1.0, 1.0), "mass_through_keys": (-1.0, 1.0),
    "mass_through_queries": (-1.0, 1.0),
}  # fmt: skip
"""What a mass, and the fall of one, can be."""


@dataclass(frozen=True, eq=False)
class InductionTrace:
    """The chain previous-token head → keys of the induction head → copied logit → loss.

    Args:
        rows: one row per measured link: the address of the head that is removed (or looked at) in
            `site`, `layer`, `head`; `link`, one of `LINKS`; `target`, the induction head it
            concerns, or empty; `value`, with its simultaneous interval [`low`, `high`] where
            documents give one; `holds`, whether the link holds (missing where nothing is decided).
            The bootstrap does not know what a mass can be, so that the interval of one near 1 may
            reach beyond 1: `rows` and `heads` keep it as computed, what is printed ends where a
            mass does.
        heads: the tested heads: address, `role` (`previous_token` or `induction`), `grade`,
            `evidence` (*pattern + causal* or *pattern only*) and the link that decides.
        chain: of the induction heads that are fed and matter, the one whose removal costs most, and
            the previous-token head that feeds it most; None where no such link holds.
        caveats: what could not be measured, in sentences.
        settings: everything needed to run it again.
        untested: heads labelled `previous_token` that no induction head comes after: they cannot
            feed one, and were not tested as such. One that is labelled `induction` too was tested
            as that, and stands in `heads`.
    """

    rows: pd.DataFrame
    heads: pd.DataFrame
    chain: tuple[HeadId, HeadId] | None
    caveats: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    untested: tuple[HeadId, ...] = ()

    def value(
        self, link: str, head: str | HeadId, target: str | HeadId | None = None
    ) -> dict[str, Any]:
        """One link's row.

        Raises:
            InputError: it was not measured.
        """
        address = HeadId.parse(head)
        rows = rows_of(self.rows, address)
        rows = rows.loc[rows["link"] == link]
        rows = rows.loc[rows["target"] == ("" if target is None else str(target))]
        if rows.empty:
            into = "" if target is None else f" into {target}"
            raise InputError(f"the link {link!r} of {address}{into} was not measured.")
        return rows.iloc[0].to_dict()

    def evidence(self, head: str | HeadId) -> str:
        """*pattern + causal* or *pattern only*, in whatever role the head was tested.

        Raises:
            InputError: the head was not tested in any.
        """
        address = HeadId.parse(head)
        found = rows_of(self.heads, address)
        if found.empty and address in self.untested:
            raise InputError(
                f"{address} was not tested as a previous-token head: no induction head stands "
                "after it, so it feeds none."
            )
        if found.empty:
            raise InputError(f"{address} is labelled neither previous_token nor induction here.")
        causal = "pattern + causal" in found["evidence"].tolist()
        return "pattern + causal" if causal else "pattern only"

    def table(self) -> pd.DataFrame:
        """The chain's links in order; without a chain, the tested heads.

        Intervals of masses end where a mass does.
        """
        if self.chain is None:
            return self.tested()
        rows = self.rows
        first, last = self.chain
        places = zip(rows["site"], rows["layer"], rows["head"], strict=True)
        rows = rows.assign(address=[str(HeadId(*place)) for place in places])
        feeds = (rows["address"] == str(first)) & rows["target"].isin(["", str(last)])
        shown = rows.loc[feeds | ((rows["address"] == str(last)) & (rows["target"] == ""))]
        order = {link: place for place, link in enumerate(LINKS)}
        shown = shown.sort_values("link", key=lambda links: links.map(order), kind="stable")
        columns = ["address", "link", "target", "value", "low", "high"]
        return _within(shown, [*shown["link"]]).loc[:, columns].reset_index(drop=True)

    def tested(self) -> pd.DataFrame:
        """`heads` for reading: intervals of masses end where a mass does."""
        return _within(self.heads, [DECIDES[role] for role in self.heads["role"]])

    def save(self, path: str | Path) -> Path:
        """Write the trace; the suffix picks the format.

        JSON holds everything; CSV and Parquet the rows, Parquet the rest as metadata under the key
        `headatlas`.

        Raises:
            InputError: another suffix, or the file cannot be written.
        """
        meta = {
            "schema_version": SCHEMA_VERSION,
            "chain": None if self.chain is None else [*map(str, self.chain)],
            "summary": str(self),
            "links": LINKS,
            "caveats": [*self.caveats],
            "untested": [*map(str, self.untested)],
            "settings": dict(self.settings),
            "heads": plain_records(self.heads),
        }
        return write_table(Path(path), self.rows, meta)

    def __str__(self) -> str:
        """The chain as a paragraph."""
        tail = self._left_over()
        if self.chain is None:
            return f"No induction chain was found.{tail}"
        first, last = self.chain
        mass = self.value("induction_mass", last)["value"]
        previous = self.value("previous_mass", first)["value"]
        weights = self.value("k_composition", first, last)["value"]
        composition = "" if pd.isna(weights) else f" (K-composition {weights:.3f})"
        links = (self.value(name, first, last) for name in ("mass", "mass_through_keys"))
        fall, through_keys = _moves(*links, up=False)
        (logit,) = _moves(self.value("copied_logit", last), up=False)
        (alone,) = _moves(self.value("second_copy_loss", last), up=True)
        losses = (self.value(f"second_copy_loss{end}", first) for end in ("", "_frozen"))
        before, frozen = _moves(*losses, up=True)
        frozen = frozen if frozen.startswith("by") else f"it {frozen}"
        return (
            f"{first} looks at the previous token ({previous:.2f} of its weight) and feeds "
            f"{last}{composition}: without it {last}'s prefix-matching mass of {mass:.2f} {fall}, "
            f"{through_keys} through its keys alone. Without {last} the copied token's logit "
            f"{logit} and the loss at the second copy {alone} nats; without {first} it {before} "
            f"nats, with all patterns held {frozen}.{tail}"
        )

    def _left_over(self) -> str:
        """Sentences on previous-token heads outside the circuit, and the caveats."""
        idle = [
            str(HeadId(row["site"], row["layer"], row["head"]))
            for row in self.heads.to_dict("records")
            if row["role"] == "previous_token" and row["evidence"] == "pattern only"
        ]
        told = []
        if idle:
            margin = self.settings.get("margin")
            least = "" if margin is None else f" by {margin:g} for certain"
            told.append(
                f"Pattern only, since they feed no induction head{least}: {', '.join(idle)}."
            )
        if self.untested:
            names = ", ".join(map(str, self.untested))
            told.append(
                "Not tested as previous-token heads, since no induction head stands after them: "
                f"{names}."
            )
        return "".join(f" {sentence}" for sentence in (*told, *self.caveats))

    def __repr__(self) -> str:
        counts = self.heads.groupby(["role", "evidence"], sort=False).size()
        parts = [f"{n} {role} {evidence}" for (role, evidence), n in counts.items()]  # type: ignore[misc]
        parts += [f"{len(self.untested)} not tested as previous_token"] if self.untested else []
        chain = "no chain" if self.chain is None else " → ".join(map(str, self.chain))
        return f"<induction trace: {chain}; {', '.join(parts) or 'no labelled head'}>"

    def _repr_html_(self) -> str:
        body = self.table().to_html(
            index=False, float_format=lambda x: f"{x:.3f}", escape=True, border=0
        )
        return f"<p>{html.escape(str(self))}</p>{body}"


def rows_of(rows: Any, head: HeadId) -> pd.DataFrame:
    """A head's own rows, of a table with addresses: heads of two stacks may share their numbers."""
    place = (rows["site"] == head.site) & (rows["layer"] == head.layer)
    return rows.loc[place & (rows["head"] == head.head)]


def _within(rows: Any, links: Sequence[str]) -> pd.DataFrame:
    """Rows whose intervals lie within what each link can be; others as they are."""
    if rows.empty:
        return rows
    least, most = (
        np.array([_RANGES.get(link, (-np.inf, np.inf))[end] for link in links]) for end in (0, 1)
    )
    return rows.assign(
        low=np.clip(rows["low"], least, most), high=np.clip(rows["high"], least, most)
    )


def _moves(*rows: dict[str, Any], up: bool) -> list[str]:
    """Changes in words, a negative one in the other direction; a verb is said once in a row.

    Example:
        >>> loss = {"link": "second_copy_loss", "value": -0.9, "low": -1.2, "high": 0.1}
        >>> _moves(loss, loss, up=True)
        ['falls by 0.900 [-0.100, 1.200]', 'by 0.900 [-0.100, 1.200]']
    """
    told, before = [], ""
    for row in rows:
        least, most = _RANGES.get(row["link"], (-np.inf, np.inf))
        ends = [float(np.clip(row[end], least, most)) for end in ("low", "high")]
        flip = row["value"] < 0
        low, high = (0.0 - ends[1], 0.0 - ends[0]) if flip else ends  # never −0
        verb = "rises" if up != flip else "falls"
        told.append(
            f"{'' if verb == before else f'{verb} '}by {abs(row['value']):.3f} "
            f"[{low:.3f}, {high:.3f}]"
        )
        before = verb
    return told
