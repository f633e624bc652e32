"""Classify the heads of a model: prompts, scores, labels, in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from transformers import PreTrainedModel

from ..interp.errors import InputError
from ..interp.parsed import Parsed
from ..interp.probes import Prompts
from ..interp.signals import reads_signal
from ..interp.sites import attention_sites, unbridged
from .asked import AnyKind, Asked, ask
from .atlas import HeadAtlas
from .battery import Battery
from .grade import Rule
from .kinds import Kind
from .label import label
from .null_check import check_null
from .provenance import describe, settings, versions
from .score import one_direction, score
from .settle import Settled, scorer, settle
from .signal_battery import SignalBattery
from .sums import Sums
from .words.label import WordRule, WordTests
from .words.null_check import check_words
from .words.prompts import SET, WordPrompts
from .words.score import score_words
from .words.sums import WordSums

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total) after each batch."""


def classify(
    model: Any,
    tokenizer: Any = None,
    *,
    kinds: AnyKind | Sequence[AnyKind] | None = None,
    prompts: int | str = 64,
    seq_len: int | None = None,
    text: str | None = None,
    treebank: str | Path | Sequence[Parsed] | None = None,
    prepend_bos: bool | None = None,
    null_draws: int = 0,
    rule: Rule | None = None,
    seed: int = 0,
    inputs: Any = None,
    progress: Progress | None = None,
) -> HeadAtlas:
    """Say what each attention head of a model does, with what chance alone would give.

    Every head is scored for every kind on repeated random tokens and on natural text; the excess
    over the mass expected by chance gets a simultaneous interval from a bootstrap over documents
    and a grade (`Rule`), with the field's own threshold verdict beside it. Grades depend on
    `seq_len`: compare atlases of one length only.

    Inside an `attach` block with edits the edited model is what is classified, and the atlas does
    not say so.

    Args:
        model: a transformers model.
        tokenizer: its tokenizer; without one, kinds that need text are left out (and asking for
            them is an error), and positional kinds are judged on random tokens alone.
        kinds: names, `Kind` or `WordKind` values, or a list of these; None takes every kind on
            tokens, and with a treebank every kind between words. `syntactic` names all relations
            in both directions, `syntactic.nsubj` one, `coreference` the mentions.
        prompts: documents per prompt set, at least 16; under 32 the intervals are rough. `"auto"`
            adds documents until the labels have settled (at least 95 % of them are given by both
            halves of the documents, or stay from one round to the next), 512 at most; the rounds
            are in `settings["settled"]`. That is for kinds on tokens: parsed documents do not grow
            (`settings["settled"]["treebank"]` says so), and where all kinds are between words
            `"auto"` is refused. If they have too few instances, give a number or a larger treebank.
        seq_len: tokens per document, BOS included; None takes 256, or the model's context.
        text: running text for the natural set, refused where no kind reads that set; None
            generates it from the built-in grammar.
        treebank: parsed documents for the kinds between words (see `read_conllu`,
            `read_mentions`, `parse_text`), or the path of a CoNLL-U file; None, where such a kind
            is named, takes as many documents of the built-in grammar as `prompts` (64 for
            `"auto"`).
        prepend_bos: True, False, or None for the tokenizer's habit.
        null_draws: permutations of the content labels to score beside the true ones, on each
            prompt set; the result is in `HeadAtlas.null_check`. Refused where no kind has labels
            that are permuted (`null="profile"` without competing variants).
        rule: margins, level and resamples.
        seed: seed of everything random.
        inputs: of a model that reads images or sounds: 16 of these or more, as its processor gives
            them or as a tensor [batch, …]; None makes as many as `prompts`, of noise with the
            spectrum of natural ones. Kinds are then those of position, on a grid of patches those
            of rows, columns and neighbours; options for text are refused.
        progress: called with (stage, done, total).

    Returns:
        The atlas.

    Raises:
        InputError: the model has no attention that can be hooked, the settings do not fit it, a
            kind is unknown or scores no row, or the text is too short.

    Example:
        >>> import headatlas as ha
        >>> model, tokenizer = ha.load("tiny")
        >>> atlas = ha.classify(model, tokenizer, kinds="previous_token", prompts=16, seq_len=64)
        >>> len(atlas.rows)
        32

    Reference:
        Voita 2019, Clark 2019, Olsson 2022 for the kinds; the nulls and grades are this project's.
    """
    model = unbridged(model)
    rule = _checked_rule(rule)
    if isinstance(model, PreTrainedModel) and reads_signal(model):
        for_text = {
            "a tokenizer": tokenizer, "seq_len": seq_len, "text": text, "treebank": treebank,
            "prepend_bos": prepend_bos, "null_draws": null_draws,
        }  # fmt: skip
        own = SignalBattery.read(model, for_text, prompts=prompts, seed=seed, inputs=inputs)
        return _classify_signals(model, own, kinds, rule, progress)
    if inputs is not None:
        raise InputError("inputs are images or sounds, which the model does not read; pass text.")
    battery = Battery(prompts, seq_len, text, prepend_bos, null_draws, seed, treebank)
    _check_tokenizer(model, tokenizer)
    sites = attention_sites(model)
    asked = ask(kinds, battery)
    on_tokens = _usable(asked, tokenizer, text)
    sets = battery.prompt_sets(model, tokenizer, on_tokens, causal=one_direction(sites))
    settled = None
    if battery.settles and on_tokens:
        settled = _settle(model, battery, on_tokens, sets, rule, progress)
        sums = settled.sums
    else:
        sums = _score_sets(model, battery, on_tokens, sets, progress)
    words, every = None, dict[str, Prompts | WordPrompts](sets)
    if asked.words:
        parsed = battery.word_prompts(model, tokenizer, causal=one_direction(sites))
        words, every[SET] = _score_between(model, battery, asked, parsed, progress), parsed
    tests = None if words is None else WordTests(words, _word_rule(rule), battery.seed)
    return HeadAtlas(
        label(sums, on_tokens, rule, words=tests, seed=battery.seed),
        describe(model, sites),
        versions(),
        settings(battery, rule, (*on_tokens, *(words.kinds if words else ())), every, settled),
        _null_check(battery, rule, sums, words),
    )


def _classify_signals(
    model: Any,
    battery: SignalBattery,
    kinds: AnyKind | Sequence[AnyKind] | None,
    rule: Rule,
    progress: Progress | None,
) -> HeadAtlas:
    """As `classify`, of a model that reads images or sounds."""
    sites = attention_sites(model)
    sets = battery.prompt_sets(model, causal=one_direction(sites))
    chosen = battery.kinds(kinds, sets)
    sums = _score_sets(model, battery, chosen, sets, progress)
    return HeadAtlas(
        label(sums, chosen, rule, seed=battery.seed),
        describe(model, sites),
        versions(),
        settings(battery, rule, chosen, sets, None),
    )


def _score_sets(
    model: Any,
    battery: Battery | SignalBattery,
    kinds: tuple[Kind, ...],
    sets: Mapping[str, Prompts],
    progress: Progress | None,
) -> dict[str, Sums]:
    """The sums of every prompt set."""
    sums = {}
    for name, documents in sets.items():
        reading = [kind for kind in kinds if name in kind.reads]
        # a set that serves thresholds only needs no profile and no null draws
        judged = any(name in kind.prompts for kind in kinds)
        sums[name] = score(
            model, documents, reading, seed=battery.seed,
            progress=_stage(progress, name, len(documents)),
            null_draws=battery.null_draws if judged else 0, profile_rows=32 if judged else 0,
        )  # fmt: skip
    return sums


def _settle(
    model: Any,
    battery: Battery,
    kinds: tuple[Kind, ...],
    sets: Mapping[str, Prompts],
    rule: Rule,
    progress: Progress | None,
) -> Settled:
    more = scorer(model, sets, kinds, seed=battery.seed, null_draws=battery.null_draws)
    return settle(more, sets, kinds, rule, seed=battery.seed, progress=progress)


def _score_between(
    model: Any, battery: Battery, asked: Asked, prompts: WordPrompts, progress: Progress | None
) -> WordSums:
    """The sums of the parsed documents; of kinds that nobody named, those that find links there."""
    return score_words(
        model, prompts, asked.words, mute="refuse" if asked.each_named else "drop",
        null_draws=battery.null_draws, seed=battery.seed,
        progress=_stage(progress, SET, len(prompts)),
    )  # fmt: skip


def _word_rule(rule: Rule) -> WordRule:
    """The rule between words: margins of its own, in accuracy, at the same coverage."""
    return WordRule(level=rule.level, resamples=rule.resamples)


def _null_check(
    battery: Battery, rule: Rule, sums: Mapping[str, Sums], words: WordSums | None
) -> pd.DataFrame | None:
    if not battery.null_draws:
        return None
    checks = [check_null(sums, rule, seed=battery.seed)]
    if words is not None:
        checks.append(check_words(words, rule=_word_rule(rule), seed=battery.seed))
    kept = [check for check in checks if len(check)]
    return pd.concat(kept, ignore_index=True) if kept else checks[0]


def _check_tokenizer(model: Any, tokenizer: Any) -> None:
    """Refuse what is no tokenizer, or stands in the model's place."""
    if _is_tokenizer(model):
        raise InputError(
            f"the model comes first and its tokenizer second; got {type(model).__name__} as the "
            "model."
        )
    if tokenizer is not None and not _is_tokenizer(tokenizer):
        given = repr(tokenizer) if isinstance(tokenizer, str) else type(tokenizer).__name__
        raise InputError(
            f"the second argument is the model's tokenizer, or None; got {given}. "
            "headatlas.load gives both, transformers' AutoTokenizer one alone."
        )


def _is_tokenizer(value: Any) -> bool:
    return callable(value) and hasattr(value, "convert_ids_to_tokens")


def _usable(asked: Asked, tokenizer: Any, text: str | None) -> tuple[Kind, ...]:
    """The kinds to score on tokens; those that need text are dropped only if nobody named them."""
    if tokenizer is not None:
        return asked.kinds
    if text is not None:
        raise InputError("a text needs a tokenizer, and this model comes without one; pass it.")
    textless = tuple(kind for kind in asked.kinds if not kind.needs_text)
    if asked.words or (len(textless) < len(asked.kinds) and asked.named) or not textless:
        names = [kind.name for kind in asked.kinds if kind not in textless]
        names += [kind.name for kind in asked.words]
        raise InputError(
            f"{', '.join(names)} needs natural text and so a tokenizer; pass the model's."
        )
    return textless


def _checked_rule(rule: Any) -> Rule:
    if rule is None:
        return Rule()
    if not isinstance(rule, Rule):
        raise InputError(f"rule is a Rule or None; got {type(rule).__name__}.")
    return rule


def _stage(progress: Progress | None, name: str, total: int) -> Callable[[int], None] | None:
    return None if progress is None else lambda done: progress(name, done, total)
