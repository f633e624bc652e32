"""The result of `trace_induction`: the induction circuit, link by link, with what was measured."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from ...interp.errors import InputError
from ...interp.files import atomic_write
from ...interp.heads import HeadId
from ..atlas_file import check_suffix
from ..weights.composition import plain_records, write_parquet

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


@dataclass(frozen=True, eq=False)
class InductionTrace:
    """The chain previous-token head → keys of the induction head → copied logit → loss.

    Args:
        rows: one row per measured link: the address of the head that is removed (or looked at) in
            `site`, `layer`, `head`; `link`, one of `LINKS`; `target`, the induction head it
            concerns, or empty; `value`, with its simultaneous interval [`low`, `high`] where
            documents give one; `holds`, whether the link holds (missing where nothing is decided).
        heads: the tested heads: address, `role` (`previous_token` or `induction`), `grade`,
            `evidence` (*pattern + causal* or *pattern only*) and the link that decides.
        chain: of the induction heads that are fed and matter, the one whose removal costs most, and
            the previous-token head that feeds it most; None where no such link holds.
        caveats: what could not be measured, in sentences.
        settings: everything needed to run it again.
    """

    rows: pd.DataFrame
    heads: pd.DataFrame
    chain: tuple[HeadId, HeadId] | None
    caveats: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def value(
        self, link: str, head: str | HeadId, target: str | HeadId | None = None
    ) -> dict[str, Any]:
        """One link's row.

        Raises:
            InputError: it was not measured.
        """
        address = HeadId.parse(head)
        rows = self.rows
        rows = rows.loc[(rows["link"] == link) & (rows["layer"] == address.layer)]
        rows = rows.loc[(rows["head"] == address.head) & (rows["site"] == address.site)]
        rows = rows.loc[rows["target"] == ("" if target is None else str(target))]
        if rows.empty:
            into = "" if target is None else f" into {target}"
            raise InputError(f"the link {link!r} of {address}{into} was not measured.")
        return rows.iloc[0].to_dict()

    def evidence(self, head: str | HeadId) -> str:
        """*pattern + causal* or *pattern only*.

        Raises:
            InputError: the head was not tested.
        """
        address = HeadId.parse(head)
        found = self.heads
        found = found.loc[(found["layer"] == address.layer) & (found["head"] == address.head)]
        if found.empty:
            raise InputError(f"{address} is labelled neither previous_token nor induction here.")
        causal = (found["evidence"] == "pattern + causal").any()
        return "pattern + causal" if causal else "pattern only"

    def table(self) -> pd.DataFrame:
        """The chain's links in order; without a chain, the tested heads."""
        if self.chain is None:
            return self.heads
        rows = self.rows
        first, last = self.chain
        places = zip(rows["site"], rows["layer"], rows["head"], strict=True)
        rows = rows.assign(address=[str(HeadId(*place)) for place in places])
        feeds = (rows["address"] == str(first)) & rows["target"].isin(["", str(last)])
        shown = rows.loc[feeds | ((rows["address"] == str(last)) & (rows["target"] == ""))]
        order = {link: place for place, link in enumerate(LINKS)}
        shown = shown.sort_values("link", key=lambda links: links.map(order), kind="stable")
        return shown[["address", "link", "target", "value", "low", "high"]].reset_index(drop=True)

    def save(self, path: str | Path) -> Path:
        """Write the trace; the suffix picks the format.

        JSON holds everything; CSV and Parquet the rows, Parquet the rest as metadata under the key
        `headatlas`.

        Raises:
            InputError: another suffix, or the file cannot be written.
        """
        target = Path(path)
        check_suffix(target)
        meta = {
            "schema_version": SCHEMA_VERSION,
            "chain": None if self.chain is None else [*map(str, self.chain)],
            "summary": str(self),
            "links": LINKS,
            "caveats": [*self.caveats],
            "settings": dict(self.settings),
            "heads": plain_records(self.heads),
        }
        with atomic_write(target) as partial:
            if target.suffix.lower() == ".json":
                content = {**meta, "rows": plain_records(self.rows)}
                text = json.dumps(content, indent=1, allow_nan=False)
                partial.write_text(text + "\n", encoding="utf-8")
            elif target.suffix.lower() == ".csv":
                self.rows.to_csv(partial, index=False)
            else:
                write_parquet(self.rows, meta, partial)
        return target

    def __str__(self) -> str:
        """The chain as a paragraph."""
        idle = [
            str(HeadId(row["site"], row["layer"], row["head"]))
            for row in self.heads.to_dict("records")
            if row["role"] == "previous_token" and row["evidence"] == "pattern only"
        ]
        least = f"by {self.settings['margin']:g} for certain" if "margin" in self.settings else ""
        tail = f" Pattern only, since they feed no induction head {least}: {', '.join(idle)}."
        tail = tail if idle else ""
        notes = "".join(f" {caveat}" for caveat in self.caveats)
        if self.chain is None:
            return f"No induction chain was found.{tail}{notes}"
        first, last = self.chain
        link, alone = self.value("mass", first, last), self.value("second_copy_loss", last)
        keys = self.value("mass_through_keys", first, last)
        mass, logit = self.value("induction_mass", last), self.value("copied_logit", last)
        previous = self.value("previous_mass", first)["value"]
        before = self.value("second_copy_loss", first)
        frozen = self.value("second_copy_loss_frozen", first)
        weights = self.value("k_composition", first, last)["value"]
        composition = "" if pd.isna(weights) else f" (K-composition {weights:.3f})"
        return (
            f"{first} looks at the previous token ({previous:.2f} of its weight) and feeds "
            f"{last}{composition}: without it {last}'s prefix-matching mass of "
            f"{mass['value']:.2f} falls by {_span(link)}, by {_span(keys)} through its keys alone. "
            f"Without {last} the copied token's logit falls by {_span(logit)} and the loss "
            f"at the second copy rises by {_span(alone)} nats; without {first} it rises by "
            f"{_span(before)} nats, with all patterns held by {_span(frozen)}.{tail}{notes}"
        )

    def __repr__(self) -> str:
        counts = self.heads.groupby(["role", "evidence"], sort=False).size()
        parts = [f"{n} {role} {evidence}" for (role, evidence), n in counts.items()]  # type: ignore[misc]
        chain = "no chain" if self.chain is None else " → ".join(map(str, self.chain))
        return f"<induction trace: {chain}; {', '.join(parts)}>"

    def _repr_html_(self) -> str:
        body = self.table().to_html(
            index=False, float_format=lambda x: f"{x:.3f}", escape=True, border=0
        )
        return f"<p>{html.escape(str(self))}</p>{body}"


def _span(row: dict[str, Any]) -> str:
    return f"{row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
