"""The forward passes of a check: a text and padded batches, hooked and as the model runs itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..attach import attach
from ..attention_call import AttentionCall
from ..closeness import apart
from ..forward import check_ids, embedding_weight
from ..grammar import natural_text
from ..sampling import cache_options
from ..sites import Site
from ..sources import sources
from ..survey_calls import run_cut
from ..survey_probe import is_encoder_decoder, probe_inputs
from ..tokens import context_length, windows
from ..watch import watch_modules
from .look import Look, look
from .output import Output, record

MOST_TOKENS = 1024
STEPS = 3
_TOKENS = 64  # of the text, beside those of a window
_FEWER = 3  # tokens of a decoder than of its encoder, so that cross-attention is not square


@dataclass(frozen=True)
class Seen:
    """A hooked run of the text.

    Attributes:
        output: what the model gave.
        looks: what each call says, in call order.
        arrived: how far what the output projections received is from z, by site, for the sites
            whose z goes there as it is; NaN where it did not come.
    """

    output: Output
    looks: tuple[Look, ...]
    arrived: dict[Site, float]


@dataclass(frozen=True)
class Runs:
    """What the checks of one model run it on.

    Args:
        model: the model.
        sites: its attention sites.
        tokenizer: its tokenizer; None: the text is random tokens.
    """

    model: PreTrainedModel
    sites: tuple[Site, ...]
    tokenizer: Any = None

    # why a check of padding, or of the cache, does not take place
    no_mask: ClassVar[str] = "the model takes no attention_mask"
    no_cache: ClassVar[str] = "the model returns no key-value cache"

    @property
    def window(self) -> int | None:
        """The sliding window that the model's config names."""
        window = getattr(self.model.config.get_text_config(), "sliding_window", None)
        return window if isinstance(window, int) and window > 0 else None

    @cached_property
    def text(self) -> Tensor:
        """Token ids [1, pos], beyond a sliding window where that takes no more than 1,024."""
        most = min(MOST_TOKENS, context_length(self.model) or MOST_TOKENS)
        beyond = _TOKENS + (self.window or 0)
        n = beyond if beyond <= most else min(most, _TOKENS)
        device = embedding_weight(self.model).device
        if self.tokenizer is None:
            return self._random_ids(n).to(device)
        words = natural_text(n, seed=0)
        ids = windows(self.tokenizer, words, seq_len=n, limit=1).ids
        check_ids(self.model, ids, "what the tokenizer gives")
        return ids.to(device)

    def _random_ids(self, n: int) -> Tensor:
        padding = getattr(self.model.config.get_text_config(), "pad_token_id", None)
        vocab = [i for i in range(embedding_weight(self.model).shape[0]) if i != padding]
        picked = torch.randint(len(vocab), (1, n), generator=torch.Generator().manual_seed(0))
        return torch.tensor(vocab)[picked]

    @cached_property
    def _options(self) -> dict[str, Any]:
        """What the model's forward takes beside ids, as the survey has it."""
        return {
            key: value
            for key, value in probe_inputs(self.model).items()
            if key in ("attention_mask", "use_cache")
        }

    @property
    def takes_mask(self) -> bool:
        """Whether the model can be told what is padding."""
        return "attention_mask" in self._options

    def inputs(self, ids: Tensor) -> dict[str, Any]:
        """Keywords of the model's forward on sequences without padding."""
        kwargs: dict[str, Any] = {"input_ids": ids}
        if "use_cache" in self._options:
            kwargs["use_cache"] = False
        if is_encoder_decoder(self.model):
            kwargs["decoder_input_ids"] = decoder_ids(ids)
        return kwargs

    @cached_property
    def own(self) -> Output:
        """The model's own output on the text, before any hook."""
        return record(lambda: values_of(self.model(**self.inputs(self.text))))

    @cached_property
    def seen(self) -> Seen:
        """The hooked run of the text."""
        looks: list[Look] = []
        z: dict[Site, Tensor] = {}

        def observe(call: AttentionCall) -> None:
            looks.append(look(call))
            z[call.site] = call.z.transpose(1, 2)

        projections = self._projections()
        taken: dict[nn.Module, list[Site]] = {}  # layers that share weights take turns
        for site, module in projections.items():
            taken.setdefault(module, []).append(site)
        arrived = dict.fromkeys(projections, float("nan"))

        def receive(module: nn.Module, given: tuple[Any, ...], _: Any) -> None:
            site = next((one for one in taken[module] if one in z), taken[module][-1])
            sent = z.pop(site, None)
            if sent is None or not given or not isinstance(given[0], Tensor):
                arrived[site] = float("nan")
            elif given[0].numel() != sent.numel():
                arrived[site] = float("inf")
            else:
                arrived[site] = apart(given[0].reshape(sent.shape), sent)

        with attach(self.model, observers=[observe]), watch_modules(taken, receive):
            output = record(lambda: values_of(self.model(**self.inputs(self.text))))
        return Seen(output, tuple(looks), arrived)

    def _projections(self) -> dict[Site, nn.Module]:
        """The output projections that take z as it is."""
        modules = dict(self.model.named_modules())
        found = sources(self.model)
        return {site: modules[one.output] for site, one in found.items() if one.output is not None}

    def cached(self, *, hook: bool) -> Output | None:
        """The output on the text, its last tokens one by one with a cache; None: there is none."""
        if "use_cache" not in self._options:
            return None
        if not hook:
            return self._decode()
        with attach(self.model):
            return self._decode()

    def _decode(self) -> Output | None:
        pair = is_encoder_decoder(self.model)
        ids = decoder_ids(self.text) if pair else self.text
        key = "decoder_input_ids" if pair else "input_ids"
        first = max(1, ids.shape[1] - STEPS)
        more: dict[str, Any] = {"input_ids": self.text} if pair else {}
        parts: list[Output] = []
        kept: dict[str, Any] = {"use_cache": True}
        for start, stop in [(0, first), *((i, i + 1) for i in range(first, ids.shape[1]))]:
            if self.takes_mask and not pair:
                more["attention_mask"] = torch.ones_like(ids[:, :stop])
            more[key] = ids[:, start:stop]
            given: list[Any] = []

            def run(kwargs: dict[str, Any] = more | kept, given: list[Any] = given) -> Tensor:
                given.append(self.model(**kwargs))
                return values_of(given[0])

            parts.append(record(run))
            kept = cache_options(self.model, given[0])
            if not kept:
                return None
            if pair:
                more = {"encoder_outputs": (given[0].encoder_last_hidden_state,)}
        return Output.joined(parts)

    def cut(self, target: str) -> Output:
        """The output on the text with one head of each site removed through `target`."""
        inputs = self.inputs(self.text)
        return record(lambda: run_cut(self.model, inputs, self.sites, target))


def decoder_ids(ids: Tensor) -> Tensor:
    """What a decoder reads beside an encoder that reads `ids`: fewer tokens."""
    return ids.flip(1)[:, : max(1, ids.shape[1] - _FEWER)]


def values_of(output: Any) -> Tensor:
    """A model's logits, or its last hidden state."""
    logits = getattr(output, "logits", None)
    return output[0] if logits is None else logits
