"""The loss that gates are trained on: summed over every predicted token of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from ...interp.errors import InputError
from ...interp.forward import run_whole
from ...interp.probes import Prompts
from ..behaviour import has_next


def predicting(prompts: Prompts) -> Prompts:
    """The documents in which some prediction counts, [document, pos].

    Raises:
        InputError: there is none.

    Example:
        >>> ids, mask = np.array([[5, 6], [7, 0]]), np.array([[True, True], [True, False]])
        >>> predicting(Prompts("text", ids, mask, bos=False)).ids.tolist()
        [[5, 6]]
    """
    some = np.flatnonzero(has_next(prompts).any(1))
    if not some.size:
        raise InputError(
            f"none of {len(prompts)} documents predicts a token that counts; give documents of two "
            "tokens or more."
        )
    return prompts if some.size == len(prompts) else prompts.select(some)


class Batch:
    """Some documents on the model's device, and which of their tokens predict another.

    Args:
        prompts: the documents, padded on either side.
        device: the model's.
    """

    def __init__(self, prompts: Prompts, device: torch.device) -> None:
        predicts = has_next(prompts)
        self.n_tokens = int(predicts.sum())
        self._ids = torch.from_numpy(np.ascontiguousarray(prompts.ids)).to(device)
        mask = np.ascontiguousarray(prompts.mask)
        self._mask = None if mask.all() else torch.from_numpy(mask).to(device)
        self._predicts: Bool[Tensor, "document pos"] = torch.from_numpy(predicts).to(device)
        self._next = torch.from_numpy(prompts.ids[:, 1:][predicts[:, :-1]]).to(device)

    def log_probs(self, model: Any, *, grad: bool) -> Float[Tensor, "predicted vocab"]:
        """log p(token | tokens before it) over the vocabulary, in at least float32."""
        return log_softmax(self._logits(model, grad), dim=-1)

    def cross_entropy(self, model: Any) -> Float[Tensor, ""]:
        """Σ −log p(next token), in nats; differentiable."""
        return cross_entropy(self._logits(model, True), self._next, reduction="sum")

    def divergence(self, model: Any, whole: Float[Tensor, "predicted vocab"]) -> Float[Tensor, ""]:
        """Σ KL(whole ‖ model) over predicted tokens, in nats; differentiable.

        Args:
            model: the gated model.
            whole: `log_probs` of the whole one.
        """
        own = self.log_probs(model, grad=True)
        return kl_div(own, whole, log_target=True, reduction="sum")

    def _logits(self, model: Any, grad: bool) -> Tensor:
        logits = run_whole(model, self._ids, self._mask, grad=grad).logits[self._predicts]
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


class Order:
    """In which order documents are trained on: a new permutation each epoch.

    It depends on the seed and the place alone, so a run that is taken up again needs no state.

    Args:
        n_documents: how many there are.
        seed: of the permutations.

    Example:
        >>> order = Order(4, seed=0)
        >>> sorted(order.at(0, 4).tolist()), sorted(order.at(4, 4).tolist())
        ([0, 1, 2, 3], [0, 1, 2, 3])
    """

    def __init__(self, n_documents: int, seed: int) -> None:
        self._n, self._seed = n_documents, seed
        self._known: tuple[int, np.ndarray] | None = None

    def at(self, first: int, count: int) -> np.ndarray:
        """The documents at places first to first + count − 1 of the endless order."""
        return np.array([self._document(place) for place in range(first, first + count)])

    def _document(self, place: int) -> int:
        epoch, within = divmod(place, self._n)
        if self._known is None or self._known[0] != epoch:
            rng = np.random.default_rng((self._seed, 50, epoch))
            self._known = epoch, rng.permutation(self._n)
        return int(self._known[1][within])
