"""The cuts of each method at every sparsity asked for, each chosen once and kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...interp.heads import HeadId
from ...interp.texts import Documents
from ..ablate.evaluate import Progress
from .asked import Asked, is_random
from .counts import nearest_count
from .curve import Cut
from .gate_result import GateResult
from .methods import order_heads
from .progress_file import ProgressFile
from .train import train_gates

_QUICK = ("magnitude", "functional")  # what is not worth keeping


class Chooser:
    """Chooses cuts, method after method.

    Args:
        model: the whole model.
        documents: to learn from.
        asked: what for.
        file: keeps orders.
        kept: the folder for checkpoints of gates; None: none are kept.
        progress: called with (stage, done, total).
        watch: called with each update of gates.

    Attributes:
        trained: results of the training of gates, by what was asked for.
    """

    def __init__(
        self,
        model: Any,
        documents: Documents,
        asked: Asked,
        file: ProgressFile,
        kept: Path | None,
        progress: Progress | None,
        watch: Callable[[Mapping[str, Any]], None] | None,
    ) -> None:
        self._model, self._documents, self._asked, self._file = model, documents, asked, file
        self._kept, self._progress, self._watch = kept, progress, watch
        self.trained: dict[float, GateResult] = {}
        self._chosen: dict[str, list[Cut]] = {}

    def cuts(self, method: str) -> list[Cut]:
        """The cuts of a method, by what was asked for, then by draw."""
        if method == "l0":
            found = [self._gated(value) for value in self._asked.values]
        elif is_random(method):
            draws = range(self._asked.draws)
            drawn = [self._drawn(method, draw) for draw in draws]
            found = [cut for by_value in zip(*drawn, strict=True) for cut in by_value]
        else:
            found = self._ordered(method)
        self._chosen[method] = found
        return found

    def weights_key(self, cut: Cut) -> str:
        """Names the weights that a cut is measured with; empty for the model's own."""
        return f"{self._asked.kind} {cut.asked!r}" if cut.finetuned else ""

    def _gated(self, value: float) -> Cut:
        """Gates trained for a sparsity or a λ, from those of the one before."""
        start = next(reversed(self.trained.values()), None)
        checkpoint = None
        if self._kept is not None:
            name = f"{self._asked.kind}-{value!r}".replace(".", "_")
            checkpoint = self._kept / f"gates-{name}.safetensors"
        watch, config = self._watch, self._asked.training(value, warm=start is not None)
        result = train_gates(
            self._model, self._documents, config=config, start=start,
            checkpoint=checkpoint, progress=self._progress,
            watch=None if watch is None else lambda row: watch({"asked": value, **row}),
        )  # fmt: skip
        self.trained[value] = result
        tuned = result.weights is not None
        return Cut("l0", 0, value, result.removed(), tuned)

    def _ordered(self, method: str) -> list[Cut]:
        counts, asked = self._counts(), self._asked
        n = max(counts)
        key = f"{method} {n}"
        order = self._file.order(key)
        if order is None or not set(order) <= set(asked.heads) or len(order) != n:
            order = order_heads(
                self._model, self._documents, method, n=n, atlas=asked.atlas,
                progress=self._progress,
            )  # fmt: skip
            if method not in _QUICK:
                self._file.keep_order(key, order)
        return [
            Cut(method, 0, value, order[:count])
            for value, count in zip(asked.values, counts, strict=True)
        ]

    def _drawn(self, method: str, draw: int) -> list[Cut]:
        asked, found = self._asked, list[Cut]()
        for place, (value, count) in enumerate(zip(asked.values, self._counts(), strict=True)):
            heads = order_heads(
                self._model, self._documents, method, n=count,
                like=self._like(place) if method == "layer_random" else None,
                seed=asked.seed + draw,
            )  # fmt: skip
            found.append(Cut(method, draw, value, heads))
        return found

    def _like(self, place: int) -> tuple[HeadId, ...] | None:
        """The cut whose layers random heads are matched to: of the first method that chooses."""
        for method in self._asked.methods:
            if not is_random(method):
                return self._chosen[method][place].heads
        return None

    def _counts(self) -> list[int]:
        """How many heads go for each value: as many as the gates close, if they are trained."""
        if "l0" in self._chosen:
            return [len(cut.heads) for cut in self._chosen["l0"]]
        return [nearest_count(value, len(self._asked.heads)) for value in self._asked.values]
