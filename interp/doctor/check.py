"""Check that this toolkit sees a model as it is, and report what was measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..closeness import half_digits
from ..errors import InputError, one_line, shown
from ..forward import undisturbed
from ..signals import reads_signal
from ..sites import attention_sites, check_model
from ..switch import is_switched, own_implementations
from .checks import CALLS, CHECKS, Subject
from .report import FAILS, SKIPPED, CheckReport, Finding
from .runs import Runs
from .signal_runs import SignalRuns


def check(
    model: nn.Module,
    tokenizer: Any = None,
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> CheckReport:
    """Measure whether hooks see a model's attention as it is, on a text of its own length.

    Runs the model some twenty times on at most 1,024 tokens: 64, and as many more as its sliding
    window has. The limit of all figures but weights on hidden keys, which must be 0, is half the
    digits of the weights' dtype, √eps, or of float32 where that has fewer. Training mode, random
    state, gradients and the model's own attention implementation are as before afterwards.

    Args:
        model: a transformers model.
        tokenizer: its tokenizer, to run on English-like text; None: random tokens. Models of images
            and sounds are run on noise.
        progress: called with ("check", checks done, checks to do).

    Returns:
        A finding per check: the attention calls, the logits' drift, rows of patterns, z, padding on
        either side, the KV cache, the model's own attentions, edits, and weights. Where the model
        cannot be hooked, the first one fails with the reason and the others are skipped.

    Raises:
        InputError: no transformers model, or one inside an attach block.

    Example:
        >>> import headatlas as ha
        >>> report = check(*ha.load("tiny"))
        >>> report.ok, report["rows of patterns"].outcome
        (True, 'holds')
    """
    known = check_model(model)
    if tokenizer is not None and not callable(tokenizer):
        raise InputError(f"the tokenizer is the model's, or None; got {shown(tokenizer)}.")
    if is_switched(known):
        raise InputError(
            f"{type(known).__name__} is inside an attach block, where it does not run as its own. "
            "Check it outside the block."
        )
    implementation = next((name for name in own_implementations(known) if name), "no registry")
    dtype = str(known.dtype).removeprefix("torch.")
    exact = torch.autocast(known.device.type, enabled=False)
    with undisturbed(known), torch.no_grad(), exact:
        try:
            sites = attention_sites(known)
        except InputError as error:
            refused = Finding(CALLS, FAILS, str(error))
            skipped = [
                Finding(name, SKIPPED, "the model cannot be hooked") for name in [*CHECKS][1:]
            ]
            return CheckReport(type(known).__name__, implementation, dtype, (refused, *skipped))
        runs = (SignalRuns if reads_signal(known) else Runs)(known, sites, tokenizer)
        subject = Subject(runs, half_digits(known.dtype), implementation)
        subject.runs.text  # noqa: B018  (a tokenizer of another model is the caller's mistake)
        findings: list[Finding] = []
        for number, (name, measure) in enumerate(CHECKS.items()):
            if progress is not None:
                progress("check", number, len(CHECKS))
            findings.append(_guarded(name, measure, subject))
    return CheckReport(type(known).__name__, implementation, dtype, tuple(findings))


def _guarded(name: str, measure: Callable[[Subject, str], Finding], subject: Subject) -> Finding:
    """The finding of a check; it fails where the model does not run that way."""
    try:
        return measure(subject, name)
    except InputError as error:
        return Finding(name, FAILS, str(error))
    except Exception as error:  # whatever a model's own code raises
        return Finding(name, FAILS, f"it could not run: {type(error).__name__}: {one_line(error)}")
