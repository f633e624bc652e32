"""Run a battery: every kind, every head, one forward pass per batch, sums kept per document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ..interp.attach import AttentionCall, attach
from ..interp.errors import InputError
from ..interp.forward import run_base
from ..interp.probes import Prompts
from ..interp.sites import Site, attention_sites
from .batch import Batch
from .kinds import Kind, choose_kinds
from .label_vectors import Labels
from .profile import Bins
from .sums import OFFSETS, Statistic, Sums

_SMALL = 10_000_000  # parameters


@torch.no_grad()
def score(
    model: Any,
    prompts: Prompts,
    kinds: Sequence[Kind] | str | None = None,
    *,
    null_draws: int = 0,
    profile_rows: int = 32,
    seed: int = 0,
    batch_tokens: int = 1024,
    progress: Callable[[int], None] | None = None,
) -> Sums:
    """Score every head for every kind on a set of prompts, in one forward pass per batch.

    For each head and statistic the mass Σ_i Σ_j A[i, j] · [q_label[i] == k_label[j]] is summed
    over the scored rows of each document, while the model runs without its LM head and no N × N
    pattern is ever held.

    Args:
        model: a transformers model.
        prompts: the documents; padding is allowed on either side.
        kinds: kinds or their names; None scores all that the prompts can serve.
        null_draws: how many times the labels of the content kinds are permuted within each
            document and scored in the same pass.
        profile_rows: rows per document whose weights are exported to estimate the profile.
        seed: seed of the sampled rows and permutations.
        batch_tokens: tokens per forward pass (at least one document).
        progress: called with the number of documents done after each batch.

    Returns:
        The sums per document.

    Raises:
        InputError: the model has no attention that can be hooked, a kind cannot be scored on
            these prompts, or the attention is not finite.

    Example:
        >>> import headatlas as ha
        >>> from headatlas.interp.probes import random_prompts
        >>> model, tokenizer = ha.load("tiny")
        >>> prompts = random_prompts(np.arange(100, 900), 2, 48, bos_id=tokenizer.bos_token_id)
        >>> sums = score(model, prompts, "previous_token")
        >>> sums.mass.shape
        (2, 32, 1)
    """
    chosen = choose_kinds(kinds) if kinds is None or isinstance(kinds, str) else tuple(kinds)
    sites = attention_sites(model)
    run = Run(model, sites, prompts, chosen, null_draws, profile_rows, seed)
    length = prompts.ids.shape[1]
    step = max(1, batch_tokens // length)
    with _few_threads(model):
        for start in range(0, len(prompts), step):
            run.batch(slice(start, min(start + step, len(prompts))))
            if progress is not None:
                progress(min(start + step, len(prompts)))
    return run.sums()


@contextmanager
def _few_threads(model: Any) -> Iterator[None]:
    """One thread for a small model: waiting for the others costs it more than they bring.

    torch's thread count is process-wide; it is restored on exit.
    """
    threads = torch.get_num_threads()
    if model.device.type == "cpu" and sum(p.numel() for p in model.parameters()) < _SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Run:
    """The state of one battery: labels drawn, arrays being filled, one batch at a time."""

    def __init__(
        self,
        model: Any,
        sites: tuple[Site, ...],
        prompts: Prompts,
        kinds: tuple[Kind, ...],
        null_draws: int,
        profile_rows: int,
        seed: int,
    ) -> None:
        self.model, self.sites, self.prompts = model, sites, prompts
        self.rng = np.random.default_rng((seed, 3))
        self.statistics, self.labels, nulls = _statistics(kinds, prompts)
        self.heads = tuple(head for site in sites for head in site.heads)
        self.first = np.cumsum([0, *(site.n_heads for site in sites)])
        self.place = {site.module: index for index, site in enumerate(sites)}
        self.on_profile = [i for i, null in enumerate(nulls) if null == "profile"]
        self.on_uniform = [i for i, null in enumerate(nulls) if null == "uniform"]
        wants_rows = bool(self.on_profile) or any(kind.candidates for kind in kinds)
        self.n_sampled = profile_rows if wants_rows else 0
        self.bins = Bins(int(prompts.mask.sum(1).max()), prompts.causal)
        # companions such as most_recent share the kind's draw of chance; one check is enough
        plain = [i for i in self.on_profile if not self.statistics[i].variant]
        self.permuted = tuple(plain) if null_draws else ()
        self.draws = null_draws if self.permuted else 0
        self._allocate()

    def _allocate(self) -> None:
        documents, heads, stats = len(self.prompts), len(self.heads), len(self.statistics)
        cells = self.bins.count if self.on_profile else 0
        permuted = len(self.permuted)
        self.rows = np.zeros((documents, stats), np.int64)
        self.mass = np.zeros((documents, heads, stats))
        self.uniform = np.zeros((documents, len(self.sites), stats))
        self.pairs = np.zeros((documents, stats, cells), np.float32)
        self.profile = np.zeros((documents, heads, cells), np.float32)
        self.profile_pairs = np.zeros((documents, cells), np.float32)
        self.largest = np.zeros((documents, heads, len(OFFSETS)), np.float32)
        self.largest_rows = np.zeros((documents, len(OFFSETS)), np.float32)
        self.null_mass = np.zeros((documents, heads, self.draws, permuted))
        self.null_pairs = np.zeros((documents, self.draws, permuted, cells), np.float32)

    def batch(self, documents: slice) -> None:
        """Run one batch of documents and write its sums."""
        batch = Batch(self, documents)
        seen_sites: set[int] = set()

        def observe(call: AttentionCall) -> None:
            index = self.place[call.site.module]
            seen_sites.add(index)
            batch.take(index, call)

        with attach(self.model, observers=[observe]):
            run_base(self.model, batch.ids, batch.mask)
        if len(seen_sites) != len(self.sites):
            missing = next(s for i, s in enumerate(self.sites) if i not in seen_sites)
            raise InputError(
                f"the attention layer {missing.module} was not called in this forward; "
                "its heads cannot be scored."
            )
        if not np.isfinite(self.mass[documents]).all():
            head = int(np.argwhere(~np.isfinite(self.mass[documents]).all((0, 2)))[0, 0])
            raise InputError(
                f"the attention of {self.heads[head]} is not finite (NaN or infinity) on set "
                f"{self.prompts.name}; check the model's weights and its dtype."
            )

    def sums(self) -> Sums:
        """The filled arrays as a value."""
        layer_of = np.repeat(np.arange(len(self.sites)), [site.n_heads for site in self.sites])
        return Sums(
            self.prompts.name, self.heads, self.statistics, self.rows, self.mass, self.uniform,
            layer_of, self.pairs, self.profile, self.profile_pairs, self.largest,
            self.largest_rows, self.null_mass, self.null_pairs, self.permuted,
        )  # fmt: skip


def _statistics(
    kinds: tuple[Kind, ...], prompts: Prompts
) -> tuple[tuple[Statistic, ...], list[tuple[Labels, ...]], list[str]]:
    statistics, labels, nulls = [], [], []
    for kind in kinds:
        for variant, pairs in kind.variants(prompts).items():
            statistics.append(Statistic(kind.name, variant))
            labels.append(pairs)
            nulls.append(kind.null)
    return tuple(statistics), labels, nulls
