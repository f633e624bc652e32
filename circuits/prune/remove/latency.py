"""Measured time of models side by side."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from ....interp.forward import embedding_weight, undisturbed
from ....interp.survey_probe import is_encoder_decoder


def latencies(
    models: Sequence[PreTrainedModel], n: int, repeats: int
) -> list[tuple[str, float, float]]:
    """Median milliseconds of a forward pass, and of one cached step after it."""
    passes = [_Timed(lambda: None, lambda _, m=m: run(m, n)) for m in models]
    found = [("prefill_ms", *_medians(passes, repeats))]
    steps = [step for model in models if (step := _step(model, n)) is not None]
    if len(steps) == len(models):
        found.append(("decode_ms", *_medians(steps, repeats)))
    return found


@dataclass(frozen=True)
class _Timed:
    """What to measure, and what to prepare for each run beforehand."""

    prepare: Callable[[], Any]
    run: Callable[[Any], Any]


def _step(model: PreTrainedModel, n: int) -> _Timed | None:
    """One step of cached decoding at a context of n tokens; None where the model does not."""
    if is_encoder_decoder(model) or not model.can_generate():
        return None
    output = run(model, max(1, n - 1), use_cache=True)
    cache = cache_of(output)
    if cache is None:
        return None
    key = next(key for key, value in output.items() if value is cache)
    token = torch.zeros(1, 1, dtype=torch.int64, device=embedding_weight(model).device)

    def step(fresh: Any) -> Any:
        with undisturbed(model), torch.no_grad():
            return model(input_ids=token, use_cache=True, **{key: fresh})

    return _Timed(lambda: copy.deepcopy(cache), step)


def _medians(runs: Sequence[_Timed], repeats: int) -> tuple[float, float]:
    for one in runs:
        one.run(one.prepare())
    taken: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for times, one in zip(taken, runs, strict=True):
            given = one.prepare()
            _finish()
            start = time.perf_counter()
            one.run(given)
            _finish()
            times.append(1000 * (time.perf_counter() - start))
    before, after = (float(np.median(times)) for times in taken)
    return before, after


def _finish() -> None:
    """Wait for what a GPU still has to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def run(model: PreTrainedModel, n: int, **options: Any) -> Any:
    """What a model gives for n tokens of one sequence."""
    table = embedding_weight(model)
    ids = (torch.arange(n, device=table.device) * 7 % table.shape[0])[None]
    more = {"decoder_input_ids": ids} if is_encoder_decoder(model) else {}
    with undisturbed(model), torch.no_grad():
        try:
            return model(input_ids=ids, **more, **options)
        except TypeError:
            if not options:
                raise
            return model(input_ids=ids, **more)  # an encoder that knows no cache


def cache_of(output: Any) -> Cache | None:
    """The cache in a model's output, if it kept one."""
    return next((value for value in output.values() if isinstance(value, Cache)), None)
