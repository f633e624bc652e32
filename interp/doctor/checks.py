"""The checks of a report, each a measurement of the model's runs and its limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..closeness import apart
from ..errors import InputError, one_line
from ..forward import left_padding
from ..head_maps import HeadMap
from ..heads import HeadId
from ..sites import Site, hook_drift
from ..weights import head_weights
from .look import worst
from .output import gap, left_out
from .own import own_patterns, pattern_gap
from .padded import PADDING, TOKENS, padded_looks, padding_gap
from .report import FAILS, HOLDS, SKIPPED, TOLD, Finding, figure, judged
from .runs import STEPS, Runs

CALLS = "attention calls"


@dataclass(frozen=True)
class Subject:
    """What is checked.

    Attributes:
        runs: the model's forward passes.
        limit: on relative differences.
        implementation: the model's own attention implementation.
    """

    runs: Runs
    limit: float
    implementation: str


def _calls(subject: Subject, name: str) -> Finding:
    looks, sites = subject.runs.seen.looks, subject.runs.sites
    called = [one.site.label for one in looks]
    wanted = [site.label for site in sites]
    tokens = subject.runs.text.shape[1]
    if called != wanted:
        count = Counter(called)
        odd = [f"{label} {count[label]} times" for label in wanted if count[label] != 1]
        detail = ", ".join(odd[:3]) if odd else "another order than on the probe's 8 tokens"
        return Finding(name, FAILS, f"in one forward of {tokens} tokens: {detail}")
    changed = next((one for one in looks if not one.as_surveyed), None)
    if changed is not None:
        site, (heads, kv, d_head, d_value) = changed.site, changed.shape
        return Finding(
            name, FAILS,
            f"{site.label} attends with {heads} heads, {kv} KV heads, widths {d_head} and "
            f"{d_value}, {_said(changed.causal)}, on {tokens} tokens; surveyed: "
            f"{_shape(site)}",
        )  # fmt: skip
    kinds = Counter((site.stack, _shape(site)) for site in sites)
    told = "; ".join(
        f"{stack + ': ' if stack else ''}{count} of {shape}"
        for (stack, shape), count in kinds.items()
    )
    modules = (
        "1 module, called once" if len(sites) == 1 else f"{len(sites)} modules, each called once"
    )
    if any(site.call for site in sites):
        shared = len({site.module for site in sites})
        modules = f"{len(sites)} calls of {shared} modules that share weights between layers"
    detail = f"{modules}, in order: {told}"
    return Finding(name, HOLDS, detail)


def _shape(site: Site) -> str:
    width = "" if site.inline else f"d_head {site.d_head}, "
    width += f"d_value {site.d_value}, " if site.inline or site.d_value != site.d_head else ""
    seen = " (seen from inside its class)" if site.inline else ""
    return f"{site.n_heads} heads, {site.n_kv_heads} KV heads, {width}{_said(site.causal)}{seen}"


def _said(causal: bool) -> str:
    return "causal" if causal else "not causal"


def _logits(subject: Subject, name: str) -> Finding:
    runs = subject.runs
    probe = hook_drift(runs.model)
    text, out = gap(runs.seen.output, runs.own)
    n = runs.text.shape[1]
    beyond = ""
    if runs.window is not None:
        reached = "beyond" if n > runs.window else "not beyond"
        beyond = f", {reached} the window of {runs.window:,}"
    detail = (
        f"hooked against {subject.implementation}, relative: {figure(probe)} on the survey's "
        f"probe, {figure(text)} on {n} tokens{beyond}{left_out(out)}"
    )
    # of narrow dtypes the largest entry is told and not judged: rounding may move one entry far
    narrow = torch.finfo(runs.model.dtype).bits < 32
    return judged(name, text if narrow else worst([probe, text]), subject.limit, detail)


def _rows(subject: Subject, name: str) -> Finding:
    looks = [*subject.runs.seen.looks, *padded_looks(subject.runs)]
    rows, hidden = worst([one.rows for one in looks]), worst([one.hidden for one in looks])
    least = worst([-one.least for one in looks])
    padded = "" if subject.runs.takes_mask else f" ({subject.runs.no_mask})"
    detail = (
        f"sums (sinks included) off 1 by {figure(rows)}; weight on hidden and padded "
        f"keys {figure(hidden)}{padded}; smallest weight {figure(0.0 - least)}"
    )
    for weight in (hidden, least):
        if not weight <= 0:
            return judged(name, weight, 0.0, detail)
    return judged(name, rows, subject.limit, detail)


def _z(subject: Subject, name: str) -> Finding:
    seen = subject.runs.seen
    far = max(seen.looks, key=lambda one: (one.z != one.z, one.z))
    off = worst([one.z for one in seen.looks])
    detail = f"z from pattern @ v: {figure(off)} of the head's largest value, worst at "
    detail += f"{HeadId(far.site.stack, far.site.layer, far.head)}"
    reaching = len(seen.arrived)
    if not reaching:
        return judged(name, off, subject.limit, f"{detail}; no output projection takes z as it is")
    arrived = worst([*seen.arrived.values()])
    detail += f"; z and what the output projection gets: {figure(arrived)} at {reaching} modules"
    return judged(name, worst([off, arrived]), subject.limit, detail)


def _padding(side: str) -> Callable[[Subject, str], Finding]:
    def measure(subject: Subject, name: str) -> Finding:
        runs = subject.runs
        if not runs.takes_mask:
            return Finding(name, SKIPPED, f"not possible: {runs.no_mask}")
        if side == "left":
            try:
                left_padding(runs.model)
            except InputError as error:
                return Finding(name, SKIPPED, f"not possible: {error}")
        pattern, z = padding_gap(runs, side)
        n = min(TOKENS, max(1, runs.text.shape[1] - PADDING))
        detail = (
            f"{n} tokens beside {PADDING} of padding against the same alone: patterns off by "
            f"{figure(pattern)}, z by {figure(z)}, relative"
        )
        return judged(name, worst([pattern, z]), subject.limit, detail)

    return measure


def _cache(subject: Subject, name: str) -> Finding:
    runs = subject.runs
    stepwise = runs.cached(hook=True)
    if stepwise is None:
        return Finding(name, SKIPPED, f"does not apply: {runs.no_cache}")
    off, out = gap(stepwise, runs.seen.output)
    detail = f"hooked prefill and {STEPS} steps against one hooked run, relative: {figure(off)}"
    detail += left_out(out)
    if not off <= subject.limit:
        own = runs.cached(hook=False)
        if own is not None:
            detail += (
                f"; the model's own steps against its own run: {figure(gap(own, runs.own)[0])}"
            )
    return judged(name, off, subject.limit, detail)


def _attentions(subject: Subject, name: str) -> Finding:
    runs = subject.runs
    try:
        n, own = own_patterns(runs)
    except Exception as error:  # unhooked: whatever the model's own code raises
        return Finding(name, SKIPPED, f"not offered: {type(error).__name__}: {one_line(error)}")
    if not own:
        return Finding(
            name, SKIPPED, "not offered: output_attentions=True returns not one pattern per module"
        )
    off, site = pattern_gap(runs, n, own)
    detail = (
        f"hooked patterns against the model's own (eager) on {n} tokens, relative: {figure(off)}, "
        f"worst at {site.label}"
    )
    if len(own) < len(runs.sites):
        detail += f"; offered for {len(own)} of {len(runs.sites)} modules"
    return judged(name, off, subject.limit, detail)


def _edits(subject: Subject, name: str) -> Finding:
    runs = subject.runs
    by_z, by_pattern = runs.cut("z"), runs.cut("pattern")
    (off, out), moved = gap(by_z, by_pattern), apart(by_z.values, runs.own.values)
    detail = (
        f"one head of each module removed through z or through its pattern: the outputs differ by "
        f"{figure(off)}{left_out(out)}; removing them moves the output by {figure(moved)}"
    )
    return judged(name, off, subject.limit, detail)


def _weights(subject: Subject, name: str) -> Finding:
    try:
        found = head_weights(subject.runs.model)
    except InputError as error:
        return Finding(name, TOLD, f"none can be read: {error}")
    told = []
    for which in ("q", "k", "v", "o"):
        maps: list[HeadMap] = [getattr(one, which) for one in found.values()]
        missing = [one for one in maps if one.weight is None]
        inexact = [one for one in maps if one.weight is not None and not one.exact]
        text = f"W_{which.upper()} exact at {len(maps) - len(missing) - len(inexact)}"
        if inexact:
            text += f", up to a norm or a bound at {len(inexact)} ({inexact[0].inexact})"
        if missing:
            text += f", missing at {len(missing)} ({missing[0].inexact})"
        told.append(text)
    return Finding(name, TOLD, f"of {len(found)} module{'s' * (len(found) > 1)}: {'; '.join(told)}")


CHECKS: dict[str, Callable[[Subject, str], Finding]] = {
    CALLS: _calls,
    "logits": _logits,
    "rows of patterns": _rows,
    "z": _z,
    "left padding": _padding("left"),
    "right padding": _padding("right"),
    "key-value cache": _cache,
    "own attentions": _attentions,
    "edits": _edits,
    "weights": _weights,
}
