"""Which model families can be hooked: transformers' models, tiny and random.

    python -m tests.bench.figures coverage

The families are those of three of transformers' auto classes, causal, masked and
sequence-to-sequence language models, and its encoders of images and sounds. Each is tried with a
config shrunk to two layers or so. What `attention_sites` says of it is the table: it runs the model
as it is and hooked, and refuses what differs. Families of which no shrunk model runs in time are
counted apart, by what stopped them: nothing is known of their hooking.
"""

from __future__ import annotations

import faulthandler
import re
import signal
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import torch
import transformers

from headatlas.interp.errors import InputError
from headatlas.interp.sites import attention_sites, hook_drift
from headatlas.interp.weights import head_weights

from ..conftest import FAMILIES, SEQ2SEQ_FAMILIES, build_tiny
from .family_rows import Works, what_works
from .small_models import SORTS, NotBuiltError, families, small_model
from .small_signals import FAMILIES as SIGNAL_SORTS

LIMIT_S = 60
_KILL_S = 2 * LIMIT_S  # where a loop in compiled code lets no signal through
# what else stops a family before it can be hooked
TOO_LONG = f"more than {LIMIT_S} s"
DIED = "its process died"


@dataclass(frozen=True)
class Tried:
    """What came of one family.

    Attributes:
        outcome: "hooked", "refused", "not tried", or "broken" where hooking ends in an error that
            is no refusal.
        reason: the refusal, the error, or what stopped it before it was tried.
        detail: the error behind a reason.
        drift: of the hooked forward, relative to the largest output.
        inline: hooked in its classes' own code, outside transformers' attention registry.
        works: what else works on it; None unless it is hooked.
    """

    family: str
    sort: str
    outcome: str
    reason: str = ""
    detail: str = ""
    drift: float = 0.0
    inline: bool = False
    works: Works | None = None


class TooLongError(BaseException):
    """The time of one family is over; no `except Exception` on the way may take it for its own."""


def tried(family: str, sort: str) -> Tried:
    """Build one family and see whether it can be hooked."""
    try:
        model = small_model(family, sort)
    except NotBuiltError as error:
        return Tried(family, sort, "not tried", str(error), _said(error.__cause__))
    try:
        inline = any(site.inline for site in attention_sites(model))
        drift, works = hook_drift(model), what_works(model)
        return Tried(family, sort, "hooked", drift=drift, inline=inline, works=works)
    except InputError as error:
        return Tried(family, sort, "refused", str(error))
    except Exception as error:  # a fault of this project: the table must show it
        return Tried(family, sort, "broken", f"hooking raises {type(error).__name__}", _said(error))


def _said(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}"


def tried_in_time(family: str, sort: str) -> Tried:
    """The same with an end after `LIMIT_S` seconds, whatever catches errors on the way.

    The alarm goes off again and again, since code that cleans up after the first may hang as well.
    """
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S, LIMIT_S / 10)
    try:
        return tried(family, sort)
    except TooLongError:
        return Tried(family, sort, "not tried", TOO_LONG)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _too_long(*_: Any) -> None:
    raise TooLongError


def _in_worker(family: str, sort: str) -> Tried:
    """One family in a process of its own, which ends itself where no signal gets through."""
    faulthandler.dump_traceback_later(_KILL_S, exit=True)
    try:
        return tried_in_time(family, sort)
    finally:
        faulthandler.cancel_dump_traceback_later()


def sweep() -> list[Tried]:
    """Every family, each in a process that the next one takes over if it lives."""
    found, waiting = list[Tried](), list(families())
    while waiting:
        start = time.monotonic()
        try:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                while waiting:
                    start = time.monotonic()
                    found.append(pool.submit(_in_worker, *waiting[0]).result())
                    waiting.pop(0)
                    print(*(found[-1].family, found[-1].outcome, found[-1].reason[:90]), flush=True)
        except BrokenProcessPool:
            why = TOO_LONG if time.monotonic() - start >= _KILL_S else DIED
            found.append(Tried(*waiting.pop(0), "not tried", why))
    return found


def layout(family: str) -> str:
    """A row of the table of families that the tests run on, checked in every detail."""
    model = build_tiny(family, attn="eager")
    sites = attention_sites(model)
    first = sites[0]
    shared = f"{first.n_heads} on {first.n_kv_heads}"
    masks = {site.causal for site in sites}
    sees = "both ways" if masks == {False} else "earlier" if masks == {True} else "both, earlier"
    stacks = ", ".join(dict.fromkeys(site.stack for site in sites if site.stack)) or "–"
    weights = head_weights(model)
    exact = "exact" if all(weights[site].exact for site in sites) else "up to a norm"
    return f"| {family} | {shared} | {sees} | {stacks} | {exact} |"


def reason(text: str) -> str:
    """A refusal without the names of modules, so that families of one reason stand together."""
    for pattern, words in (
        (
            r"parts of (the tokens|\d+ inputs)",
            "attends within windows or other parts of its tokens",
        ),
        (r"several softmaxes", "several softmaxes in one attention call"),
        (r"are not tokens", "its queries or keys are not the tokens (pooled, or behind prompts)"),
        (r"without transformers' attention reg", "attention of its own without a plain softmax"),
        (r"no attention heads", "no attention heads found"),
        (r"not seen", "some of its attention has no plain softmax"),
        (r"see no key", "what padding on the left gives reaches tokens"),
        (r"runs several times", "layers share weights"),
        (r"selects keys", "sparse attention: keys are selected by an index"),
        (r"more than once", "layers that run in an order that changes"),
        (r"runs alone, but not", "the forward breaks with its attention and masks replaced"),
        (r"no plain linear map takes z", "no plain linear map takes z"),
        (r"where q and k are not seen", "q and k are not seen"),
        (r"equal no output", "its queries, keys or values are no projection's output"),
        (r"another output each time", "it gives another output each time it runs"),
        (r"differ", "hooked outputs differ from its own"),
    ):
        if re.search(pattern, text):
            return words
    return text.split(". ")[0][:120]


def _share(found: list[Tried], *, signals: bool) -> str:
    """How many are hooked of those that attend, in words."""
    own = [row for row in found if (row.sort in SIGNAL_SORTS) == signals]
    attend = [
        row
        for row in own
        if row.outcome == "hooked"
        or (row.outcome != "not tried" and "no attention heads" not in row.reason)
    ]
    hooked = sum(row.outcome == "hooked" for row in attend)
    return f"{hooked} of {len(attend)} ({hooked / len(attend):.1%})"


def _names(rows: list[Tried]) -> str:
    return ", ".join(sorted(row.family for row in rows))


def line(found: Tried) -> str:
    """One line of the table of all families."""
    how = {"hooked": "in its own code" if found.inline else "yes", "refused": "no"}
    works, why, done = found.works, "", ("–", "–", "–")
    if works is None:
        why = reason(found.reason)
    else:
        done = works.weights, works.removal, f"{found.drift:.0e}"
        why = works.why_not and f"removal: {reason(works.why_not)}"
    cells = found.family, found.sort, how.get(found.outcome, found.outcome), *done, why
    return "| " + " | ".join(cells) + " |"


def markdown() -> dict[str, str]:
    """The tables of docs/coverage.md."""
    head = "| family | heads on key-value heads | a query sees | stacks | W_Q … W_O |\n"
    head += "|---|---|---|---|---|"
    rows = [layout(family) for family in FAMILIES]
    assert set(SEQ2SEQ_FAMILIES) <= set(FAMILIES)
    found = sweep()
    hooked = [row for row in found if row.outcome == "hooked"]
    lines = ["| | families |", "|---|---|"]
    for sort in SORTS:
        for inline, how in ((False, "hooked"), (True, "hooked in their own code")):
            own = [row for row in hooked if (row.sort, row.inline) == (sort, inline)]
            if own:
                lines.append(f"| {sort}s, {how} ({len(own)}) | {_names(own)} |")
    refused: dict[str, list[Tried]] = {}
    for row in found:
        if row.outcome == "refused":
            refused.setdefault(reason(row.reason), []).append(row)
    for why, own in sorted(refused.items(), key=lambda item: -len(item[1])):
        lines.append(f"| refused: {why} ({len(own)}) | {_names(own)} |")
    unknown = [row for row in found if row.outcome == "not tried"]
    for outcome in ("broken", "not tried"):
        rest = [row for row in found if row.outcome == outcome]
        for why in sorted({row.reason for row in rest}):
            own = [row for row in rest if row.reason == why]
            lines.append(f"| {outcome}: {why} ({len(own)}) | {_names(own)} |")
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    worst = max(hooked, key=lambda row: row.drift)
    broken = sum(row.outcome == "broken" for row in found)
    counts = (
        f"{len(found)} families, {versions}: {len(hooked)} hooked (largest drift "
        f"{worst.drift:.0e}, {worst.family}), {sum(map(len, refused.values()))} refused, "
        f"{f'{broken} broken, ' if broken else ''}{len(unknown)} not tried. Of those with "
        f"attention that ran, hooked are {_share(found, signals=False)} of the language models and "
        f"{_share(found, signals=True)} of the encoders of images and sounds.\n"
    )
    every = [
        "| family | sort | captures and edits | weights | removal | drift | why not |",
        "|---|---|---|---|---|---|---|",
        *(line(one) for one in sorted(found, key=lambda one: one.family)),
    ]
    parts = {"": [head, *rows], "sweep": [counts, *lines], "rows": every}
    return {name: "\n".join(lines) for name, lines in parts.items()}
