"""Score every head for links between words: a forward pass per batch, sums kept per document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ...interp.attach import AttentionCall, attach
from ...interp.errors import InputError
from ...interp.forward import run_base
from ...interp.probes import MIN_PROMPTS
from ...interp.sites import Site, unbridged
from ..arguments import whole_number
from ..score import check_direction
from .batch import Found, WordBatch
from .instances import Instances, Pairs, Shuffled, find_instances
from .kind import WordKind
from .kinds import choose_word_kinds
from .prompts import WordPrompts
from .sums import WordBins, WordSums, empty_sums

MIN_INSTANCES = 400
"""Kinds with fewer visible instances are scored but not labelled."""


@torch.no_grad()
def score_words(
    model: Any,
    prompts: WordPrompts,
    kinds: str | WordKind | Sequence[str | WordKind] | None = None,
    *,
    mute: str | None = None,
    null_draws: int = 0,
    seed: int = 0,
    batch_tokens: int = 1024,
    progress: Callable[[int], None] | None = None,
) -> WordSums:
    """Score every head for links between words.

    The weight from word w to word u is W[w, u] = Σ_j A[i, j] over the tokens j of u, where i is
    the last token of w in a decoder; in an encoder it is the mean over the tokens i of w. For each
    instance (a word w and the words it is linked to) three things are counted:

    - its mass, Σ_u W[w, u] over the linked words, never renormalised;
    - a hit if argmax_u W[w, u] is a linked word, over the other words, in a decoder over earlier
      ones and without the first position (on which heads rest);
    - for each linked word u, whether argmax_w W[w, u], over the words that see it, is linked to it.

    Args:
        model: a transformers model with one stack.
        prompts: parsed documents as tokens, from `word_prompts`.
        kinds: kinds or their names; None scores all relations of the documents in both directions,
            coreference and what was registered, as far as the documents hold visible links.
        mute: `refuse` or `drop` kinds without a visible link; None refuses what is named and drops
            what is not.
        null_draws: how often the links of kinds with enough instances are shuffled and scored in
            the same pass; each draw takes about heads × kinds × documents × 8 bytes.
        seed: seed of the shuffles.
        batch_tokens: tokens per forward pass, padding included (at least one sequence).
        progress: called with the number of sequences done after each batch.

    Returns:
        The sums per document.

    Raises:
        InputError: the model has no attention that can be hooked, several stacks or another
            direction than the prompts, fewer than 16 documents, a kind without a visible link, or
            attention that is not finite.

    Example:
        >>> import headatlas as ha
        >>> from headatlas.circuits.words.prompts import word_prompts
        >>> from headatlas.interp.grammar import Grammar
        >>> from headatlas.interp.parsed import from_grammar
        >>> model, tokenizer = ha.load("tiny")
        >>> documents = [from_grammar(d) for d in Grammar(0).documents(16)]
        >>> prompts = word_prompts(tokenizer, documents, sentences=True, prepend_bos=True)
        >>> score_words(model, prompts, "syntactic.det.to_dependent").mass.mass.shape
        (16, 32, 1)

    Reference:
        Clark et al. 2019, section 4.1, for attention between words; Voita et al. 2019.
    """
    model = unbridged(model)
    if not isinstance(prompts, WordPrompts):
        raise InputError(f"prompts are a WordPrompts; got {type(prompts).__name__}.")
    if prompts.n_units < MIN_PROMPTS:
        raise InputError(
            f"intervals come from resampling documents, at least {MIN_PROMPTS}; got "
            f"{prompts.n_units}. Pass more, or each sentence as one: by_sentence(documents)."
        )
    draws = whole_number("null_draws", null_draws, 0)
    seed = whole_number("seed", seed, 0)
    size = whole_number("batch_tokens", batch_tokens, 1)
    chosen = choose_word_kinds(kinds, prompts.documents)
    instances = find_instances(
        prompts, chosen, empty=mute or ("drop" if kinds is None else "refuse")
    )
    with attach(model) as sites:
        check_direction(sites, causal=prompts.causal)
    scoring = _Scoring(sites, prompts, instances, draws, seed)
    done = 0
    for rows in _batches(prompts, size):
        scoring.run(model, rows)
        done += len(rows)
        if progress is not None:
            progress(done)
    return scoring.finished()


def _batches(prompts: WordPrompts, size: int) -> Iterator[np.ndarray]:
    """Numbers of the sequences of each batch: of like lengths, so that little is padding."""
    lengths = prompts.mask.sum(1)
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and lengths[order[stop]] * (stop + 1 - start) <= size:
            stop += 1
        yield np.sort(order[start:stop])
        start = stop


class _Scoring:
    """The sums, filled batch by batch."""

    def __init__(
        self,
        sites: Sequence[Site],
        prompts: WordPrompts,
        instances: Instances,
        draws: int,
        seed: int,
    ) -> None:
        self._sites, self._prompts = sites, prompts
        heads = [head for site in sites for head in site.heads]
        permuted = _shuffled_columns(instances) if draws else ()
        self._draws = draws if permuted else 0
        self._sums = empty_sums(instances, heads, draws=self._draws, permuted=permuted)
        self._bins = WordBins.of(prompts)
        self._pairs = (instances.pairs, self._shuffle(instances, seed))
        self._count_cells(instances.pairs, self._sums.mass.pairs)
        ends = np.cumsum([0, *(site.n_heads for site in sites)])
        self._place = {site: slice(int(ends[i]), int(ends[i + 1])) for i, site in enumerate(sites)}

    def _shuffle(self, instances: Instances, seed: int) -> Pairs:
        """The shuffled links, with what rules of offset guess of them."""
        sums, rows = self._sums, []
        permuted = sums.mass.permuted
        for draw, slot, moved in Shuffled(instances, permuted, self._draws, seed):
            column = draw * len(permuted) + slot
            units = self._prompts.unit[[one.sequence for one in moved]]
            np.add.at(sums.mass.null_rows[:, draw, slot], units, 1)
            rows += [(one.sequence, one.query, key, column) for one in moved for key in one.keys]
            instances.count_offsets(sums.null_guesses[:, draw, slot], moved)
        pairs = Pairs.of(rows, self._draws * len(permuted))
        cells = sums.mass.null_pairs
        self._count_cells(pairs, cells.reshape(len(cells), pairs.n_columns, cells.shape[-1]))
        return pairs

    def _count_cells(self, pairs: Pairs, counts: np.ndarray) -> None:
        """How many pairs fall in each cell of the profile, [unit, column, cell]."""
        several = self._prompts.n_tokens > 1
        cell = self._bins.cell(
            several[pairs.sequence, pairs.query], several[pairs.sequence, pairs.key],
            pairs.query, pairs.key,
        )  # fmt: skip
        np.add.at(counts, (self._prompts.unit[pairs.sequence], pairs.column, cell), 1)

    def run(self, model: Any, rows: np.ndarray) -> None:
        """Run the model on some sequences and add what its layers show."""
        widest = max(site.n_heads for site in self._sites)
        batch = WordBatch(
            self._prompts, rows, self._pairs, self._bins, n_heads=widest, device=model.device
        )
        counts = batch.profile_pairs[:-1].reshape(len(batch.units), -1)
        self._sums.mass.profile_pairs[batch.units] += counts
        taken: set[Site] = set()

        def observe(call: AttentionCall) -> None:
            taken.add(call.site)
            self._add(batch.units, self._place[call.site], batch.read(call))

        with attach(model, observers=[observe]):
            run_base(model, batch.ids, batch.mask)
        missed = [site.module for site in self._sites if site not in taken]
        if missed:
            raise InputError(
                f"the attention layer {missed[0]} was not called in this forward; its heads "
                "cannot be scored."
            )

    def _add(self, units: np.ndarray, heads: slice, found: Found) -> None:
        sums, n = self._sums, len(units)
        every = np.arange(heads.start, heads.stop)
        at = np.ix_(units, every)

        def shaped(values: torch.Tensor) -> np.ndarray:
            """[slot, head] as [unit, head, column]."""
            columns = len(values) // n
            return values.reshape(n, columns, -1).transpose(1, 2).cpu().numpy()

        sums.mass.mass[at] += shaped(found.mass)
        sums.hits.mass[at] += shaped(found.hits)
        sums.chosen.mass[at] += shaped(found.chosen)
        sums.mass.profile[at] += shaped(found.profile[:-1])
        if self._draws:
            shape = (n, len(every), *sums.mass.null_mass.shape[2:])
            sums.mass.null_mass[at] += shaped(found.null_mass).reshape(shape)
            sums.hits.null_mass[at] += shaped(found.null_hits).reshape(shape)

    def finished(self) -> WordSums:
        """The sums of all sequences.

        Raises:
            InputError: attention that is not finite.
        """
        masses = (self._sums.mass.mass, self._sums.mass.profile)
        spoilt = np.any([~np.isfinite(values).all((0, 2)) for values in masses], axis=0)
        if spoilt.any():
            raise InputError(
                f"the attention of {self._sums.heads[int(spoilt.argmax())]} is not finite (NaN or "
                "infinity) on these documents; check the model's weights and its dtype."
            )
        return self._sums


def _shuffled_columns(instances: Instances) -> tuple[int, ...]:
    """Kinds' own statistics with instances enough for a label."""
    enough = instances.rows.sum(0) >= MIN_INSTANCES
    return tuple(
        column
        for column, statistic in enumerate(instances.columns)
        if enough[column] and not statistic.variant
    )
