"""Run a battery: every kind, every head, one forward pass per batch, sums kept per document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from ..interp.attach import AttentionCall, attach
from ..interp.errors import InputError
from ..interp.forward import run_base
from ..interp.heads import HeadId
from ..interp.probes import Prompts
from ..interp.sites import Site, attention_sites
from ..kernels.api import Match, Weights
from .kinds import NO_KEY, NO_QUERY, Kind, Labels, choose_kinds, previous_copy
from .profile import Bins, count_cells, sample_rows, uniform_mass

OFFSETS = tuple(range(-8, 9))
"""Offsets at which the rate of the largest weight is counted on the sampled rows."""


@dataclass(frozen=True)
class Statistic:
    """One column of the sums: a variant of a kind."""

    kind: str
    variant: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.variant}" if self.variant else self.kind


@dataclass(frozen=True, eq=False)
class Sums:
    """What a battery leaves: sums per document, from which every statistic follows.

    Nothing here depends on the model any more: the bootstrap resamples these sums.

    Args:
        prompts: name of the prompt set.
        heads: the heads, in layer order.
        statistics: the columns of `mass`.
        rows: scored rows, [document, statistic].
        mass: label-match mass summed over the scored rows, [document, head, statistic].
        uniform: the same for evenly spread weights, [document, layer, statistic].
        layer_of: index of each head's layer, [head].
        pairs: matched pairs per cell of the profile, [document, statistic, cell].
        profile: weight summed over sampled pairs, [document, head, cell].
        profile_pairs: sampled pairs, [document, cell].
        largest: sampled rows whose largest weight is at each of `OFFSETS`,
            [document, head, offset].
        largest_rows: sampled rows at which each offset exists, [document, offset].
        null_mass: `mass` for permuted labels, [document, head, draw, permuted statistic].
        null_pairs: `pairs` for permuted labels, [document, draw, permuted statistic, cell].
        permuted: indices into `statistics` of those that were permuted.
    """

    prompts: str
    heads: tuple[HeadId, ...]
    statistics: tuple[Statistic, ...]
    rows: Int[np.ndarray, "document statistic"]
    mass: Float[np.ndarray, "document head statistic"]
    uniform: Float[np.ndarray, "document layer statistic"]
    layer_of: Int[np.ndarray, " head"]
    pairs: Float[np.ndarray, "document statistic cell"]
    profile: Float[np.ndarray, "document head cell"]
    profile_pairs: Float[np.ndarray, "document cell"]
    largest: Float[np.ndarray, "document head offset"]
    largest_rows: Float[np.ndarray, "document offset"]
    null_mass: Float[np.ndarray, "document head draw permuted"]
    null_pairs: Float[np.ndarray, "document draw permuted cell"]
    permuted: tuple[int, ...]

    def take(self, documents: Any) -> Sums:
        """The sums of some documents (a slice, index or boolean array)."""
        per_document = ("rows", "mass", "uniform", "pairs", "profile", "profile_pairs", "largest",
            "largest_rows", "null_mass", "null_pairs")  # fmt: skip
        return replace(self, **{name: getattr(self, name)[documents] for name in per_document})

    def index(self, kind: str, variant: str = "") -> int:
        """Column of a statistic."""
        return self.statistics.index(Statistic(kind, variant))

    def mean(self, kind: str, variant: str = "") -> Float[np.ndarray, " head"]:
        """Mean mass per scored row over all documents: the raw score of every head."""
        column = self.index(kind, variant)
        return self.mass[:, :, column].sum(0) / max(1, self.rows[:, column].sum())


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
    run = _Run(model, sites, prompts, chosen, null_draws, profile_rows, seed)
    length = prompts.ids.shape[1]
    step = max(1, batch_tokens // length)
    for start in range(0, len(prompts), step):
        run.batch(slice(start, min(start + step, len(prompts))))
        if progress is not None:
            progress(min(start + step, len(prompts)))
    return run.sums()


class _Run:
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
        self.heads = tuple(
            HeadId(site.stack, site.layer, head) for site in sites for head in range(site.n_heads)
        )
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
        batch = _Batch(self, documents)
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


class _Batch:
    """Labels of some documents as tensors, and what each layer adds to the run's sums."""

    def __init__(self, run: _Run, documents: slice) -> None:
        self.run, self.documents = run, documents
        self.prompts = run.prompts.select(documents)
        self.labels = [_cut(labels, run.prompts, documents) for labels in run.labels]
        device = run.model.device
        self.ids = torch.from_numpy(self.prompts.ids).to(device)
        self.mask = torch.from_numpy(self.prompts.mask).to(device)
        self.seen = previous_copy(self.prompts) >= 0
        self._uniform: list[tuple[Any, np.ndarray]] = []
        matches, self.column, self.sign = [], [], []
        for index, labels in enumerate(self.labels):
            run.rows[documents, index] = (labels[0].q >= 0).sum(1)
            for pair in labels:
                matches.append(_match(pair, device))
                self.column.append(index)
                self.sign.append(pair.sign)
            if index in run.on_profile:
                run.pairs[documents, index] = count_cells(labels, self.prompts, run.bins, self.seen)
        self.n_plain = len(matches)
        self.matches = (*matches, *self._permuted_matches(device))
        self._sample(device)

    def _permuted_matches(self, device: torch.device) -> list[Match]:
        run, matches = self.run, []
        for draw in range(run.draws):
            for slot, index in enumerate(run.permuted):
                shuffled = permute_labels(self.labels[index][0], self.prompts, run.rng)
                run.null_pairs[self.documents, draw, slot] = count_cells(
                    (shuffled,), self.prompts, run.bins, self.seen
                )
                matches.append(_match(shuffled, device))
        return matches

    def _sample(self, device: torch.device) -> None:
        run, self.weights = self.run, None
        if not run.n_sampled:
            return
        rows = sample_rows(self.prompts, run.n_sampled, run.rng)
        self.weights = Weights(rows=torch.from_numpy(rows).to(device), dtype=torch.float32)
        place, taken = self.prompts.position, np.maximum(rows, 0)
        row_place = np.take_along_axis(place, taken, 1)[:, :, None]
        key_place = place[:, None, :]
        real = (rows >= 0)[:, :, None] & self.prompts.mask[:, None, :]
        visible = real & (key_place <= row_place) if self.prompts.causal else real
        offsets = key_place - row_place
        exists = visible[..., None] & (offsets[..., None] == np.array(OFFSETS))
        run.largest_rows[self.documents] = exists.any(2).sum(1)
        self.offset_of = torch.from_numpy(offsets + 8).to(device)
        self.sampled = torch.from_numpy(rows >= 0).to(device)
        if not run.on_profile:
            return
        seen = np.take_along_axis(self.seen, taken, 1)[:, :, None]
        cell = np.where(visible, run.bins.cell(seen, row_place, key_place), run.bins.count)
        for document, cells in enumerate(cell.reshape(len(cell), -1)):
            counted = np.bincount(cells, minlength=run.bins.count + 1)[:-1]
            run.profile_pairs[self.documents.start + document] = counted
        self.cell = torch.from_numpy(cell).to(device)

    def take(self, index: int, call: AttentionCall) -> None:
        """Add what one layer shows."""
        run = self.run
        out = call.probe(self.matches, weights=self.weights)
        heads = slice(run.first[index], run.first[index + 1])
        if out.mass is not None:
            mass = out.mass.sum(2, dtype=torch.float64).cpu().numpy()
            for match in range(self.n_plain):
                run.mass[self.documents, heads, self.column[match]] += (
                    self.sign[match] * mass[:, :, match]
                )
            if run.draws:
                drawn = mass[:, :, self.n_plain :]
                shape = (*drawn.shape[:2], run.draws, len(run.permuted))
                run.null_mass[self.documents, heads] = drawn.reshape(shape)
        if run.on_uniform:
            self._add_uniform(index, call)
        if out.weights is not None:
            self._add_rows(heads, out.weights)

    def _add_uniform(self, index: int, call: AttentionCall) -> None:
        run = self.run
        for mask, value in self._uniform:  # layers of one kind share their mask object
            if mask is call.mask:
                run.uniform[self.documents, index] = value
                return
        n_query, n_key = call.q.shape[2], call.k.shape[2]
        low, high = (
            x.cpu().numpy()
            for x in call.mask.intervals(len(self.ids), n_query, n_key, call.q.device)
        )
        value = np.zeros((len(self.prompts), len(run.statistics)))
        for column in run.on_uniform:
            value[:, column] = uniform_mass(self.labels[column], self.prompts, low, high)
        self._uniform.append((call.mask, value))
        run.uniform[self.documents, index] = value

    def _add_rows(self, heads: slice, weights: torch.Tensor) -> None:
        """Sampled rows: the profile's sums, and where the largest weight stands."""
        run = self.run
        for document in range(len(weights)):
            target = self.documents.start + document
            rows = weights[document]  # [head, row, key]
            largest = rows.argmax(-1).T  # [row, head]
            offset = self.offset_of[document].gather(1, largest)
            valid = (offset >= 0) & (offset < len(OFFSETS)) & self.sampled[document, :, None]
            hits = torch.nn.functional.one_hot(offset.clamp(0, len(OFFSETS) - 1), len(OFFSETS))
            run.largest[target, heads] = (hits * valid[..., None]).sum(0).cpu().numpy()
            if run.on_profile:
                flat = rows.reshape(len(rows), -1).T.contiguous()  # [row · key, head]
                sums = flat.new_zeros((run.bins.count + 1, len(rows)))
                sums.index_add_(0, self.cell[document].flatten(), flat)
                run.profile[target, heads] = sums[:-1].T.cpu().numpy()


def permute_labels(labels: Labels, prompts: Prompts, rng: np.random.Generator) -> Labels:
    """The same labels, shuffled within each document: same rows scored, same tokens eligible.

    Both sides are shuffled, queries among the scored rows and keys among the real tokens after a
    BOS, so that neither a popular key nor a peculiar query keeps its label.
    """
    q, k = labels.q.copy(), labels.k.copy()
    eligible = prompts.position >= int(prompts.bos)
    for document in range(len(q)):
        scored = np.flatnonzero(q[document] >= 0)
        q[document, scored] = q[document, rng.permutation(scored)]
        keys = np.flatnonzero(eligible[document])
        k[document, keys] = k[document, rng.permutation(keys)]
    return Labels(q, k, labels.strict)


def _statistics(
    kinds: tuple[Kind, ...], prompts: Prompts
) -> tuple[tuple[Statistic, ...], list[tuple[Labels, ...]], list[str]]:
    statistics, labels, nulls = [], [], []
    for kind in kinds:
        for variant, pairs in kind.labels(prompts).items():
            statistics.append(Statistic(kind.name, variant))
            labels.append(pairs)
            nulls.append(kind.null)
    return tuple(statistics), labels, nulls


def _cut(labels: tuple[Labels, ...], prompts: Prompts, documents: slice) -> tuple[Labels, ...]:
    """The labels of some documents, cut to the columns that `Prompts.select` keeps."""
    used = np.flatnonzero(prompts.mask[documents].any(0))
    cut = slice(int(used[0]), int(used[-1]) + 1)
    return tuple(
        Labels(pair.q[documents, cut], pair.k[documents, cut], pair.strict, pair.sign)
        for pair in labels
    )


def _match(labels: Labels, device: torch.device) -> Match:
    q, k = (torch.from_numpy(np.ascontiguousarray(x)).to(device) for x in (labels.q, labels.k))
    return Match(q.clamp_min(NO_QUERY), torch.where(k < 0, NO_KEY, k), labels.strict)
