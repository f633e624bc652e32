"""Hard-concrete gates on attention heads, per query head, per key-value group, or both."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from ...interp.attach import AttentionCall, Edit
from ...interp.errors import InputError
from ...interp.heads import HeadId
from ...interp.sites import Site
from .hard_concrete import BETA, GAMMA, ZETA, open_logit, p_open, sample_gate, test_gate

__all__ = [
    "BETA", "GAMMA", "PER", "START", "ZETA", "Gates", "gate_edit", "p_open", "sample_gate",
    "test_gate",
]  # fmt: skip

PER = ("head", "group", "both")
"""What a gate may stand on: a query head, the query heads of a key-value group, or both."""

START = 2.5
"""The log α that gates start from: test gate 1, and open in 98 % of all draws."""


class Gates(nn.Module):
    """A gate per query head, per key-value group, or both, over all attention of a model.

    With `both`, a head's gate is its own times its group's, drawn independently:

        z_h = z(log α_h) · z(log α_g),   P(z_h ≠ 0) = P(z(log α_h) ≠ 0) P(z(log α_g) ≠ 0)

    Args:
        sites: the model's attention sites.
        per: `head`, `group` or `both`.
        init: the log α that all gates start from.
        beta: temperature.

    Attributes:
        heads: the query heads, in the order of all values below.
        log_alpha: of the heads; None with `group`.
        group_log_alpha: of the groups; None with `head`.

    Raises:
        InputError: another `per`, no site, a temperature that is not in (0, 1], or an `init` that
            is not finite.

    Example:
        >>> site = Site("attn", "", 0, 4, 2, 8, 8, causal=True)
        >>> gates = Gates([site], "group", init=0.0)
        >>> len(gates.heads), gates.group_log_alpha.shape, round(gates.expected_open().item(), 2)
        (4, torch.Size([2]), 3.33)

    Reference:
        Louizos 2018 (the distribution); Voita 2019 (gates on heads); Ainslie 2023 (groups).
    """

    def __init__(
        self, sites: Sequence[Site], per: str = "head", *, init: float = START, beta: float = BETA
    ) -> None:
        super().__init__()
        _check(sites, per, init, beta)
        self.sites, self.per, self.beta = tuple(sites), per, beta
        self.heads: tuple[HeadId, ...] = tuple(head for site in sites for head in site.heads)
        self._parts: dict[Site, slice] = {}
        group_of: list[int] = []
        first_group = 0
        for site in sites:
            self._parts[site] = slice(len(group_of), len(group_of) + site.n_heads)
            size = site.n_heads // site.n_kv_heads
            group_of += [first_group + head // size for head in range(site.n_heads)]
            first_group += site.n_kv_heads
        self.group_of: Tensor
        self.register_buffer("group_of", torch.tensor(group_of), persistent=False)
        self.log_alpha = _parameter(len(self.heads), init) if per != "group" else None
        self.group_log_alpha = _parameter(first_group, init) if per != "head" else None

    def __len__(self) -> int:
        return len(self.heads)

    def test_values(self) -> Float[Tensor, " head"]:
        """The gate of every head without noise."""
        return self._product(test_gate)

    def draw(self, rng: np.random.Generator, draws: int = 1) -> Float[Tensor, "draw head"]:
        """Gates of all heads, drawn at random; differentiable in the log α's.

        Args:
            rng: source of the noise.
            draws: how many independent ones.
        """

        def drawn(log_alpha: Tensor) -> Tensor:
            # the ends of (0, 1) stay apart from 0 and 1 in the parameters' own precision too
            least = torch.finfo(log_alpha.dtype).eps / 2
            u = rng.random((draws, len(log_alpha))).clip(least, 1 - least)
            noise = torch.from_numpy(u).to(log_alpha.device, log_alpha.dtype)
            return sample_gate(log_alpha, noise, self.beta)

        return self._product(drawn)

    def values(
        self, site: Site, sample: bool = False, *, rng: np.random.Generator | None = None
    ) -> Float[Tensor, " head"]:
        """The gates of one site's heads: those used after training, or drawn ones.

        Args:
            site: one of the model's.
            sample: whether to draw them.
            rng: source of the noise, for that.

        Raises:
            InputError: no such site, or nothing to draw from.
        """
        if sample and rng is None:
            raise InputError("drawn gates need a source of noise: pass rng.")
        values = self.draw(rng)[0] if sample and rng is not None else self.test_values()
        return values[self.part(site)]

    def part(self, site: Site) -> slice:
        """Where a site's heads stand among all heads.

        Raises:
            InputError: no such site.
        """
        if site not in self._parts:
            raise InputError(f"these gates have no site {site.label!r}.")
        return self._parts[site]

    def open_probabilities(self) -> Float[Tensor, " head"]:
        """Probability of each head's gate not to be 0; differentiable."""
        return self._product(partial(p_open, beta=self.beta))

    def expected_open(self) -> Float[Tensor, ""]:
        """Expected number of open heads, Σ_h P(z_h ≠ 0): the expected L0 norm; differentiable."""
        return self.open_probabilities().sum()

    def open_probability(self) -> dict[HeadId, float]:
        """Probability of each head's gate not to be 0."""
        return dict(zip(self.heads, self.open_probabilities().tolist(), strict=True))

    @torch.no_grad()
    def ranks(self) -> Float[np.ndarray, " head"]:
        """One log α per head, by which heads are ranked.

        The parameter itself, or with `both` the log α of a single gate that would be open with the
        same probability: logit(P(z_h ≠ 0)) + β ln(−γ / ζ).
        """
        if self.log_alpha is None or self.group_log_alpha is None:
            return self._product(torch.Tensor.double).cpu().numpy()
        own, groups = self.log_alpha.double(), self.group_log_alpha.double()[self.group_of]
        log_p = logsigmoid(open_logit(own, self.beta)) + logsigmoid(open_logit(groups, self.beta))
        logit = log_p - torch.log(-torch.expm1(log_p))
        return (logit - open_logit(torch.zeros_like(logit), self.beta)).cpu().numpy()

    @torch.no_grad()
    def frame(self, removed: Collection[HeadId] | None = None) -> pd.DataFrame:
        """One row per head.

        Args:
            removed: the heads that are cut; None: those whose gate is 0.

        Returns:
            site, layer, head, kv_head, log_alpha (see `ranks`), p_open, gate (without noise), kept.
        """
        gate, p = self.test_values().tolist(), self.open_probabilities().tolist()
        groups = [h // (s.n_heads // s.n_kv_heads) for s in self.sites for h in range(s.n_heads)]
        rows: list[dict[str, Any]] = [
            {
                "site": head.site, "layer": head.layer, "head": head.head, "kv_head": groups[i],
                "log_alpha": float(rank), "p_open": p[i], "gate": gate[i],
                "kept": gate[i] > 0 if removed is None else head not in removed,
            }
            for i, (head, rank) in enumerate(zip(self.heads, self.ranks(), strict=True))
        ]  # fmt: skip
        return pd.DataFrame(rows)

    def _product(self, of: Callable[[Tensor], Tensor]) -> Tensor:
        """What a function of log α gives for each head, times what it gives for its group."""
        own = None if self.log_alpha is None else of(self.log_alpha)
        if self.group_log_alpha is None:
            return own  # pyright: ignore[reportReturnType]
        groups = of(self.group_log_alpha)[..., self.group_of]
        return groups if own is None else own * groups


def gate_edit(gates: Gates, values: Callable[[], Tensor | None]) -> Edit:
    """The edit that multiplies every head's z by its gate.

    Gradients reach the gates through z alone: attention runs fused, and its pattern is never
    written out.

    Args:
        gates: tell which heads are a site's.
        values: asked at each site for the gates of all heads, [1 or document, head]; None leaves
            the model as it is.

    Returns:
        An edit for `attach`. In a forward pass it raises InputError where gates that need
        gradients meet attention that runs without.
    """

    def change(call: AttentionCall, z: Tensor) -> Tensor:
        found = values()
        if found is None:
            return z
        if found.requires_grad and not torch.is_grad_enabled():
            raise InputError(
                f"gradients are off where {call.site.label} attends: a part of the model runs "
                "under no_grad, so gates cannot be trained there. Take that off first."
            )
        return z * found[:, gates.part(call.site)].to(z)[:, :, None, None]

    return Edit("z", change)


def _parameter(count: int, value: float) -> nn.Parameter:
    return nn.Parameter(torch.full((count,), float(value), dtype=torch.float32))


def _check(sites: Sequence[Site], per: str, init: float, beta: float) -> None:
    if per not in PER:
        raise InputError(f"gates stand per {', '.join(PER)}; got {per!r}.")
    if not sites:
        raise InputError("gates need at least one attention site.")
    if not 0 < beta <= 1:
        raise InputError(f"the gates' temperature beta lies in (0, 1]; got {beta!r}.")
    if not math.isfinite(init):
        raise InputError(f"the log alpha that gates start from is finite; got {init!r}.")
