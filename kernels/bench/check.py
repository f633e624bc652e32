"""A case against the float64 oracle, before it may be timed.

A case passes where each of its outputs errs by at most twice what a plain computation in the same
types does, which holds for every reordering of the sums, and a small floor for its own roundings
(of exp2, of sums within tiles). Outputs are full of NaN before the kernels write them.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils.deterministic
from torch import Tensor

from ..api import attention_probe
from ..values import Weights
from .cases import Case, Found, found
from .problem import Ask, Problem, Setting, build

LENIENCE = 2.0
"""Errors of the plain computation that a kernel may make."""
FLOOR = 5e-5
"""What it may err besides: 32-bit sums of up to 1,000 terms, and exp2 of a few units in the last
place, stay five times below."""
TINY = 1e-9
"""Where relative errors end: below every visible weight of the checks, above none."""
_memory: Any = torch.utils.deterministic  # its switch is a property that checkers do not see
_RELATIVE = ("mass", "top_weight", "weights", "received")


@dataclass(frozen=True)
class Check:
    """How a case fared on one setting.

    Args:
        case: Its name.
        setting: Sizes, in words.
        errors: Output -> (its error, the limit); empty where the call failed.
        note: Why it failed though no error exceeds its limit, or could not be checked.
        skipped: Whether it could not be checked: a baseline that is unsupported here.

    Example:
        >>> Check("plain", "N 9", {"out": (0.1, 0.2)}).passed
        True
    """

    case: str
    setting: str
    errors: dict[str, tuple[float, float]]
    note: str = ""
    skipped: bool = False

    @property
    def passed(self) -> bool:
        """Whether it may be timed."""
        within = all(error <= limit for error, limit in self.errors.values())
        return bool(self.errors) and within and not self.note

    @property
    def reason(self) -> str:
        """Why it may not."""
        over = [
            f"{name} errs by {error:.2g}, limit {limit:.2g}"
            for name, (error, limit) in self.errors.items()
            if not error <= limit
        ]
        return "; ".join(over + [self.note] * bool(self.note))


def settings(case: Case, d: int, dtype: torch.dtype = torch.bfloat16) -> list[Setting]:
    """Where a case is checked: on the very kernels that are timed, and on odd, padded sizes.

    Args:
        case: The case.
        d: Head width.
        dtype: Of q, k and v.

    Example:
        >>> from .cases import own_cases
        >>> [str(setting) for setting in settings(own_cases()[0], 64)]
        ['d 64, N 512, 32 heads, bfloat16', 'd 64, N 509, 4 heads of 2, bfloat16, padded']
    """
    as_timed = Setting(d, 512, dtype=dtype)  # same alignment of sizes and strides: same kernels
    odd = Setting(d, 509, heads=4, kv_heads=2, batch=2, dtype=dtype, padded=True)
    return [as_timed, odd] if case.own else [as_timed]


def check_case(case: Case, setting: Setting, device: torch.device, seed: int) -> Check:
    """Compare every output of a case with the oracle.

    Args:
        case: The case.
        setting: Sizes.
        device: Where to run.
        seed: Of the inputs.

    Returns:
        The errors found. An unsupported baseline is skipped; a case of ours that raises fails.
    """
    try:
        errors = _errors(case, build(setting, device, seed))
    except Exception as error:  # whatever it is: this case cannot be timed, the others may
        return Check(case.name, str(setting), {}, one_line(error), skipped=not case.own)
    return Check(case.name, str(setting), errors)


def _errors(case: Case, problem: Problem) -> dict[str, tuple[float, float]]:
    poison = poisoned(problem.q.device) if case.own else contextlib.nullcontext()
    with poison, torch.no_grad(), case.context():
        got = dict(case.prepare(problem)())
    exact = oracle(problem, case.ask)
    if not case.partial and set(got) != set(exact):
        raise RuntimeError(f"it gave {sorted(got)} where {sorted(exact)} was asked for.")
    rough = plain(problem, case.ask, coarse=case.coarse)
    errors = {}
    for name, value in got.items():
        if name == "top_key":
            errors[name] = top_error(value, problem), FLOOR
            continue
        limit = LENIENCE * distance(name, rough[name], exact[name]) + FLOOR
        errors[name] = distance(name, value, exact[name]), limit
    return errors


@contextlib.contextmanager
def poisoned(device: torch.device) -> Iterator[None]:
    """Fill new memory with NaN (integers: the largest) until the block ends.

    Args:
        device: Where it is made sure that this holds.

    Raises:
        RuntimeError: New memory is not filled: the check would be void.

    Example:
        >>> with poisoned(torch.device("cpu")):
        ...     torch.empty(2)
        tensor([nan, nan])
    """
    deterministic = torch.are_deterministic_algorithms_enabled()
    only_warn = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = _memory.fill_uninitialized_memory
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of operators that have no deterministic form
            torch.use_deterministic_algorithms(True, warn_only=True)
            _memory.fill_uninitialized_memory = True
            if not bool(torch.empty(8, device=device).isnan().all()):
                raise RuntimeError(f"new memory on {device} is not filled with NaN.")
            yield
    finally:
        _memory.fill_uninitialized_memory = fill
        torch.use_deterministic_algorithms(deterministic, warn_only=only_warn)


def one_line(error: BaseException) -> str:
    """An error as one line of at most 200 characters.

    Example:
        >>> one_line(ValueError("no such\\nthing"))
        'ValueError: no such thing'
    """
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def oracle(problem: Problem, ask: Ask) -> Found:
    """The exact outputs, in float64.

    Args:
        problem: The inputs.
        ask: What to compute.
    """
    weights = ask.weights
    if weights is not None:
        weights = replace(weights, dtype=torch.float64)
    exact = attention_probe(
        problem.q.double(), problem.k.double(), problem.v.double(), mask=problem.mask,
        matches=problem.matches(ask), weights=weights, entropy=ask.entropy, top=ask.top,
        received=ask.received, backend="reference",
    )  # fmt: skip
    return found(exact)


def plain(problem: Problem, ask: Ask, *, coarse: bool = False) -> Found:
    """The outputs as a straightforward computation in the inputs' type gives them.

    Scores, softmax and sums in float32, the weights rounded for the product with v and when they
    are written.

    Args:
        problem: The inputs.
        ask: What to compute.
        coarse: Scores and weights are rounded to the inputs' type before anything is summed.
    """
    q, k, v = problem.q, problem.k, problem.v
    dtype, group = q.dtype, problem.request(ask).group
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    hidden = ~_visible(problem)[:, None]
    s = (q @ k.mT).float() if coarse else q.float() @ k.float().mT
    s = s * q.shape[-1] ** -0.5
    s = (s.to(dtype).float() if coarse else s).masked_fill(hidden, -math.inf)
    lse = torch.logsumexp(s, -1)
    A = torch.exp(s - torch.where(lse == -math.inf, 0.0, lse)[..., None])
    A = A.to(dtype).float() if coarse else A
    parts = torch.special.entr(A.to(dtype) if coarse else A).float()
    gives = {"out": A.to(dtype) @ v, "lse": lse, "entropy": parts.sum(-1)}
    gives["top_weight"] = A.amax(-1)
    gives["received"] = A.sum(-2)
    equal = [m.q_label[:, None, :, None] == m.k_label[:, None, None] for m in problem.matches(ask)]
    if equal:
        gives["mass"] = torch.stack([(A * hit).sum(-1) for hit in equal], -1)
    if ask.weights is not None:
        gives["weights"] = _written(A, ask.weights).to(ask.weights.dtype or dtype)
    return gives


def _visible(problem: Problem) -> Tensor:
    setting = problem.setting
    device = problem.q.device
    lo, hi = problem.mask.intervals(setting.batch, setting.n, setting.n, device)
    key = torch.arange(setting.n, device=device)
    return (key >= lo[..., None]) & (key < hi[..., None])


def _written(A: Tensor, weights: Weights) -> Tensor:
    if weights.pool is None:
        return A
    high, wide = weights.pool
    bands = [x.mean(-2) for x in A.split(high, -2)]
    return torch.stack([torch.stack([x.mean(-1) for x in b.split(wide, -1)], -1) for b in bands], 2)


def distance(name: str, got: Tensor, exact: Tensor) -> float:
    """The largest error of an output, in units of what its rounding may be.

    Weights and their sums are compared relatively, `out` relatively to the largest number of its
    row, lse and entropy absolutely (relatively from 1 on). NaN, a wrong shape, and a number where
    there should be an infinity are infinitely wrong.

    Args:
        name: The output.
        got: Its value.
        exact: What it should be, float64.

    Example:
        >>> distance("mass", torch.tensor([0.75, 0.0]), torch.tensor([0.5, 0.0]).double())
        0.5
    """
    if got.shape != exact.shape:
        return math.inf
    got, exact = got.double(), exact.double()
    if not got.numel():
        return 0.0
    difference = torch.where(got == exact, 0.0, (got - exact).abs())
    unit = exact.abs()
    if name == "out":
        unit = unit.amax(-1, keepdim=True)
    elif name not in _RELATIVE:
        unit = torch.where(unit.isfinite(), unit, 1.0).clamp(min=1.0)
    errors = difference / unit.clamp(min=TINY)
    worst = errors.max()  # NaN if any is
    return math.inf if worst.isnan() else round(float(worst), 12)


def top_error(top_key: Tensor, problem: Problem) -> float:
    """By how much the weight of the chosen keys falls short of the largest, relatively.

    Args:
        top_key: Chosen key of each row.
        problem: The inputs.
    """
    A = oracle(problem, Ask(weights=Weights()))["weights"]
    highest = A.amax(-1)
    in_range = (top_key >= -1) & (top_key < A.shape[-1])
    if top_key.shape != highest.shape or not bool(in_range.all()):
        return math.inf
    if not torch.equal(top_key < 0, highest == 0):
        return math.inf
    chosen = A.gather(-1, top_key.clamp(min=0).long()[..., None])[..., 0]
    return float((1 - chosen / highest.clamp(min=TINY)).masked_fill(highest == 0, 0.0).max())
