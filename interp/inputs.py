"""What a model is run on: token ids with their padding, and what a decoder reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import PreTrainedModel

from .errors import InputError
from .forward import check_ids, embedding_weight
from .sites import Site, check_model
from .survey import is_encoder_decoder
from .tokens import Tokens


@dataclass(frozen=True, eq=False)
class Inputs:
    """A batch of token sequences on the model's device.

    Args:
        ids: token ids.
        mask: True where a token stands.
        decoder_ids: what the decoder of an encoder-decoder model reads.
        bos: whether every sequence begins with a special token; None: not known.
    """

    ids: Int[Tensor, "batch pos"]
    mask: Bool[Tensor, "batch pos"]
    decoder_ids: Int[Tensor, "batch decoder_pos"] | None
    bos: bool | None

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, start: int, stop: int) -> Inputs:
        """Some of the sequences."""
        decoder = None if self.decoder_ids is None else self.decoder_ids[start:stop]
        return Inputs(self.ids[start:stop], self.mask[start:stop], decoder, self.bos)

    def live(self, site: Site, *, keys: bool) -> Bool[Tensor, "batch column"]:
        """Where the queries, or the keys, of a site belong to a token.

        A decoder's column c follows token c − 1 of its text; as long as the decoder reads what
        the encoder reads, one column later, it has the encoder's padding, so shifted.
        """
        if (
            self.decoder_ids is None
            or site.stack in ("", "enc")
            or (site.stack == "cross" and keys)
        ):
            return self.mask
        if self.decoder_ids.shape != self.ids.shape:
            return torch.ones_like(self.decoder_ids, dtype=torch.bool)
        shifted = torch.equal(self.decoder_ids[:, 1:], self.ids[:, :-1])
        mask = torch.cat([torch.ones_like(self.mask[:, :1]), self.mask[:, :-1]], 1)
        return mask if shifted else torch.ones_like(mask)

    def options(self) -> dict[str, Any]:
        """Keywords of the model's forward beside the ids."""
        options: dict[str, Any] = {}
        if not bool(self.mask.all()):
            options["attention_mask"] = self.mask
        if self.decoder_ids is not None:
            options["decoder_input_ids"] = self.decoder_ids
        return options


def read_inputs(
    model: PreTrainedModel, tokens: Tokens | Tensor, decoder_ids: Tensor | None = None
) -> Inputs:
    """Tokens as a batch that the model can take.

    Args:
        model: a transformers model.
        tokens: `Tokens`, or token ids [batch, pos] without padding.
        decoder_ids: what the decoder of an encoder-decoder model reads [batch, pos]; by default
            the encoder's tokens shifted right behind the start token.

    Raises:
        InputError: another module, no integers [batch, pos], ids outside the vocabulary, or decoder
            ids for a model without a decoder.
    """
    device = embedding_weight(check_model(model)).device
    if isinstance(tokens, Tokens):
        ids, mask, bos = tokens.ids.to(device), tokens.mask.to(device), tokens.bos
    else:
        ids = _checked(tokens, "tokens").to(device, torch.int64)
        mask, bos = torch.ones_like(ids, dtype=torch.bool), None
    check_ids(model, ids, "tokens")
    if is_encoder_decoder(model):
        return Inputs(ids, mask, _decoder_ids(model, ids, decoder_ids), bos)
    if decoder_ids is not None:
        raise InputError(f"{type(model).__name__} has no decoder to read decoder_ids.")
    return Inputs(ids, mask, None, bos)


def _decoder_ids(model: PreTrainedModel, ids: Tensor, given: Tensor | None) -> Tensor:
    if given is not None:
        given = _checked(given, "decoder_ids").to(ids.device, torch.int64)
        if len(given) != len(ids):
            raise InputError(f"decoder_ids must have batch {len(ids)}; got {tuple(given.shape)}.")
        check_ids(model, given, "decoder_ids")
        return given
    start = getattr(model.config, "decoder_start_token_id", None)
    if start is None:
        raise InputError("the model's config names no decoder_start_token_id. Pass decoder_ids.")
    return torch.cat([torch.full_like(ids[:, :1], start), ids[:, :-1]], 1)


def _checked(ids: Any, name: str) -> Tensor:
    if isinstance(ids, str) or (isinstance(ids, list | tuple) and isinstance(ids[:1], str)):
        raise InputError(f"{name} is text; turn it into tokens with tokenize(tokenizer, text).")
    if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.is_floating_point() or not ids.numel():
        got = f"{ids.dtype} {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        raise InputError(
            f"{name} must be Tokens or integer ids [batch, pos]; got {got}. Turn a text into "
            "tokens with tokenize(tokenizer, text)."
        )
    return ids
