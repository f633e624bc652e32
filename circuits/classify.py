"""Classify the heads of a model: prompts, scores, labels, in one call."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from headatlas import __version__

from ..interp.errors import InputError
from ..interp.probes import (
    MIN_PROMPTS,
    Prompts,
    classic_prompts,
    natural_prompts,
    random_prompts,
    token_pool,
)
from ..interp.sites import Site, attention_sites, hook_drift
from ..interp.tokens import bos_token, context_length
from .atlas import HeadAtlas
from .grade import Rule
from .kinds import Kind, choose_kinds
from .label import label
from .null_check import check_null
from .score import score

_CLASSIC_PROMPTS = 16
_LEAST_TOKENS = 16
_MOST_DRAWS = 1000

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total) after each batch."""


@dataclass(frozen=True)
class Battery:
    """How much text to score on.

    Args:
        prompts: documents per prompt set; at least 16.
        seq_len: tokens per document, BOS included; None takes 256, or the model's context.
        text: running text for the natural set; None generates it.
        prepend_bos: True, False, or None for the tokenizer's habit.
        null_draws: permutations of the content labels to score beside the true ones.
        seed: seed of prompts, sampled rows, halves and bootstrap.
    """

    prompts: int = 64
    seq_len: int | None = None
    text: str | None = None
    prepend_bos: bool | None = None
    null_draws: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"prompts": MIN_PROMPTS, "seq_len": _LEAST_TOKENS, "null_draws": 0, "seed": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if value is None and name == "seq_len":
                continue
            if type(value) is not int or value < low:
                raise InputError(f"{name} is a whole number of at least {low}; got {value!r}.")
        if self.null_draws > _MOST_DRAWS:
            raise InputError(f"at most {_MOST_DRAWS} null draws; got {self.null_draws}.")
        if self.text is not None and not isinstance(self.text, str):
            raise InputError(f"text is a str; got {type(self.text).__name__}.")


def classify(
    model: Any,
    tokenizer: Any = None,
    *,
    kinds: str | Sequence[str | Kind] | None = None,
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
    and a grade (`Rule`), with the field's own threshold verdict beside it.

    Args:
        model: a transformers model.
        tokenizer: its tokenizer; without one, kinds that need text are left out (and asking for
            them is an error), and positional kinds are judged on random tokens alone.
        kinds: names or `Kind` values; None takes the whole registry.
        prompts: documents per prompt set, at least 16; under 32 the intervals are rough.
        seq_len: tokens per document, BOS included; None takes 256, or the model's context.
        text: running text for the natural set; None generates it from the built-in grammar.
        prepend_bos: True, False, or None for the tokenizer's habit.
        null_draws: permutations of the content labels to score beside the true ones; the result
            is in `HeadAtlas.null_check`.
        rule: margins, level and resamples.
        seed: seed of everything random.
        progress: called with (stage, done, total).

    Returns:
        The atlas.

    Raises:
        InputError: the model has no attention that can be hooked, the settings do not fit it, a
            kind is unknown, or the text is too short.

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
    rule = rule or Rule()
    sites = attention_sites(model)
    chosen = _choose(kinds, tokenizer, text)
    sets = _prompt_sets(model, tokenizer, battery, chosen, causal=_is_causal(sites))
    sums = {}
    for name, documents in sets.items():
        asked = [k for k in chosen if name in k.prompts or (k.legacy and k.legacy.prompts == name)]
        report = None if progress is None else _stage(progress, name, len(documents))
        # a set that serves thresholds only needs no profile and no null draws
        judged = any(name in kind.prompts for kind in chosen)
        sums[name] = score(
            model, documents, asked, seed=seed, progress=report,
            null_draws=null_draws if judged else 0, profile_rows=32 if judged else 0,
        )  # fmt: skip
    frame = label(sums, chosen, rule, seed=seed)
    null_check = check_null(sums, rule, seed=seed) if null_draws else None
    return HeadAtlas(
        frame,
        _describe(model, sites),
        _versions(),
        _settings(battery, rule, chosen, sets),
        null_check,
    )


def _is_causal(sites: tuple[Site, ...]) -> bool:
    """Whether all queries see earlier keys only; the label vectors depend on it."""
    stacks = {site.stack for site in sites}
    if stacks != {""}:
        raise InputError(
            f"this model has several stacks ({', '.join(sorted(stacks))}); classify one at a time, "
            "such as model.get_encoder()."
        )
    causal = {site.causal for site in sites}
    if len(causal) > 1:
        mixed = next(site.module for site in sites if not site.causal)
        raise InputError(
            f"some attention layers are causal and some are not (such as {mixed}); the kinds of "
            "head are defined for models that are one or the other."
        )
    return causal.pop()


def _choose(kinds: Any, tokenizer: Any, text: str | None) -> tuple[Kind, ...]:
    """The kinds to score; those that need text are dropped only if nobody asked for them."""
    if kinds is None or isinstance(kinds, str):
        chosen = choose_kinds(kinds)
    else:
        every = [kinds] if isinstance(kinds, Kind) else list(kinds)
        own = tuple(kind for kind in every if isinstance(kind, Kind))
        named = [kind for kind in every if not isinstance(kind, Kind)]
        chosen = (*(choose_kinds(named) if named or not own else ()), *own)
        names = [kind.name for kind in chosen]
        if len(set(names)) < len(names):
            raise InputError(f"two kinds have the same name among {', '.join(names)}; rename one.")
    if tokenizer is not None:
        return chosen
    if text is not None:
        raise InputError("a text needs a tokenizer, and this model comes without one; pass it.")
    textless = tuple(kind for kind in chosen if kind.prompts != ("natural",))
    if (len(textless) < len(chosen) and kinds is not None) or not textless:
        names = [kind.name for kind in chosen if kind not in textless]
        raise InputError(
            f"{', '.join(names)} needs natural text and so a tokenizer; pass the model's."
        )
    return textless


def _prompt_sets(
    model: Any, tokenizer: Any, battery: Battery, kinds: tuple[Kind, ...], *, causal: bool
) -> dict[str, Prompts]:
    seq_len = _fit(model, battery)
    config = model.config.get_text_config()
    special = [
        getattr(config, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id")
    ]
    flat = [i for entry in special for i in (entry if isinstance(entry, list) else [entry])]
    pool = token_pool(
        config.vocab_size, tokenizer, special=tuple(i for i in flat if isinstance(i, int))
    )
    bos = bos_token(tokenizer, battery.prepend_bos)
    wanted = {name for kind in kinds for name in kind.prompts}
    wanted |= {kind.legacy.prompts for kind in kinds if kind.legacy is not None}
    sets = {}
    if "random" in wanted:
        sets["random"] = random_prompts(
            pool, battery.prompts, seq_len, bos_id=bos, seed=battery.seed, causal=causal
        )
    if "natural" in wanted and tokenizer is not None:
        sets["natural"] = natural_prompts(
            tokenizer, battery.prompts, seq_len, text=battery.text,
            prepend_bos=bos is not None, seed=battery.seed, causal=causal,
        )  # fmt: skip
    if "classic" in wanted:
        sets["classic"] = classic_prompts(
            pool, min(battery.prompts, _CLASSIC_PROMPTS), seq_len, bos_id=bos,
            seed=battery.seed, causal=causal,
        )  # fmt: skip
    return sets


def _fit(model: Any, battery: Battery) -> int:
    """The sequence length, checked against the model's context."""
    context = context_length(model)
    seq_len = min(256, context or 256) if battery.seq_len is None else battery.seq_len
    if context is not None and seq_len > context:
        raise InputError(
            f"sequences of {seq_len} tokens are longer than the model's context of {context}; "
            f"pass a sequence length of {context} or less."
        )
    return seq_len


def _stage(progress: Progress, name: str, total: int) -> Callable[[int], None]:
    return lambda done: progress(name, done, total)


def _describe(model: Any, sites: tuple[Site, ...]) -> dict[str, Any]:
    return {
        "name": Path(getattr(model, "name_or_path", "")).name or type(model).__name__,
        "class": type(model).__name__,
        "layers": len(sites),
        "heads": sum(site.n_heads for site in sites),
        "kv_heads": sum(site.n_kv_heads for site in sites),
        "parameters": sum(p.numel() for p in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "implementation": str(model.config._attn_implementation),
        "hook_drift": hook_drift(model),
    }


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
