"""From a sweep to evidence: does removing a head harm what its label predicts?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...interp.errors import InputError
from ...interp.heads import HeadId
from ...interp.probes import Prompts
from ..atlas import HeadAtlas
from ..behaviour import AnyBehaviour, Downstream, behaviour_of
from ..bootstrap import Sample, halves, simultaneous_bounds
from ..kind import Kind
from ..kinds import KINDS, choose_kinds
from ..weights.null import false_discovery_q
from .documents import DOCUMENTS, SEQ_LEN, documents
from .layer_trend import layer_trend, rank_p
from .stand_in import ABLATIONS, check_ablations
from .sweep import Progress, Sweep, sweep
from .trials import check_decoder

_ADDRESS = ["site", "layer", "head"]


@dataclass(frozen=True)
class CausalRule:
    """When an effect is evidence.

    Args:
        level: simultaneous coverage of the intervals of one ablation.
        q: false-discovery rate among the heads of a kind up to which one stands out.
        margin: harm that the whole interval must exceed, in the behaviour's unit.
        resamples: bootstrap draws.

    Raises:
        InputError: a number out of range.
    """

    level: float = 0.95
    q: float = 0.05
    margin: float = 0.0
    resamples: int = 1000

    def __post_init__(self) -> None:
        if not (0 < self.level < 1 and 0 < self.q < 1 and self.margin >= 0):
            raise InputError(
                "a causal rule needs 0 < level < 1, 0 < q < 1 and margin ≥ 0; got level "
                f"{self.level}, q {self.q}, margin {self.margin}."
            )
        if self.resamples < 100:
            raise InputError(f"at least 100 resamples are needed; got {self.resamples}.")


@dataclass(frozen=True, eq=False)
class CausalEffects:
    """What removing labelled heads does to the behaviours that their labels predict.

    Args:
        rows: one row per head × kind × ablation: `base`, the behaviour in the whole model;
            `effect`, the harm, with [`low`, `high`] its simultaneous interval; `layer_effect`,
            what the layer alone predicts, and `standing`, effect less that in units of the
            layer's spread; `p` and `q` of the standing; `n` measured rows; `reference`, how many
            other heads p rests on; `evidence`, the verdict of the head as that kind, the same in
            each of its rows.
        sweeps: the sweeps over all heads, by the name of their documents.
        untested: kinds with labelled heads that were left out, and why.
        settings: everything needed to run it again.
    """

    rows: pd.DataFrame
    sweeps: Mapping[str, Sweep] = field(repr=False)
    untested: Mapping[str, str]
    settings: Mapping[str, Any] = field(repr=False)

    def heads(self, kind: str, evidence: str = "pattern + causal") -> list[HeadId]:
        """Heads of a kind with that evidence, largest effect of mean ablation first."""
        rows = self.rows
        rows = rows.loc[(rows["kind"] == kind) & (rows["evidence"] == evidence)]
        rows = rows.loc[rows["ablation"] == "mean"].sort_values("effect", ascending=False)
        return [HeadId(r["site"], r["layer"], r["head"]) for r in rows.to_dict("records")]

    def __repr__(self) -> str:
        lines = []
        for kind in dict.fromkeys(self.rows["kind"]) if len(self.rows) else ():
            found = self.heads(kind)
            total = len(self.rows.loc[self.rows["kind"] == kind, _ADDRESS].drop_duplicates())
            best = " ".join(map(str, found[:4])) + (" …" if len(found) > 4 else "")
            lines.append(f"{kind:16} {len(found)} of {total} pattern + causal  {best}".rstrip())
        lines += [f"{kind:16} not tested: {why}" for kind, why in self.untested.items()]
        return "\n".join(lines) or "no labelled head to test"


@dataclass(frozen=True)
class _Tested:
    """Labelled heads of one kind on one sweep."""

    kind: Kind
    behaviour: AnyBehaviour
    sweep: Sweep
    own: tuple[HeadId, ...]  # all that have the label
    feeding: frozenset[HeadId]  # those labelled as feeding this kind
    shown: tuple[HeadId, ...]  # those asked for


def causal_effects(
    model: Any,
    tokenizer: Any,
    atlas: HeadAtlas,
    *,
    kinds: str | Kind | Sequence[str | Kind] | None = None,
    heads: Iterable[str | HeadId] | None = None,
    ablations: Sequence[str] = ABLATIONS,
    prompts: int = DOCUMENTS,
    seq_len: int = SEQ_LEN,
    text: str | None = None,
    prepend_bos: bool | None = None,
    rule: CausalRule | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: Progress | None = None,
) -> CausalEffects:
    """Test labels by removal: does the behaviour that a head's label predicts suffer without it?

    All heads of the model are removed in turn (`sweep`) on documents that gave no label. For a
    labelled head the evidence is *pattern + causal* if, under mean ablation,

    1. the whole simultaneous interval of its effect (bootstrap over documents, all tested heads
       and kinds at once) lies on the side of harm, above `rule.margin`; and
    2. it stands out among all heads: its standing, (effect − what its layer predicts) / spread of
       such layers (running medians, `layer_trend`), ranks so high among the reference heads that
       its Benjamini–Hochberg q over the labelled heads is ≤ `rule.q`. Where there are too few
       reference heads for any rank to reach that, it must exceed them all.

    Otherwise it is *pattern only*. Heads with the label are no reference for one another, since
    twenty true ones would bar each other from the top twentieth; nor are heads whose own label
    says that they feed this kind (previous-token heads for induction), since removing them harms
    it through the very heads that are tested. Zero and resample ablation stand beside it: zero
    ablation is heavy-tailed, because a head's missing mean is damage of its own.

    Args:
        model: a transformers decoder with a language-model head.
        tokenizer: its tokenizer.
        atlas: the labels, of the same model; heads graded weak or strong are tested.
        kinds: names, `Kind` values, or a list of both; None: all that the atlas scored and that
            can be tested.
        heads: report on these alone; the sweep is over all heads all the same.
        ablations: which of `zero`, `mean`, `resample`; `mean` must be among them.
        prompts: documents of each set, at least 16.
        seq_len: tokens per document.
        text: running text for the natural set; None generates it.
        prepend_bos: True, False, or None for the tokenizer's habit.
        rule: level, rate, margin and resamples.
        seed: of documents, of `resample`, of the bootstrap.
        checkpoint: a `.safetensors` path; each set of documents keeps its finished layers in a
            file of that name with the set's behind it, and goes on from there.
        progress: called with (stage, heads done, heads).

    Returns:
        The effects, with the sweeps they come from.

    Raises:
        InputError: an encoder, an atlas of another model, a kind that was not scored or, if named,
            cannot be tested, or settings that do not fit.

    Example:
        >>> import headatlas as ha
        >>> model, tokenizer = ha.load("tiny")
        >>> atlas = ha.classify(model, tokenizer, prompts=24, seq_len=96,
        ...     kinds="induction,previous_token")
        >>> effects = causal_effects(model, tokenizer, atlas, ablations=["mean"])
        >>> effects.heads("previous_token")[0]
        L1H1

    Reference:
        Michel 2019; Olsson 2022; Wang 2022; Benjamini and Hochberg 1995.
    """
    rule, used = rule or CausalRule(), check_ablations(ablations)
    if "mean" not in used:
        raise InputError(f"the evidence rests on mean ablation; got {', '.join(used)} alone.")
    _check_atlas(model, atlas)
    named = None if heads is None else _named(heads, atlas)
    chosen, untested = _testable(_kinds(kinds, atlas), atlas, tokenizer, must=kinds is not None)
    groups = _by_documents(chosen)
    tested, sweeps = [], dict[str, Sweep]()
    for name, (given, group) in groups.items():
        own = given
        if isinstance(own, str):
            own = documents(
                model, tokenizer, own, prompts=prompts, seq_len=seq_len,
                text=text if own == "natural" else None, prepend_bos=prepend_bos, seed=seed,
            )  # fmt: skip
        behaviours = list({b.name: b for _, b in group}.values())
        swept = sweep(
            model, own, behaviours, ablations=used, labelled=_labelled(behaviours, atlas),
            seed=seed, checkpoint=_file(checkpoint, name), progress=progress,
        )  # fmt: skip
        sweeps[name] = swept
        for kind, behaviour in group:
            having = tuple(sorted(atlas.heads(kind.name)))
            shown = tuple(head for head in having if named is None or head in named)
            tested.append(_Tested(kind, behaviour, swept, having, _feeding(kind, atlas), shown))
    rows = _rows([one for one in tested if one.shown], rule, used, seed)
    settings = {
        "prompts": prompts, "seq_len": seq_len, "seed": seed, "ablations": [*used],
        "rule": vars(rule), "behaviours": {k.name: b.definition for k, b in chosen},
        "resumed": {name: one.resumed for name, one in sweeps.items()},
    }  # fmt: skip
    return CausalEffects(rows, sweeps, untested, settings)


def _check_atlas(model: Any, atlas: Any) -> None:
    if not isinstance(atlas, HeadAtlas):
        raise InputError(f"atlas is what classify gives; got {type(atlas).__name__}.")
    heads = {head for site in check_decoder(model) for head in site.heads}
    if set(atlas) != heads:
        raise InputError(
            f"the atlas has {len(atlas)} heads and the model {len(heads)}: it is another model's."
        )


def _kinds(kinds: Any, atlas: HeadAtlas) -> tuple[Kind, ...]:
    if kinds is None:
        missing = [name for name in atlas.kinds if name not in KINDS]
        if missing:
            raise InputError(
                f"the atlas scored {', '.join(missing)}, which the registry does not have; name "
                "the kinds to test, as Kind values where they are not registered."
            )
        return tuple(KINDS[name] for name in atlas.kinds)
    chosen = choose_kinds(kinds)
    for kind in chosen:
        atlas.heads(kind.name)  # refuses a kind that was not scored
    return chosen


def _testable(
    kinds: Sequence[Kind], atlas: HeadAtlas, tokenizer: Any, *, must: bool
) -> tuple[list[tuple[Kind, AnyBehaviour]], dict[str, str]]:
    """Kinds with labelled heads and their behaviours, and why others cannot be tested."""
    found, untested = [], {}
    for kind in kinds:
        if not atlas.heads(kind.name):
            continue
        behaviour, why = behaviour_of(kind), ""
        if isinstance(behaviour, Downstream) and not _labelled([behaviour], atlas):
            why = f"its behaviour is measured in {behaviour.kind} heads, and none is labelled"
        elif behaviour.prompts == "natural" and tokenizer is None:
            why = "its behaviour is measured on natural text, which needs a tokenizer"
        if why and must:
            raise InputError(f"kind {kind.name} cannot be tested: {why}.")
        if why:
            untested[kind.name] = why
        else:
            found.append((kind, behaviour))
    return found, untested


def _labelled(behaviours: Sequence[AnyBehaviour], atlas: HeadAtlas) -> dict[str, list[HeadId]]:
    """The heads in which `Downstream` behaviours are measured, where the atlas has some."""
    asked = {b.kind for b in behaviours if isinstance(b, Downstream)} & {*atlas.kinds}
    return {kind: atlas.heads(kind) for kind in sorted(asked) if atlas.heads(kind)}


def _feeding(kind: Kind, atlas: HeadAtlas) -> frozenset[HeadId]:
    """Heads with the label of a kind whose behaviour is measured in heads of this one."""
    feeders = [
        name
        for name in atlas.kinds
        if name in KINDS and getattr(KINDS[name].behaviour, "kind", None) == kind.name
    ]
    return frozenset(head for name in feeders for head in atlas.heads(name))


def _by_documents(
    chosen: Sequence[tuple[Kind, AnyBehaviour]],
) -> dict[str, tuple[str | Prompts, list[tuple[Kind, AnyBehaviour]]]]:
    """Kinds whose behaviours are measured on the same documents, by a name for these."""
    groups: dict[str, tuple[str | Prompts, list[tuple[Kind, AnyBehaviour]]]] = {}
    for kind, behaviour in chosen:
        own, name = behaviour.prompts, behaviour.set_name
        count = 1
        while name in groups and groups[name][0] is not own and groups[name][0] != own:
            count += 1
            name = f"{behaviour.set_name}{count}"
        groups.setdefault(name, (own, []))[1].append((kind, behaviour))
    return groups


def _named(heads: Iterable[str | HeadId], atlas: HeadAtlas) -> set[HeadId]:
    listed = [heads] if isinstance(heads, str | HeadId) else list(heads)
    named = {HeadId.parse(head) for head in listed}
    for head in named:
        atlas[head]  # refuses a head that is not there
    return named


def _file(checkpoint: str | Path | None, name: str) -> Path | None:
    if checkpoint is None:
        return None
    path = Path(checkpoint)
    return path.with_name(f"{path.stem}-{name}{path.suffix}")


def _rows(
    tested: Sequence[_Tested], rule: CausalRule, ablations: Sequence[str], seed: int
) -> pd.DataFrame:
    rows = [row for ablation in ablations for row in _of_ablation(tested, ablation, rule, seed)]
    verdicts = {
        (row["kind"], *(row[a] for a in _ADDRESS)): row["evidence"]
        for row in rows
        if row["ablation"] == "mean"
    }
    for row in rows:
        row["evidence"] = verdicts[(row["kind"], *(row[a] for a in _ADDRESS))]
    return pd.DataFrame(rows, columns=[*_COLUMNS]).sort_values(
        _ADDRESS, kind="stable", ignore_index=True
    )


_COLUMNS = (
    *_ADDRESS, "kind", "behaviour", "ablation", "base", "effect", "low", "high", "layer_effect",
    "standing", "p", "q", "n", "reference", "evidence",
)  # fmt: skip


def _of_ablation(
    tested: Sequence[_Tested], ablation: str, rule: CausalRule, seed: int
) -> list[dict[str, Any]]:
    """The rows of one way to remove heads; its intervals hold together."""
    if not tested:
        return []
    samples = [_sample(one, ablation, seed) for one in tested]
    bounds = simultaneous_bounds(samples, level=rule.level, resamples=rule.resamples, seed=seed)
    rows, start = [], 0
    for one in tested:
        rows += _of_kind(one, ablation, bounds.low[start:], bounds.high[start:], rule)
        start += len(one.shown)
    return rows


def _places(one: _Tested, heads: Sequence[HeadId]) -> list[int]:
    return [one.sweep.heads.index(head) for head in heads]


def _sample(one: _Tested, ablation: str, seed: int) -> Sample:
    shown, name = _places(one, one.shown), one.behaviour.name
    return Sample(
        one.sweep.prompts,
        one.sweep.effect(name, ablation)[shown],
        one.sweep.influence(name, ablation)[:, shown],
        halves(one.sweep.n.shape[1], seed=seed),
    )


def _of_kind(
    one: _Tested, ablation: str, low: np.ndarray, high: np.ndarray, rule: CausalRule
) -> list[dict[str, Any]]:
    name, heads = one.behaviour.name, one.sweep.heads
    effect = one.sweep.effect(name, ablation)
    trend = layer_trend(effect, np.array([head.layer for head in heads]))
    labelled, shown = _places(one, one.own), _places(one, one.shown)
    reference = np.ones(len(heads), dtype=bool)
    reference[labelled] = False
    reference[_places(one, sorted(one.feeding))] = False
    standing = trend.standing(effect)
    p = rank_p(standing, reference)
    q = np.full(len(heads), np.nan)
    q[labelled] = false_discovery_q(p[labelled])
    place = one.sweep.behaviours.index(name)
    fewest = int(reference.sum())
    # the least p that a rank among so few can have, were it alone at the top
    coarse = len(labelled) / (1 + fewest) > rule.q
    rows = []
    for index, head in enumerate(shown):
        above = q[head] <= rule.q or (coarse and fewest > 0 and p[head] <= 1 / (1 + fewest))
        holds = bool(low[index] > rule.margin and above)
        rows.append(
            {
                "site": heads[head].site, "layer": heads[head].layer, "head": heads[head].head,
                "kind": one.kind.name, "behaviour": name, "ablation": ablation,
                "base": float(one.sweep.weights(name) @ one.sweep.base[place]),
                "effect": float(effect[head]), "low": float(low[index]),
                "high": float(high[index]), "layer_effect": float(trend.centre[head]),
                "standing": float(standing[head]),
                "p": float(p[head]), "q": float(q[head]), "n": int(one.sweep.n[place].sum()),
                "reference": fewest, "evidence": "pattern + causal" if holds else "pattern only",
            }
        )  # fmt: skip
    return rows
