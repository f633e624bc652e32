"""The forward passes of a check on a model that reads images or sounds: noise, whole."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..forward import embedding_weight
from ..grid import token_cells
from ..signals import Signal, probe_signal, signal_options
from ..survey_probe import is_encoder_decoder
from .runs import Runs

_DECODER_TOKENS = 12


class SignalRuns(Runs):
    """As `Runs`; its text is the places of the tokens of one image or sound, which is never cut."""

    no_mask: ClassVar[str] = "images and sounds are run without padding"
    no_cache: ClassVar[str] = "images and sounds are read at once, and decoders are run whole"

    @property
    def window(self) -> int | None:
        """None: a window would be over text."""
        return None

    @cached_property
    def text(self) -> Tensor:
        """The number of each token [1, pos]."""
        n = len(token_cells(self.model, self._signal))
        return torch.arange(n, device=self.model.device)[None]

    @cached_property
    def _signal(self) -> Signal:
        return probe_signal(self.model, 1, self._decoder)

    @cached_property
    def _decoder(self) -> dict[str, Any]:
        """What a decoder reads."""
        if not is_encoder_decoder(self.model):
            return {}
        vocab = embedding_weight(self.model)
        ids = torch.arange(_DECODER_TOKENS, device=vocab.device) % vocab.shape[0]
        return {"decoder_input_ids": ids[None]}

    @cached_property
    def _options(self) -> dict[str, Any]:
        return {}

    def inputs(self, ids: Tensor) -> dict[str, Any]:
        """Keywords of the model's forward; of `ids` the number of sequences counts."""
        signal = Signal(
            self._signal.name, self._signal.values.expand(len(ids), *self._signal.values.shape[1:])
        )
        decoder = {name: value.expand(len(ids), -1) for name, value in self._decoder.items()}
        return signal_options(self.model, signal) | decoder
