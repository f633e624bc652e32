"""The copying score of OV circuits, and its null: the output side turned at random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ...interp.sites import Site
from .null import random_frame, student_p
from .reading import Reading
from .vocabulary import Vocabulary

Progress = Callable[[str, int, int], None]


def copying_columns(
    reading: Reading,
    ends: Vocabulary,
    rotations: int,
    rng: np.random.Generator,
    *,
    progress: Progress | None = None,
) -> dict[str, Float[np.ndarray, " head"]]:
    """Copying score of every head, and where it stands among random rotations of W_OV's output.

    Args:
        reading: the heads' weights.
        ends: the model's vocabulary.
        rotations: draws of the null.
        rng: source of randomness.
        progress: called with ("rotations", done, rotations).

    Returns:
        copying, copying_expected, copying_sd, copying_z and copying_p (two-sided); see `ov_scores`.
    """
    product = ends.product()
    sites = reading.weights
    score = torch.cat([_scores(reading, site, product @ _value(reading, site)) for site in sites])
    return _against(score.double(), _null(reading, ends, product, rotations, rng, progress))


def copying_scores(matrices: Float[Tensor, "head d d"]) -> Float[Tensor, " head"]:
    """Σ Re λ / Σ |λ| over each matrix's eigenvalues; NaN for a matrix of zeros.

    Example:
        >>> copying_scores(torch.tensor([[[2.0, 1.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, -1.0]]]))
        tensor([1., 0.])
    """
    values = torch.linalg.eigvals(matrices)
    return values.real.sum(1) / values.abs().sum(1)


def _value(reading: Reading, site: Site) -> Tensor:
    """W_V [kv_head, d_model, d_value] in float32."""
    return reading.weights[site].W_V.float()


def _scores(reading: Reading, site: Site, behind: Tensor) -> Tensor:
    """Scores of W_O times `behind` [kv_head, d_model, d_value], which its group shares."""
    group = site.n_heads // site.n_kv_heads
    return copying_scores(reading.weights[site].W_O.float() @ behind.repeat_interleave(group, 0))


def _null(
    reading: Reading,
    ends: Vocabulary,
    product: Tensor,
    rotations: int,
    rng: np.random.Generator,
    progress: Progress | None,
) -> Float64[Tensor, "rotation head"]:
    """Scores with W_O = L Uᵀ replaced by L F, F a random frame, one for all heads of a draw."""
    sites = list(reading.weights)
    d_value = max(site.d_value for site in sites)
    spectra = {site: _left_factor(reading, ends, site) for site in sites}
    draws = []
    for done in range(rotations):
        frame = random_frame(rng, d_value, reading.d_model, centred=ends.centred)
        seen = frame.to(product) @ product
        scores = []
        for site in sites:
            behind = seen[: site.d_value] @ _value(reading, site)
            group = site.n_heads // site.n_kv_heads
            scores.append(copying_scores(spectra[site] @ behind.repeat_interleave(group, 0)))
        draws.append(torch.cat(scores).double())
        if progress is not None:
            progress("rotations", done + 1, rotations)
    return torch.stack(draws)


def _left_factor(reading: Reading, ends: Vocabulary, site: Site) -> Tensor:
    """L of W_O = L Uᵀ [head, d_value, d_value], U orthonormal."""
    out = reading.weights[site].W_O.double()
    out = out - out.mean(2, keepdim=True) if ends.centred else out
    return torch.linalg.qr(out.mT, mode="r").R.mT.float()


def _against(score: Tensor, null: Tensor) -> dict[str, Any]:
    mean, sd, n = null.mean(0), null.std(0), len(null)
    t = (score - mean) / (sd * (1 + 1 / n) ** 0.5)
    return {
        "copying": score.cpu().numpy(),
        "copying_expected": mean.cpu().numpy(),
        "copying_sd": sd.cpu().numpy(),
        "copying_z": ((score - mean) / sd).cpu().numpy(),
        "copying_p": student_p(t, n - 1).cpu().numpy(),
    }
