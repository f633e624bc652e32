"""Which model families can be hooked: transformers' language models, tiny and random.

    python -m tests.bench.figures coverage

The families are those of three of transformers' auto classes: causal, masked and
sequence-to-sequence language models. Each is tried with a config shrunk to two layers or so. What
`attention_sites` says of it is the table: it runs the model as it is and hooked, and refuses what
differs. Families of which no shrunk model runs in time are counted apart, by what stopped them:
nothing is known of their hooking.
"""

from __future__ import annotations

import faulthandler
import re
import signal
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM
from transformers import AutoModelForSeq2SeqLM as AutoModelForSeq2Seq
from transformers.models.auto import modeling_auto

from headatlas.interp.errors import InputError
from headatlas.interp.sites import attention_sites, hook_drift
from headatlas.interp.weights import head_weights

from ..conftest import FAMILIES, SEQ2SEQ_FAMILIES, build_tiny

LIMIT_S = 60
_KILL_S = 2 * LIMIT_S  # where a loop in compiled code lets no signal through
# what stops a family before it can be hooked
NO_CONFIG = "no small config was found"
NO_LIBRARY = "it needs a library that is not installed"
NO_FORWARD = "a small model is built, but its forward fails on token ids"
TOO_LONG = f"more than {LIMIT_S} s"
DIED = "its process died"
# a family of several sorts counts as the first: the decoder of BART alone is no family of its own
_SORTS = {
    "encoder-decoder": (
        AutoModelForSeq2Seq,
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    ),
    "encoder": (AutoModelForMaskedLM, modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
    "decoder": (AutoModelForCausalLM, modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
}
_LAYERS, _WIDTH, _HEADS = 2, 32, 4
_MOST_PARAMETERS = 20_000_000
# by the end of the option's name: configs call these things by many names
_SMALL = {
    "vocab_size": 97, "hidden_size": _WIDTH, "d_model": _WIDTH, "n_embd": _WIDTH, "dim": _WIDTH,
    "embedding_size": _WIDTH, "word_embed_proj_dim": _WIDTH, "intermediate_size": 48,
    "ffn_dim": 48, "d_ff": 48, "n_inner": 48, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "num_hidden_layers": _LAYERS, "n_layer": _LAYERS, "n_layers": _LAYERS, "num_layers": _LAYERS,
    "encoder_layers": _LAYERS, "decoder_layers": _LAYERS, "num_decoder_layers": _LAYERS,
    "num_attention_heads": _HEADS, "n_head": _HEADS, "n_heads": _HEADS, "num_heads": _HEADS,
    "encoder_attention_heads": _HEADS, "decoder_attention_heads": _HEADS,
    "num_key_value_heads": 2, "head_dim": 8, "d_kv": 8, "rotary_dim": 4,
    "max_position_embeddings": 128, "n_positions": 128, "sliding_window": 8,
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4, "v_head_dim": 6, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 0,
}  # fmt: skip
# tried in turn, since what one family asks for another refuses
_CHANGES: tuple[dict[str, Any], ...] = (
    {}, {"num_key_value_heads": _HEADS}, {"head_dim": None}, {"head_dim": None, "rotary_dim": None},
    {"num_hidden_layers": 4, "num_key_value_heads": _HEADS, "head_dim": None},
)  # fmt: skip


@dataclass(frozen=True)
class Tried:
    """What came of one family.

    Attributes:
        outcome: "hooked", "refused", "not tried", or "broken" where hooking ends in an error that
            is no refusal.
        reason: the refusal, the error, or what stopped it before it was tried.
        detail: the error behind a reason.
        drift: of the hooked forward, relative to the largest output.
        inline: hooked in its classes' own code, outside transformers' attention registry.
    """

    family: str
    sort: str
    outcome: str
    reason: str = ""
    detail: str = ""
    drift: float = 0.0
    inline: bool = False


class TooLongError(BaseException):
    """The time of one family is over; no `except Exception` on the way may take it for its own."""


class NotBuiltError(Exception):
    """No change of the config gives a model that runs; the message is one of the reasons."""


def families() -> Iterator[tuple[str, str]]:
    """Family and sort of every model of the three auto classes that read and write text."""
    seen = set[str]()
    for sort, (_, names) in _SORTS.items():
        for family in sorted(names):
            if family not in seen:
                seen.add(family)
                yield family, sort


def small_config(family: str, changes: dict[str, Any]) -> Any:
    """The family's config with small numbers in the place of its own."""
    own = AutoConfig.for_model(family).to_dict()
    return AutoConfig.for_model(family, **_shrunk(own, {**_SMALL, **changes}))


def _shrunk(own: dict[str, Any], small: dict[str, Any]) -> dict[str, Any]:
    """Of the small numbers those that a config has, its inner configs included."""
    options = {name: small[name] for name in own if small.get(name) is not None}
    for name, inner in own.items():
        if name.endswith("_config") and isinstance(inner, dict) and "model_type" in inner:
            options[name] = {"model_type": inner["model_type"], **_shrunk(inner, small)}
    return options


def _model(family: str, sort: str) -> Any:
    """A tiny random model that has run once.

    Raises:
        NotBuiltError: no change makes one; the last error is its cause.
    """
    if family in FAMILIES:
        return build_tiny(family, attn="eager")
    why, error = NO_CONFIG, None
    for changes in _CHANGES:
        model = None
        try:
            model = _built(family, sort, changes)
            ids = torch.randint(3, 97, (2, 12))
            more = {"decoder_input_ids": ids} if sort == "encoder-decoder" else {}
            with torch.no_grad():
                model(input_ids=ids, **more)
            return model
        except Exception as failed:  # whatever a config that was not made for this can raise
            if model is not None:
                why, error = NO_FORWARD, failed
            elif why != NO_FORWARD:
                why, error = NO_LIBRARY if isinstance(failed, ImportError) else NO_CONFIG, failed
    raise NotBuiltError(why) from error


def _built(family: str, sort: str, changes: dict[str, Any]) -> Any:
    auto, config = _SORTS[sort][0], small_config(family, changes)
    with torch.device("meta"):  # a config that did not shrink must not fill the memory
        size = sum(weight.numel() for weight in auto.from_config(config).parameters())
    if size > _MOST_PARAMETERS:
        raise ValueError(f"{size:,} parameters are left")
    torch.manual_seed(0)
    return auto.from_config(config, attn_implementation="eager").eval()


def tried(family: str, sort: str) -> Tried:
    """Build one family and see whether it can be hooked."""
    try:
        model = _model(family, sort)
    except NotBuiltError as error:
        return Tried(family, sort, "not tried", str(error), _said(error.__cause__))
    try:
        inline = any(site.inline for site in attention_sites(model))
        return Tried(family, sort, "hooked", drift=hook_drift(model), inline=inline)
    except InputError as error:
        return Tried(family, sort, "refused", str(error))
    except Exception as error:  # a fault of this project: the table must show it
        return Tried(family, sort, "broken", f"hooking raises {type(error).__name__}", _said(error))


def _said(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}"


def tried_in_time(family: str, sort: str) -> Tried:
    """The same with an end after `LIMIT_S` seconds, whatever catches errors on the way.

    The alarm goes off again and again, since code that cleans up after the first may hang as well.
    """
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S, LIMIT_S / 10)
    try:
        return tried(family, sort)
    except TooLongError:
        return Tried(family, sort, "not tried", TOO_LONG)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _too_long(*_: Any) -> None:
    raise TooLongError


def _in_worker(family: str, sort: str) -> Tried:
    """One family in a process of its own, which ends itself where no signal gets through."""
    faulthandler.dump_traceback_later(_KILL_S, exit=True)
    try:
        return tried_in_time(family, sort)
    finally:
        faulthandler.cancel_dump_traceback_later()


def sweep() -> list[Tried]:
    """Every family, each in a process that the next one takes over if it lives."""
    found, waiting = list[Tried](), list(families())
    while waiting:
        start = time.monotonic()
        try:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                while waiting:
                    start = time.monotonic()
                    found.append(pool.submit(_in_worker, *waiting[0]).result())
                    waiting.pop(0)
                    print(*(found[-1].family, found[-1].outcome, found[-1].reason[:90]), flush=True)
        except BrokenProcessPool:
            why = TOO_LONG if time.monotonic() - start >= _KILL_S else DIED
            found.append(Tried(*waiting.pop(0), "not tried", why))
    return found


def layout(family: str) -> str:
    """A row of the table of families that the tests run on, checked in every detail."""
    model = build_tiny(family, attn="eager")
    sites = attention_sites(model)
    first = sites[0]
    shared = f"{first.n_heads} on {first.n_kv_heads}"
    masks = {site.causal for site in sites}
    sees = "both ways" if masks == {False} else "earlier" if masks == {True} else "both, earlier"
    stacks = ", ".join(dict.fromkeys(site.stack for site in sites if site.stack)) or "–"
    weights = head_weights(model)
    exact = "exact" if all(weights[site].exact for site in sites) else "up to a norm"
    return f"| {family} | {shared} | {sees} | {stacks} | {exact} |"


def reason(text: str) -> str:
    """A refusal without the names of modules, so that families of one reason stand together."""
    for pattern, words in (
        (r"several softmaxes", "several softmaxes in one attention call"),
        (r"are not tokens", "its queries or keys are not the tokens (pooled, or behind prompts)"),
        (r"without transformers' attention reg", "attention of its own without a plain softmax"),
        (r"no attention heads", "no attention heads found"),
        (r"not seen", "some of its attention has no plain softmax"),
        (r"selects keys", "sparse attention: keys are selected by an index"),
        (r"more than once", "layers share weights"),
        (r"runs alone, but not", "the forward breaks with its attention and masks replaced"),
        (r"differ", "hooked outputs differ from its own"),
    ):
        if re.search(pattern, text):
            return words
    return text.split(". ")[0][:120]


def _names(rows: list[Tried]) -> str:
    return ", ".join(sorted(row.family for row in rows))


def markdown() -> dict[str, str]:
    """The tables of docs/coverage.md."""
    head = "| family | heads on key-value heads | a query sees | stacks | W_Q … W_O |\n"
    head += "|---|---|---|---|---|"
    rows = [layout(family) for family in FAMILIES]
    assert set(SEQ2SEQ_FAMILIES) <= set(FAMILIES)
    found = sweep()
    hooked = [row for row in found if row.outcome == "hooked"]
    lines = ["| | families |", "|---|---|"]
    for sort in _SORTS:
        for inline, how in ((False, "hooked"), (True, "hooked in their own code")):
            own = [row for row in hooked if (row.sort, row.inline) == (sort, inline)]
            if own:
                lines.append(f"| {sort}s, {how} ({len(own)}) | {_names(own)} |")
    refused: dict[str, list[Tried]] = {}
    for row in found:
        if row.outcome == "refused":
            refused.setdefault(reason(row.reason), []).append(row)
    for why, own in sorted(refused.items(), key=lambda item: -len(item[1])):
        lines.append(f"| refused: {why} ({len(own)}) | {_names(own)} |")
    unknown = [row for row in found if row.outcome == "not tried"]
    for outcome in ("broken", "not tried"):
        rest = [row for row in found if row.outcome == outcome]
        for why in sorted({row.reason for row in rest}):
            own = [row for row in rest if row.reason == why]
            lines.append(f"| {outcome}: {why} ({len(own)}) | {_names(own)} |")
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    worst = max(hooked, key=lambda row: row.drift)
    broken = sum(row.outcome == "broken" for row in found)
    counts = (
        f"{len(found)} families, {versions}: {len(hooked)} hooked (largest drift "
        f"{worst.drift:.0e}, {worst.family}), {sum(map(len, refused.values()))} refused, "
        f"{f'{broken} broken, ' if broken else ''}{len(unknown)} not tried.\n"
    )
    return {"": "\n".join([head, *rows]), "sweep": "\n".join([counts, *lines])}
