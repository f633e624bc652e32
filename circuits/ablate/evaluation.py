"""Losses and divergences of a model with sets of heads removed, document by document."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from ...interp.heads import HeadId
from ...interp.texts import Documents


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What removing sets of heads does to the predictions of each document.

    Pooled figures weigh documents by their predicted tokens, x̄ = Σ_d n_d x_d / Σ_d n_d.

    Args:
        documents: what was read.
        removed: the sets of removed heads.
        ablation: how they were removed: `zero`, `mean` or `resample`.
        n: predicted tokens, per document.
        base: mean loss of the whole model (or of the reference) in nats/token, per document.
        loss: mean loss with each set removed, in nats/token.
        kl: mean KL(whole ‖ ablated) in nats/token.
        resumed: whether runs began at the first removed head's block, which was found exact; it
            says nothing of checkpoints.
        groups: how many groups of documents were run apart to stay within memory; the mean and
            the other document of `mean` and `resample` are of the same group.
    """

    documents: Documents
    removed: tuple[tuple[HeadId, ...], ...]
    ablation: str
    n: Int[np.ndarray, " document"] = field(repr=False)
    base: Float[np.ndarray, " document"] = field(repr=False)
    loss: Float[np.ndarray, "set document"] = field(repr=False)
    kl: Float[np.ndarray, "set document"] = field(repr=False)
    resumed: bool
    groups: int = 1

    @property
    def weights(self) -> Float[np.ndarray, " document"]:
        """Each document's share of the predicted tokens."""
        return self.n / self.n.sum()

    @property
    def base_loss_nats(self) -> float:
        """Loss of the whole model (or of the reference), in nats/token."""
        return float(self.weights @ self.base)

    @property
    def loss_nats(self) -> Float[np.ndarray, " set"]:
        """Loss with each set removed, in nats/token."""
        return self.loss @ self.weights

    @property
    def delta_loss_nats(self) -> Float[np.ndarray, " set"]:
        """Rise of the loss with each set removed, in nats/token."""
        return (self.loss - self.base) @ self.weights

    @property
    def perplexity_ratio(self) -> Float[np.ndarray, " set"]:
        """exp(Δ loss): perplexity with each set removed over that of the whole model."""
        return np.exp(self.delta_loss_nats)

    @property
    def kl_nats(self) -> Float[np.ndarray, " set"]:
        """KL(whole ‖ ablated) in nats/token."""
        return self.kl @ self.weights

    def per_document(self) -> pd.DataFrame:
        """One row per set and document: set (its number), document, n, losses, delta and KL."""
        sets, documents = self.loss.shape
        return pd.DataFrame(
            {
                "set": np.repeat(np.arange(sets), documents),
                "document": np.tile(np.arange(documents), sets),
                "n": np.tile(self.n, sets),
                "base_loss_nats": np.tile(self.base, sets),
                "loss_nats": self.loss.ravel(),
                "delta_loss_nats": (self.loss - self.base).ravel(),
                "kl_nats": self.kl.ravel(),
            }
        )
