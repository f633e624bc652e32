"""What a model is run on: token ids with their padding, images or sounds, a decoder's ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from .brief import Brief
from .errors import InputError
from .forward import check_ids, embedding_weight, run_base, run_whole
from .grid import token_cells
from .signals import Signal, read_signal, reads_signal, run_signal
from .sites import Site, check_model
from .survey_probe import is_encoder_decoder
from .tokens import Tokens

Readable = Tokens | Tensor | Mapping[str, Any]
"""`Tokens`, ids [batch, pos], or what a tokenizer gives under return_tensors="pt".

Of a model that reads images or sounds: a tensor of floats [batch, …], or what its processor gives.
"""

# what else a tokenizer may give, which says nothing that a model must be told
_ASIDE = frozenset({"special_tokens_mask", "offset_mapping", "length", "token_type_ids"})


@dataclass(frozen=True, eq=False, repr=False)
class Inputs(Brief):
    """A batch of token sequences on the model's device.

    Args:
        ids: token ids; of images and sounds, whose tokens have none, each token's place.
        mask: True where a token stands.
        decoder_ids: what the decoder of an encoder-decoder model reads.
        bos: whether every sequence begins with a special token; None: not known.
        signal: the images or sounds that are read instead of ids.
    """

    ids: Int[Tensor, "batch pos"]
    mask: Bool[Tensor, "batch pos"]
    decoder_ids: Int[Tensor, "batch decoder_pos"] | None
    bos: bool | None
    signal: Signal | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, start: int, stop: int) -> Inputs:
        """Some of the sequences."""
        decoder = None if self.decoder_ids is None else self.decoder_ids[start:stop]
        signal = None if self.signal is None else self.signal.rows(start, stop)
        return Inputs(self.ids[start:stop], self.mask[start:stop], decoder, self.bos, signal)

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

    def run(self, model: PreTrainedModel, *, whole: bool = False, grad: bool = False) -> Any:
        """The model's output on them, by default without its head (see `run_base`)."""
        options = self._options()
        if self.signal is not None:
            return run_signal(model, self.signal, whole=whole, grad=grad, **options)
        return (run_whole if whole else run_base)(model, self.ids, grad=grad, **options)

    def _options(self) -> dict[str, Any]:
        """Keywords of the model's forward beside the ids."""
        options: dict[str, Any] = {}
        if not bool(self.mask.all()):
            options["attention_mask"] = self.mask
        if self.decoder_ids is not None:
            options["decoder_input_ids"] = self.decoder_ids
        return options


def read_inputs(model: nn.Module, tokens: Readable, decoder_ids: Tensor | None = None) -> Inputs:
    """Tokens as a batch that the model can take.

    Args:
        model: a transformers model.
        tokens: `Tokens`; what a tokenizer gives, input_ids and attention_mask as tensors; or token
            ids [batch, pos] without padding. Of a model that reads images or sounds: what its
            processor gives, or a tensor of floats [batch, …]. With decoder_input_ids among them
            these are the decoder's ids.
        decoder_ids: what the decoder of an encoder-decoder model reads [batch, pos]; by default
            the encoder's tokens shifted right behind the start token. Images and sounds need them.

    Raises:
        InputError: another module, no integers [batch, pos], ids outside the vocabulary, a
            tokenizer's output with more than ids and their mask, or decoder ids for a model without
            a decoder.
    """
    model = check_model(model)
    if isinstance(tokens, Mapping) and decoder_ids is None and is_encoder_decoder(model):
        decoder_ids = tokens.get("decoder_input_ids")
        tokens = {key: value for key, value in tokens.items() if key != "decoder_input_ids"}
    if reads_signal(model):
        return _read_signal(model, tokens, decoder_ids)
    device = embedding_weight(model).device
    if isinstance(tokens, Tokens):
        ids, mask, bos = tokens.ids.to(device), tokens.mask.to(device), tokens.bos
    else:
        ids, mask, bos = *(part.to(device) for part in _ids_and_mask(tokens)), None
    check_ids(model, ids, "tokens")
    if is_encoder_decoder(model):
        return Inputs(ids, mask, _decoder_ids(model, ids, decoder_ids), bos)
    _refuse_decoder_ids(model, decoder_ids)
    return Inputs(ids, mask, None, bos)


def _read_signal(model: PreTrainedModel, given: Any, decoder_ids: Tensor | None) -> Inputs:
    """Images or sounds, and a place for each of their tokens in place of its id."""
    signal = read_signal(model, given)
    if is_encoder_decoder(model) and decoder_ids is None:
        raise InputError(
            f"{type(model).__name__} writes text of {signal.name}: give the tokens that its "
            f"decoder reads too, as decoder_ids or in {{'{signal.name}': …, 'decoder_input_ids': "
            "…}, or take the encoder alone, model.get_encoder()."
        )
    count, n_tokens = len(signal.values), len(token_cells(model, signal))
    ids = torch.arange(n_tokens, device=signal.values.device).expand(count, -1)
    mask = torch.ones_like(ids, dtype=torch.bool)
    if is_encoder_decoder(model):
        return Inputs(ids, mask, _decoder_ids(model, ids, decoder_ids), False, signal)
    _refuse_decoder_ids(model, decoder_ids)
    return Inputs(ids, mask, None, False, signal)


def _refuse_decoder_ids(model: PreTrainedModel, given: Tensor | None) -> None:
    if given is not None:
        raise InputError(f"{type(model).__name__} has no decoder to read decoder_ids.")


def _ids_and_mask(tokens: Any) -> tuple[Tensor, Tensor]:
    """Ids, and True where a token stands, of ids alone or of what a tokenizer gave."""
    if not isinstance(tokens, Mapping):
        ids = _checked(tokens, "tokens").to(torch.int64)
        return ids, torch.ones_like(ids, dtype=torch.bool)
    ids = _checked(tokens.get("input_ids"), "input_ids").to(torch.int64)
    strange = [key for key in tokens if key not in {"input_ids", "attention_mask", *_ASIDE}]
    kinds = tokens.get("token_type_ids")
    if isinstance(kinds, Tensor) and bool(kinds.any()):
        strange.append("token_type_ids that are not 0")
    if strange:
        raise InputError(
            f"the tokenizer's output holds {strange[0]}, which is not read here; only input_ids "
            "and attention_mask are."
        )
    mask = tokens.get("attention_mask")
    if mask is None:
        return ids, torch.ones_like(ids, dtype=torch.bool)
    if not isinstance(mask, Tensor) or mask.shape != ids.shape:
        got = list(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise InputError(f"attention_mask must be a tensor {list(ids.shape)}; got {got}.")
    return ids, mask != 0


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
    listed = ids[:1] if isinstance(ids, list | tuple) else [ids]
    if any(isinstance(text, str) for text in listed):
        raise InputError(f"{name} is text; turn it into tokens with tokenize(tokenizer, text).")
    if not isinstance(ids, Tensor) or ids.ndim != 2 or not ids.numel() or not _is_whole(ids):
        got = f"{ids.dtype} {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        raise InputError(
            f"{name} must be Tokens or integer ids [batch, pos]; got {got}. Turn a text into "
            'tokens with tokenize(tokenizer, text), or tokenizer(text, return_tensors="pt").'
        )
    return ids


def _is_whole(ids: Tensor) -> bool:
    return not (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool)
