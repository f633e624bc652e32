"""Classify the heads of a model: prompts, scores, labels, in one call."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import transformers

from headatlas import __version__

from ..interp.errors import InputError
from ..interp.model_names import name_of
from ..interp.parsed import Parsed
from ..interp.probes import Prompts
from ..interp.sites import Site, attention_sites, hook_drift
from ..interp.switch import configs, own_implementations
from .asked import AnyKind, Asked, ask
from .atlas import HeadAtlas
from .atlas_check import printable
from .battery import Battery
from .grade import Rule
from .kinds import Kind
from .label import label
from .null_check import check_null
from .same_weights import sample_weights
from .score import one_direction, score
from .settle import Settled, scorer, settle
from .sums import Sums
from .words.kind import WordKind
from .words.label import WordRule, WordTests
from .words.null_check import check_words
from .words.prompts import SET, WordPrompts
from .words.score import score_words
from .words.sums import WordSums

NOT_GROWN = "a fixed number of documents; only those of kinds on tokens are added to"
"""What an atlas's settings say of parsed documents where others were added until labels settled."""

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
    battery = Battery(prompts, seq_len, text, prepend_bos, null_draws, seed, treebank)
    rule = _checked_rule(rule)
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
        _describe(model, sites),
        _versions(),
        _settings(battery, rule, (*on_tokens, *(words.kinds if words else ())), every, settled),
        _null_check(battery, rule, sums, words),
    )


def _score_sets(
    model: Any,
    battery: Battery,
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


def _describe(model: Any, sites: tuple[Site, ...]) -> dict[str, Any]:
    return {
        "name": printable(name_of(model)),
        "class": type(model).__name__,
        "layers": len(sites),
        "heads": sum(site.n_heads for site in sites),
        "kv_heads": sum(site.n_kv_heads for site in sites),
        "parameters": sum(p.numel() for p in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "weights": sample_weights(model),
        "implementation": _implementation(model),
        "hook_drift": hook_drift(model),
    }


def _implementation(model: Any) -> str:
    """The model's own attention implementation, also while it is attached."""
    own = zip(configs(model), own_implementations(model), strict=True)
    return str(next(name for config, name in own if config is model.config))


def _versions() -> dict[str, str]:
    return {
        "headatlas": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def _settings(
    battery: Battery,
    rule: Rule,
    kinds: tuple[Kind | WordKind, ...],
    sets: Mapping[str, Prompts | WordPrompts],
    settled: Settled | None,
) -> dict[str, Any]:
    text = battery.text
    legacy = {k.name: k.legacy.rule for k in kinds if isinstance(k, Kind) and k.legacy}
    return {
        "seed": battery.seed,
        "kinds": [kind.name for kind in kinds],
        "definitions": {kind.name: kind.definition for kind in kinds},
        "legacy_rules": legacy,
        "prompts": {
            name: _count_documents(name, found, settled) for name, found in sets.items()
        },
        **_settled(settled, sets),
        **_parsed(battery, sets),
        "seq_len": {name: int(documents.ids.shape[1]) for name, documents in sets.items()},
        "bos": any(documents.bos for documents in sets.values()),
        "null_draws": battery.null_draws,
        "text_sha256": None if text is None else hashlib.sha256(text.encode()).hexdigest(),
        "rule": {
            "margin": rule.margin, "strong": rule.strong, "level": rule.level,
            "resamples": rule.resamples,
        },
    }  # fmt: skip


def _settled(settled: Settled | None, sets: Mapping[str, Prompts | WordPrompts]) -> dict[str, Any]:
    """The rounds that were added, and which set took no part in them."""
    if settled is None:
        return {}
    fixed = {SET: NOT_GROWN} if SET in sets else {}
    return {"settled": {**settled.settings(), **fixed}}


def _parsed(battery: Battery, sets: Mapping[str, Prompts | WordPrompts]) -> dict[str, Any]:
    """How much was read of the parsed documents, and where they are from."""
    found = sets.get(SET)
    if not isinstance(found, WordPrompts):
        return {}
    origin = "built-in grammar" if battery.treebank is None else "given"
    words = int((found.n_tokens > 0).sum())
    return {"parsed": {"documents": found.n_units, "words": words, "origin": origin}}


def _count_documents(name: str, found: Prompts | WordPrompts, settled: Settled | None) -> int:
    """How many documents of a set were scored; of parsed ones, how many there are to resample."""
    if isinstance(found, WordPrompts):
        return found.n_units
    return len(settled.sums[name].rows) if settled and name in settled.sums else len(found)
