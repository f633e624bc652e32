"""The two ends of a model: token embeddings, and the unembedding with its norm folded in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ...interp.errors import InputError
from ...interp.forward import embedding_weight, run_base, run_whole
from ...interp.heads import HeadId
from ...interp.intervene import intervene
from ...interp.interventions import zero
from ...interp.norms import NormForm, is_norm, read_norm
from ...interp.sites import attention_sites, unbridged
from ...interp.watch import watch_calls

_CHUNK = 4096  # tokens at a time


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Embedding and unembedding of a model.

    Attributes:
        embedding: W_E [token, d_model], as stored.
        unembedding: W_U [token, d_model], as stored: the logits are its product with the stream
            behind the final norm.
        norm: that norm; its gain is `gain`.
        form: its formula.
    """

    embedding: Float[Tensor, "token d_model"]
    unembedding: Float[Tensor, "vocab d_model"]
    norm: nn.Module
    form: NormForm

    @property
    def centred(self) -> bool:
        """Whether the final norm takes the mean off."""
        return self.form.centred

    def logits(self, tokens: Int64[Tensor, " n"]) -> Float[Tensor, "d_model n"]:
        """The columns of W_U for some tokens with the norm's gain and centring, in float32."""
        return self._fold(self.unembedding[tokens].float().T)

    def product(self, *, centred: bool = True) -> Float[Tensor, "d_model d_model"]:
        """W_U W_E, with the mean embedding taken off all embeddings, in float32.

        Args:
            centred: take the mean off; without it the score measures the mean as well.
        """
        tokens, d = self.embedding.shape
        mean = self.embedding.float().mean(0) if centred else self.embedding.new_zeros(d).float()
        total = torch.zeros(d, d, dtype=torch.float64, device=self.embedding.device)
        for start in range(0, min(tokens, len(self.unembedding)), _CHUNK):
            place = slice(start, min(start + _CHUNK, tokens, len(self.unembedding)))
            embedded = self.embedding[place].float() - mean
            total += (self.unembedding[place].float().T @ embedded).double()
        return self._fold(total).float()

    def _fold(self, columns: Tensor) -> Tensor:
        gain = self.form.gain(self.norm)
        wide = columns if gain is None else columns * gain.to(columns)[:, None]
        return wide - wide.mean(0, keepdim=True) if self.form.centred else wide


def vocabulary(model: Any) -> Vocabulary:
    """Embedding, unembedding and final norm of a language model, found by running it.

    Raises:
        InputError: no LM head, one that does not read the output of a norm, or embeddings of
            another width than the stream.

    Example:
        >>> import headatlas as ha
        >>> ends = vocabulary(ha.load("tiny")[0])
        >>> ends.product().shape, ends.centred
        (torch.Size([128, 128]), False)
    """
    model = unbridged(model)
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    name = type(model).__name__
    if not isinstance(head, nn.Linear):
        raise InputError(
            f"{name} has no LM head, so what its heads do to logits is not defined. Load it as a "
            "language model."
        )
    norms = [module for module in model.modules() if is_norm(module)]
    seen: list[tuple[nn.Module, Tensor, Tensor]] = []

    def see(module: nn.Module, x: Tensor, y: Tensor) -> None:
        seen.append((module, x, y))

    table = embedding_weight(model).detach()
    ids = torch.arange(8, device=table.device)[None] % table.shape[0]
    with watch_calls([*norms, head], see):
        run_whole(model, ids)
    read = next((x for module, x, _ in reversed(seen) if module is head), None)
    for norm, x, y in reversed(seen):
        if read is not None and norm is not head and y.shape == read.shape and torch.equal(y, read):
            form = read_norm(norm, x.flatten(0, -2), y.flatten(0, -2))
            if form is not None and table.shape[1] == head.weight.shape[1]:
                return Vocabulary(table, head.weight.detach(), norm, form)
    raise InputError(
        f"the LM head of {name} does not read the residual stream through one norm, so head "
        "outputs have no linear map to logits."
    )


@torch.no_grad()
def effective_embedding(model: Any, tokens: Int64[Tensor, " n"]) -> Float[Tensor, "n d_model"]:
    """The stream behind the first layer for each token alone, with that layer's heads at zero.

    Embedding plus first MLP (and position 0, where positions are embedded), in float32.

    Args:
        model: a transformers model of two layers or more.
        tokens: ids.

    Raises:
        InputError: a model of one layer, whose heads all read the plain embedding.

    Example:
        >>> import headatlas as ha
        >>> effective_embedding(ha.load("tiny")[0], torch.tensor([5, 6, 7])).shape
        torch.Size([3, 128])

    Reference: Gould et al. 2023; McDougall et al. 2023 (effective embedding).
    """
    model = unbridged(model)
    sites = attention_sites(model)
    if len(sites) < 2:
        raise InputError(
            "the effective embedding needs a model of two layers; use effective=False."
        )
    first = zero([HeadId(sites[0].stack, sites[0].layer, head) for head in range(sites[0].n_heads)])
    with intervene(model, first):
        out = run_base(model, tokens[:, None], output_hidden_states=True)
    return out.hidden_states[1][:, 0].float()
