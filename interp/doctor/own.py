"""The patterns that a model itself gives under `output_attentions=True`, beside the hooked ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from ..attach import attach
from ..attention_call import AttentionCall
from ..closeness import apart
from ..errors import InputError
from ..sites import Site
from ..switch import EAGER, switched
from .runs import Runs

_PATTERNS = 256 << 20  # bytes of the model's own patterns that are held at a time
_MARK = "_output_capturing_hooks_installed"


def own_patterns(runs: Runs) -> tuple[int, dict[Site, Tensor]]:
    """The model's own `attentions` under its eager implementation, and of how many tokens.

    Sites are missing where it returns none, or not one for each of the stack's.
    """
    n = runs.text.shape[1]
    per_square = sum(site.n_heads for site in runs.sites) * runs.own.values.element_size()
    n = min(n, max(16, int((_PATTERNS / per_square) ** 0.5)))
    with switched(runs.model, EAGER), _without_traces(runs.model):
        output = runs.model(**runs.inputs(runs.text[:, :n]), output_attentions=True)
    found: dict[Site, Tensor] = {}
    names = {"": "attentions", "enc": "encoder_attentions", "dec": "decoder_attentions"}
    for stack in dict.fromkeys(site.stack for site in runs.sites):
        own = getattr(output, names.get(stack, "cross_attentions"), None) or ()
        own = [pattern for pattern in own if isinstance(pattern, Tensor)]
        sites = [site for site in runs.sites if site.stack == stack]
        if len(own) == len(sites):
            found |= dict(zip(sites, own, strict=True))
    return n, found


def pattern_gap(runs: Runs, n: int, own: dict[Site, Tensor]) -> tuple[float, Site]:
    """How far hooked patterns are from the model's own; the worst site."""
    gaps: dict[Site, float] = {}

    def compare(call: AttentionCall) -> None:
        if call.site in own:
            gaps[call.site] = apart(call.pattern, own[call.site])

    with attach(runs.model, observers=[compare]):
        runs.model(**runs.inputs(runs.text[:, :n]))
    if gaps.keys() != own.keys():
        raise InputError("not every site attended in the hooked run.")
    site = max(gaps, key=lambda s: (gaps[s] != gaps[s], gaps[s]))
    return gaps[site], site


@contextmanager
def _without_traces(model: nn.Module) -> Iterator[None]:
    """Take off the hooks that transformers leaves on a model once its attentions were asked for."""
    before = {module: set(module._forward_hooks) for module in model.modules()}
    unmarked = [module for module in before if _MARK not in module.__dict__]
    try:
        yield
    finally:
        for module, kept in before.items():
            for key in [key for key in module._forward_hooks if key not in kept]:
                del module._forward_hooks[key]
        for module in unmarked:  # else transformers would not put them on again
            module.__dict__.pop(_MARK, None)
