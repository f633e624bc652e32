"""What a test by removal found, in lines: kinds with evidence, kinds not tested and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from .atlas_check import printable

UNTESTED = "untested"
"""Where `settings["causal"]` keeps the kinds that were not tested, with the reasons."""

_HOLDS = "pattern + causal"


def causal_settings(
    before: Mapping[str, Any], effects: Any, tested: Iterable[str]
) -> dict[str, Any]:
    """What an atlas's settings say of removal after further effects.

    Args:
        before: the atlas's settings.
        effects: what `causal_effects` gives.
        tested: kinds that were tested, now or before: no reason stands against them any more.
    """
    reasons = {**untested_of(before), **getattr(effects, UNTESTED, {})}
    left = {kind: why for kind, why in reasons.items() if kind not in {*tested}}
    return {**effects.settings, UNTESTED: left}


def untested_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Kinds that were not tested, with the reasons; none where a file says something else.

    Example:
        >>> untested_of({"causal": {"untested": {"induction": "no other head is left"}}})
        {'induction': 'no other head is left'}
    """
    causal = settings.get("causal")
    found = causal.get(UNTESTED) if isinstance(causal, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    return {printable(str(kind)): printable(str(why)) for kind, why in found.items()}


def causal_lines(
    rows: pd.DataFrame, table: pd.DataFrame | None, settings: Mapping[str, Any]
) -> list[str]:
    """Which kinds removal bears out, and which it was not tried on.

    Args:
        rows: of the atlas.
        table: its table `causal`; None where no removal was asked for: nothing is said.
        settings: of the atlas.
    """
    if table is None:
        return []
    held = rows.loc[rows["evidence"] == _HOLDS, "kind"].value_counts(sort=False)
    found = ", ".join(f"{kind} {n}" for kind, n in held.items())
    kinds = {*table["kind"]} if "kind" in table else set()
    untested = {kind: why for kind, why in untested_of(settings).items() if kind not in kinds}
    if not found:
        found = "no head" if len(table) else "not tested"
        if not len(table) and not untested:
            found += ", since no head is labelled"
    return [
        f"{_HOLDS}: {found}",
        *(f"not tested by removal: {kind}: {why}" for kind, why in untested.items()),
    ]
