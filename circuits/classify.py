"""Classify the heads of a model: prompts, scores, labels, in one call."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from headatlas import __version__

from ..interp.errors import InputError
from ..interp.probes import Prompts
from ..interp.sites import Site, attention_sites, hook_drift
from ..interp.switch import configs, own_implementations
from .atlas import HeadAtlas
from .atlas_check import printable
from .battery import Battery
from .grade import Rule
from .kinds import Kind, choose_kinds
from .label import label
from .null_check import check_null
from .score import one_direction, score

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total) after each batch."""


def classify(
    model: Any,
    tokenizer: Any = None,
    *,
    kinds: str | Kind | Sequence[str | Kind] | None = None,
    prompts: int = 64,
    seq_len: int | None = None,
    text: str | None = None,
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
        kinds: names, `Kind` values or a list of both; None takes the whole registry.
        prompts: documents per prompt set, at least 16; under 32 the intervals are rough.
        seq_len: tokens per document, BOS included; None takes 256, or the model's context.
        text: running text for the natural set, refused where no kind reads that set; None
            generates it from the built-in grammar.
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
    battery = Battery(prompts, seq_len, text, prepend_bos, null_draws, seed)
    rule = _checked_rule(rule)
    _check_tokenizer(model, tokenizer)
    sites = attention_sites(model)
    chosen = _usable(choose_kinds(kinds), tokenizer, text, named=kinds is not None)
    battery.check(chosen)
    sets = battery.prompt_sets(model, tokenizer, chosen, causal=one_direction(sites))
    sums = {}
    for name, documents in sets.items():
        asked = [kind for kind in chosen if name in kind.reads]
        report = None if progress is None else _stage(progress, name, len(documents))
        # a set that serves thresholds only needs no profile and no null draws
        judged = any(name in kind.prompts for kind in chosen)
        sums[name] = score(
            model, documents, asked, seed=battery.seed, progress=report,
            null_draws=battery.null_draws if judged else 0, profile_rows=32 if judged else 0,
        )  # fmt: skip
    frame = label(sums, chosen, rule, seed=battery.seed)
    null_check = check_null(sums, rule, seed=battery.seed) if battery.null_draws else None
    return HeadAtlas(
        frame,
        _describe(model, sites),
        _versions(),
        _settings(battery, rule, chosen, sets),
        null_check,
    )


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


def _usable(
    kinds: tuple[Kind, ...], tokenizer: Any, text: str | None, *, named: bool
) -> tuple[Kind, ...]:
    """The kinds to score; those that need text are dropped only if nobody asked for them."""
    if tokenizer is not None:
        return kinds
    if text is not None:
        raise InputError("a text needs a tokenizer, and this model comes without one; pass it.")
    textless = tuple(kind for kind in kinds if kind.prompts != ("natural",))
    if (len(textless) < len(kinds) and named) or not textless:
        names = [kind.name for kind in kinds if kind not in textless]
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


def _stage(progress: Progress, name: str, total: int) -> Callable[[int], None]:
    return lambda done: progress(name, done, total)


def _describe(model: Any, sites: tuple[Site, ...]) -> dict[str, Any]:
    return {
        "name": printable(Path(getattr(model, "name_or_path", "")).name or type(model).__name__),
        "class": type(model).__name__,
        "layers": len(sites),
        "heads": sum(site.n_heads for site in sites),
        "kv_heads": sum(site.n_kv_heads for site in sites),
        "parameters": sum(p.numel() for p in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
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
    battery: Battery, rule: Rule, kinds: tuple[Kind, ...], sets: dict[str, Prompts]
) -> dict[str, Any]:
    text = battery.text
    return {
        "seed": battery.seed,
        "kinds": [kind.name for kind in kinds],
        "definitions": {kind.name: kind.definition for kind in kinds},
        "legacy_rules": {kind.name: kind.legacy.rule for kind in kinds if kind.legacy},
        "prompts": {name: len(documents) for name, documents in sets.items()},
        "seq_len": {name: int(documents.ids.shape[1]) for name, documents in sets.items()},
        "bos": any(documents.bos for documents in sets.values()),
        "null_draws": battery.null_draws,
        "text_sha256": None if text is None else hashlib.sha256(text.encode()).hexdigest(),
        "rule": {
            "margin": rule.margin, "strong": rule.strong, "level": rule.level,
            "resamples": rule.resamples,
        },
    }  # fmt: skip
