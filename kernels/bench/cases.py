"""The kernels' own cases: what is measured of the probe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..api import attention_probe
from ..values import ProbeOut, Weights
from .problem import Ask, Problem

Found = Mapping[str, Tensor]
"""What a call gives, by the names of `ProbeOut`."""
Call = Callable[[], Found]

BF16 = Weights(dtype=None)
FP32 = Weights(dtype=torch.float32)
GRID = Weights(pool=(64, 64))


@dataclass(frozen=True, eq=False)
class Case:
    """One thing to measure.

    Args:
        name: Unique among the cases.
        ask: What it computes beside attention.
        prepare: Makes the call to be timed from a problem.
        own: Whether it is one of ours; else a baseline, which may be unsupported.
        coarse: Whether it rounds its scores to the inputs' type, as eager attention does.
        context: Surrounds all its calls, such as a choice of backend.
        partial: Whether it gives less than `ask` says; only what it gives is checked then.
    """

    name: str
    ask: Ask
    prepare: Callable[[Problem], Call]
    own: bool = True
    coarse: bool = False
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    partial: bool = False


def own_cases() -> list[Case]:
    """The probe's cases; those in kernels are launches prepared beforehand, outputs included.

    Example:
        >>> [case.name for case in own_cases()][:3]
        ['plain', 'entropy', 'entropy+top']
    """
    in_kernels = {
        "plain": Ask(),
        "entropy": Ask(entropy=True),
        "entropy+top": Ask(entropy=True, top=True),
        **{f"M{n}": Ask(compared=n) for n in (1, 2, 4, 8)},
        **{f"entropy+top+M{n}": Ask(entropy=True, top=True, compared=n) for n in (2, 4)},
        "export bf16, kernels": Ask(weights=BF16),
    }
    through_the_probe = {
        "probe plain": Ask(),
        "probe entropy+top+M4": Ask(entropy=True, top=True, compared=4),
        "few 8": Ask(few=8),
        "columns 16": Ask(columns=16),
        "export bf16": Ask(weights=BF16),
        "export fp32": Ask(weights=FP32),
        "pooled 64x64": Ask(weights=GRID),
        "received": Ask(received=True),
    }
    return [
        *(Case(name, ask, _launches(ask)) for name, ask in in_kernels.items()),
        *(Case(name, ask, through("triton", ask)) for name, ask in through_the_probe.items()),
    ]


def select(cases: Sequence[Case], words: Sequence[str]) -> list[Case]:
    """The cases with one of the given names, or whose name begins with one of them.

    Args:
        cases: To choose from.
        words: Such as "M4" or "export"; none selects all.

    Raises:
        ValueError: A word names no case.

    Example:
        >>> [case.name for case in select(own_cases(), ["M", "received"])]
        ['M1', 'M2', 'M4', 'M8', 'received']
    """
    for word in words:
        if not any(case.name.startswith(word) for case in cases):
            known = ", ".join(repr(case.name) for case in cases)
            raise ValueError(f"no case is named {word!r}; choose from {known}.")
    return [case for case in cases if not words or case.name.startswith(tuple(words))]


def through(backend: str, ask: Ask) -> Callable[[Problem], Call]:
    """How to prepare a call of `attention_probe`.

    Args:
        backend: Its backend.
        ask: What to ask for.
    """

    def prepare(problem: Problem) -> Call:
        matches = problem.matches(ask)

        def call() -> Found:
            return found(
                attention_probe(
                    problem.q, problem.k, problem.v, mask=problem.mask, matches=matches,
                    weights=ask.weights, entropy=ask.entropy, top=ask.top, received=ask.received,
                    backend=backend,
                )
            )  # fmt: skip

        return call

    return prepare


def found(out: ProbeOut) -> dict[str, Tensor]:
    """What a probe gave, without what was not asked for.

    Args:
        out: The probe's.

    Example:
        >>> list(found(ProbeOut(out=None, lse=torch.zeros(1, 2, 3))))
        ['lse']
    """
    given = {name: getattr(out, name) for name in out.__dataclass_fields__}
    return {name: value for name, value in given.items() if value is not None}


def _launches(ask: Ask) -> Callable[[Problem], Call]:
    """Kernels with their outputs, ready to start: what is timed is the device, not the host."""

    def prepare(problem: Problem) -> Call:
        from ..fused.launch import Inputs
        from ..fused.plan import plan_fused
        from ..fused.rows import RowCall

        request = problem.request(ask)
        plan = plan_fused(request, problem.mask)
        if sum(len(sweep.compared) for sweep in plan.sweeps) != ask.compared:
            raise RuntimeError("the labels of this case are not compared one by one.")
        lo, hi = problem.mask.intervals(*request.sizes, request.q.device)
        inputs = Inputs(
            request.q, request.k, lo.contiguous(), hi.contiguous(), None, request.scale, None
        )
        labels = [sweep.labels for sweep in plan.sweeps]
        first = RowCall(inputs, v=request.v, labels=labels[0], entropy=ask.entropy, top=ask.top)
        into = first.outputs()
        launches, masses = first.launches(into), [into.mass]
        for more in labels[1:]:
            further = RowCall(inputs, known=into.lse, labels=more)
            filled = further.outputs()
            launches += further.launches(filled)
            masses.append(filled.mass)
        write = _writer(inputs, into.lse, ask)

        def call() -> Found:
            for launch in launches:
                launch.run()
            gives = {"out": into.out, "lse": into.lse}
            if ask.entropy:
                gives["entropy"] = into.entropy
            if ask.top:
                gives["top_weight"], gives["top_key"] = into.top_weight, into.top_key
            if ask.compared:
                mass = masses[0] if len(masses) == 1 else torch.cat(masses, 1)
                gives["mass"] = mass.permute(0, 2, 3, 1)
            if write is not None:
                gives["weights"] = write()
            return gives

        return call

    return prepare


def _writer(inputs, lse: Tensor, ask: Ask) -> Callable[[], Tensor] | None:
    """The kernel that writes A out; its output, which may fill the device, is made per call."""
    from ..fused.reads import ReadCall

    if ask.weights is None:
        return None
    _, heads, n_query, n_key = inputs.sizes
    read, every = ReadCall(inputs, lse), torch.arange(heads, dtype=torch.int32, device=lse.device)

    def write() -> Tensor:
        into = read.empty_weights(heads, n_query, inputs.q.dtype)
        read.weights(every, None, into).run()
        return into[..., :n_key]

    return write
