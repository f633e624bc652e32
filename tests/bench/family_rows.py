"""What works on one model: captures, edits, weights, removal; a row of docs/families.md."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from headatlas.circuits.prune.remove.remove import remove_heads
from headatlas.interp.capture import capture
from headatlas.interp.errors import InputError
from headatlas.interp.heads import HeadId
from headatlas.interp.interventions import gate, run, zero
from headatlas.interp.signals import probe_signal, reads_signal
from headatlas.interp.sites import Site, attention_sites
from headatlas.interp.weights import head_weights

_NAMES = {"q": "W_Q", "k": "W_K", "v": "W_V", "o": "W_O"}


@dataclass(frozen=True)
class Works:
    """What was found to work on a hooked model beside captures and edits, in the table's words.

    Attributes:
        weights: of W_Q, W_K, W_V and W_O those that are exact in all sites, then those that are
            exact up to a norm.
        removal: "yes" where one head of the first layer was cut out, with the logits of the
            model without it; else "no".
        why_not: of each thing that does not work.
    """

    weights: str
    removal: str
    why_not: str = ""


def what_works(model: Any) -> Works:
    """Try everything on a hooked model, tiny and random; what is wrong raises an AssertionError."""
    sites = attention_sites(model)
    ids = torch.randint(3, 90, (2, 12), generator=torch.Generator().manual_seed(0))
    more = {"decoder_ids": ids[:, :7]} if any(site.stack == "dec" for site in sites) else {}
    if reads_signal(model):
        with torch.no_grad():
            ids = probe_signal(model, 2, {"decoder_input_ids": ids[:, :7]} if more else {}).values
    _check_captured(capture(model, None, ids, names_filter=["pattern", "z", "v"], **more), sites)
    _check_edits(model, ids, [site.heads[0] for site in sites], more)
    removal, why_not = "yes", ""
    try:
        remove_heads(model, [sites[0].heads[0]])
    except InputError as error:
        removal, why_not = "no", str(error)
    return Works(_weights(model), removal, why_not)


def _check_captured(seen: Any, sites: tuple[Site, ...]) -> None:
    """Rows of weights, and z = A v."""
    for site in sites:
        name = f"{site.prefix}blocks.{site.layer}.attn.hook_"
        pattern, z, v = (seen[name + kind] for kind in ("pattern", "z", "v"))
        assert bool((pattern >= 0).all()), f"{site.module}: a negative weight"
        # scores of unscaled wide heads reach hundreds, whose rounding the softmax hands on
        assert float(pattern.sum(-1).max()) <= 1 + 1e-4, f"{site.module}: a row over 1"
        values = v.repeat_interleave(site.n_heads // v.shape[2], 2)
        mixed = torch.einsum("bhqk,bkhd->bqhd", pattern, values)
        live = (pattern.sum(-1) > 0).transpose(
            1, 2
        )  # what a query without keys gives counts nowhere
        torch.testing.assert_close(mixed[live], z[live], rtol=1e-3, atol=1e-4)


def _check_edits(model: Any, ids: torch.Tensor, heads: list[HeadId], more: dict[str, Any]) -> None:
    """A head of each module set to zero changes the output; multiplied by 1 it does not."""
    plain, kept, without = (
        run(model, ids, edits, **more)[0] for edits in ([], gate(heads, 1.0), zero(heads))
    )
    torch.testing.assert_close(kept, plain)
    assert not torch.equal(without, plain), "heads change nothing"


def _weights(model: Any) -> str:
    exact, near = Counter[str](), Counter[str]()
    found = head_weights(model)
    for one in found.values():
        for kind, name in _NAMES.items():
            part = getattr(one, kind)
            exact[name] += part.weight is not None and not part.inexact
            near[name] += part.weight is not None
    whole = [name for name in _NAMES.values() if exact[name] == len(found)]
    rest = [name for name in _NAMES.values() if near[name] == len(found) and name not in whole]
    said = re.sub("W_", "", " ".join(whole)) or "–"
    return said + (f"; up to a norm {re.sub('W_', '', ' '.join(rest))}" if rest else "")
