"""The sweep: remove every head in turn, and see what the model can no longer do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from ...interp.errors import InputError
from ...interp.heads import HeadId
from ...interp.probes import Prompts
from ...interp.sites import unbridged
from ..arguments import whole_number
from ..behaviour import AnyBehaviour, Behaviour, Downstream
from ..fingerprint import fingerprint_model
from .measures import Labelled, Measure, measure_of
from .stand_in import ABLATIONS, Removal, check_ablations
from .sweep_file import Checkpoint, fingerprint_sweep, refuse_edited
from .trials import Trials

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total)."""


@dataclass(frozen=True, eq=False)
class Sweep:
    """What removing each head does to each behaviour, on every document.

    Harm is positive where the behaviour suffers: the rise of a loss, the fall of a mass.

    Args:
        prompts: name of the documents.
        heads: the heads that were removed, one at a time.
        behaviours: names of what was measured.
        ablations: how heads were removed.
        n: measured rows, [behaviour, document].
        base: mean measure in the whole model, [behaviour, document].
        harm: change of that mean towards harm, [ablation, behaviour, document, head].
        resumed: whether runs began at the removed head's block, which was found to be exact;
            else every run was a whole forward pass.
        chosen_rows: whether logits were computed at measured positions only, likewise.
    """

    prompts: str
    heads: tuple[HeadId, ...]
    behaviours: tuple[str, ...]
    ablations: tuple[str, ...]
    n: Int[np.ndarray, "behaviour document"] = field(repr=False)
    base: Float[np.ndarray, "behaviour document"] = field(repr=False)
    harm: Float[np.ndarray, "ablation behaviour document head"] = field(repr=False)
    resumed: bool
    chosen_rows: bool

    def delta(self, behaviour: str, ablation: str = "mean") -> Float[np.ndarray, "document head"]:
        """Harm of removing each head, per document.

        Raises:
            InputError: that was not measured.
        """
        for name, known in ((behaviour, self.behaviours), (ablation, self.ablations)):
            if name not in known:
                raise InputError(f"{name!r} is not in this sweep of {', '.join(known)}.")
        return self.harm[self.ablations.index(ablation), self.behaviours.index(behaviour)]

    def effect(self, behaviour: str, ablation: str = "mean") -> Float[np.ndarray, " head"]:
        """Harm over all measured rows: Σ_d n_d δ_d / Σ_d n_d."""
        return self.weights(behaviour) @ self.delta(behaviour, ablation)

    def influence(
        self, behaviour: str, ablation: str = "mean"
    ) -> Float[np.ndarray, "document head"]:
        """Influence of each document on `effect`, as the bootstrap reads it."""
        weights = self.weights(behaviour)
        centred = self.delta(behaviour, ablation) - self.effect(behaviour, ablation)
        return len(weights) * weights[:, None] * centred

    def weights(self, behaviour: str) -> Float[np.ndarray, " document"]:
        """Each document's share of the measured rows."""
        n = self.n[self.behaviours.index(behaviour)]
        return n / n.sum()

    @property
    def rows(self) -> pd.DataFrame:
        """One row per head × behaviour × ablation: base, effect, n."""
        found = []
        for head_index, head in enumerate(self.heads):
            for place, behaviour in enumerate(self.behaviours):
                base = float(self.weights(behaviour) @ self.base[place])
                found += [
                    {
                        "site": head.site, "layer": head.layer, "head": head.head,
                        "behaviour": behaviour, "ablation": ablation, "base": base,
                        "effect": float(self.effect(behaviour, ablation)[head_index]),
                        "n": int(self.n[place].sum()),
                    }
                    for ablation in self.ablations
                ]  # fmt: skip
        return pd.DataFrame(found)


def sweep(
    model: Any,
    prompts: Prompts,
    behaviours: AnyBehaviour | Sequence[AnyBehaviour],
    *,
    heads: Iterable[str | HeadId] | None = None,
    ablations: Sequence[str] = ABLATIONS,
    labelled: Labelled | None = None,
    seed: int = 0,
    batch_tokens: int = 2048,
    checkpoint: str | Path | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Remove heads one at a time, and measure what each removal does to behaviours.

        δ[d, h] = ± (measure of document d without h − measure of document d)

    with the sign that makes harm positive. A removal acts on z, the head's output before W_O:
    `zero` puts 0 there; `mean` its mean over the other documents at the same position (Wang 2022;
    the mean over positions too would give the sink of the first position to all the others);
    `resample` its value at the same position of another document, drawn once for all heads among
    those no shorter.

    Runs begin at the block of the removed head, and logits are computed at measured positions
    alone, where trying has shown both to be exact to rounding (`Sweep.resumed`, `chosen_rows`).
    States and z of all layers are held meanwhile: 2 · layers · documents · pos · d_model numbers.

    Args:
        model: a transformers decoder with a language-model head.
        prompts: the documents; padding is allowed on either side.
        behaviours: what to measure, one or several; all in the same forward passes.
        heads: which heads to remove; None: every one.
        ablations: which of `zero`, `mean`, `resample`.
        labelled: for a `Downstream`, the heads of its kind.
        seed: of the other documents for `resample`.
        batch_tokens: tokens per forward pass (at least one document).
        checkpoint: a `.safetensors` file. Finished layers are written to it; if it exists, it is
            gone on from, after checking that it is of the same weights and settings.
        progress: called with (stage, heads done, heads).

    Returns:
        The harm per document.

    Raises:
        InputError: no decoder with a head, unknown heads or ablations, nothing to measure, outputs
            that are not finite without a head, or a checkpoint of something else.

    Example:
        >>> import numpy as np
        >>> import headatlas as ha
        >>> from headatlas.circuits.behaviour import INDUCTION
        >>> from headatlas.interp.probes import random_prompts
        >>> model, tokenizer = ha.load("tiny")
        >>> prompts = random_prompts(np.arange(100, 900), 4, 32, bos_id=tokenizer.bos_token_id)
        >>> found = sweep(model, prompts, INDUCTION, heads=["L2H2", "L0H0"], ablations=["mean"])
        >>> found.delta("second_copy_loss").shape, found.resumed
        ((4, 2), True)

    Reference:
        Michel 2019 (one head at a time); Wang 2022 (mean); Chan 2022 (resampling); Olsson 2022.
    """
    model = unbridged(model)
    asked = check_behaviours(behaviours)
    kinds = check_ablations(ablations)
    seed, batch_tokens = (
        whole_number("seed", seed, 0), whole_number("batch_tokens", batch_tokens, 1),
    )  # fmt: skip
    if not isinstance(prompts, Prompts):
        raise InputError(f"prompts are a Prompts; got {type(prompts).__name__}.")
    measures = [measure_of(behaviour, prompts, labelled or {}) for behaviour in asked]
    trials = Trials(model, prompts, measures, seed=seed, batch_tokens=batch_tokens)
    chosen = choose_heads(trials, heads)
    file = None
    if checkpoint is not None:
        refuse_edited(model)
        settings = fingerprint_sweep(prompts, measures, chosen, kinds, seed)
        file = Checkpoint(Path(checkpoint), fingerprint_model(model), settings)
    values = sweep_values(trials, chosen, kinds, file, progress)
    harm = _towards_harm(values, trials.base, measures)
    return Sweep(
        prompts.name, chosen, tuple(m.name for m in measures), kinds,
        np.stack([m.n for m in measures]), trials.base, harm,
        trials.resumed, trials.chosen_rows,
    )  # fmt: skip


def sweep_values(
    trials: Trials,
    heads: tuple[HeadId, ...],
    ablations: tuple[str, ...],
    file: Checkpoint | None,
    progress: Progress | None,
) -> Float[np.ndarray, "head ablation behaviour document"]:
    """The measures without each head, layer by layer, each of which is kept in a file.

    Raises:
        InputError: outputs that are not finite without a head, or a file of something else.
    """
    shape = (len(heads), len(ablations), *trials.base.shape)
    values, done = (
        (np.zeros(shape), np.zeros(len(heads), bool)) if file is None else file.read(shape)
    )
    layers = groupby(range(len(heads)), key=lambda i: (heads[i].site, heads[i].layer))
    for _, group in layers:
        places = [place for place in group if not done[place]]
        if places:
            removals = [Removal(a, (heads[place],)) for place in places for a in ablations]
            found = trials.run(removals)
            check_finite(found, removals)
            values[places] = found.reshape(len(places), len(ablations), *shape[2:])
            done[places] = True
            if file is not None:
                file.write(values, done)
        if progress is not None:
            progress(f"ablate {trials.prompts.name}", int(done.sum()), len(heads))
    return values


def check_finite(found: np.ndarray, removals: Sequence[Removal]) -> None:
    """Refuse what no statistic can read, before it is kept in a file."""
    wrong = np.flatnonzero(~np.isfinite(found).all(axis=(1, 2)))
    if wrong.size:
        first = removals[wrong[0]]
        more = f" and {len(first.heads) - 1} more" if len(first.heads) > 1 else ""
        raise InputError(
            f"the model's outputs are not finite when {first.heads[0]}{more} is removed "
            f"({first.ablation}). Load it in a wider dtype, or leave out that ablation or head."
        )


def _towards_harm(
    values: np.ndarray, base: np.ndarray, measures: Sequence[Measure]
) -> Float[np.ndarray, "ablation behaviour document head"]:
    sign = np.array([measure.harm for measure in measures])[:, None]
    return ((values - base) * sign).transpose(1, 2, 3, 0)


def check_behaviours(behaviours: Any) -> tuple[AnyBehaviour, ...]:
    """One or several behaviours, of different names.

    Raises:
        InputError: something else, none, or two of one name.
    """
    single = isinstance(behaviours, Behaviour | Downstream)
    found = (behaviours,) if single else tuple(behaviours) if _is_list(behaviours) else ()
    if not found or not all(isinstance(one, Behaviour | Downstream) for one in found):
        raise InputError(
            f"behaviours are a Behaviour, a Downstream, or a list of them; got {behaviours!r}."
        )
    names = [one.name for one in found]
    if len(set(names)) < len(names):
        raise InputError(f"two behaviours have the same name among {', '.join(names)}.")
    return found


def choose_heads(trials: Trials, heads: Iterable[str | HeadId] | None) -> tuple[HeadId, ...]:
    """Heads of the model in order, each once; None: all.

    Raises:
        InputError: none, or one that the model does not have.
    """
    if heads is None:
        return trials.heads
    listed = [heads] if isinstance(heads, str | HeadId) else list(heads)
    chosen = tuple(sorted({HeadId.parse(head) for head in listed}))
    if not chosen:
        raise InputError("no head is named; None takes all.")
    trials.check_heads(chosen)
    return chosen


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)
