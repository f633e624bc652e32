"""From an interval to a grade."""

from __future__ import annotations

from dataclasses import dataclass

from ..interp.errors import InputError

GRADES = ("none", "insufficient", "ambiguous", "weak", "strong")
"""From least to most; *insufficient* is a kind of which too few instances were seen to judge."""

UNLABELLED = GRADES[:2]
"""The grades that claim nothing: looked for and not there, or not to be judged."""


@dataclass(frozen=True)
class Rule:
    """When a head gets a label.

    With [low, high] the simultaneous interval of the excess: *strong* if low ≥ `strong`, *weak*
    if low > `margin`, *ambiguous* if the interval straddles the margin (more prompts would
    decide), else *none*.

    Args:
        margin: excess mass below which a label is of no practical interest.
        strong: excess mass that every value of the interval must reach for *strong*.
        level: simultaneous coverage over heads × kinds.
        resamples: bootstrap draws.

    Example:
        >>> rule = Rule()
        >>> [rule.grade(low, high) for low, high in [(.5, .6), (.12, .3), (.05, .2), (.0, .04)]]
        ['strong', 'weak', 'ambiguous', 'none']
    """

    margin: float = 0.10
    strong: float = 0.25
    level: float = 0.95
    resamples: int = 1000

    def __post_init__(self) -> None:
        if not (0 < self.level < 1 and 0 <= self.margin <= self.strong <= 1):
            raise InputError(
                "a rule needs 0 < level < 1 and 0 ≤ margin ≤ strong ≤ 1; got level "
                f"{self.level}, margin {self.margin}, strong {self.strong}."
            )
        if self.resamples < 100:
            raise InputError(f"at least 100 resamples are needed; got {self.resamples}.")

    def grade(self, low: float, high: float) -> str:
        """Grade of an excess whose simultaneous interval is [low, high]."""
        if low > self.margin:
            return "strong" if low >= self.strong else "weak"
        return "ambiguous" if high > self.margin else "none"
