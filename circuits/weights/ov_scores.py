"""What each head's OV circuit does to tokens: copies, suppresses, or names the next in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch

from ...interp.sites import unbridged
from ..arguments import whole_number
from .copying import copying_columns
from .ordinals import ordinal_sequences
from .ov_result import OVScores
from .ov_words import read_words, successor_columns, token_columns
from .reading import read_model
from .vocabulary import vocabulary

Progress = Callable[[str, int, int], None]
_STUDENT = 30  # fewer rotations than this give no usable standard deviation


@torch.no_grad()
def ov_scores(
    model: Any,
    tokenizer: Any = None,
    *,
    rotations: int = 100,
    effective: bool = False,
    up_to_norms: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> OVScores:
    """Copying, suppression and successor scores of every head, from weights alone.

    **copying** = Σ Re λ / Σ |λ| over the eigenvalues λ of W_E W_OV W_U, with the mean embedding
    taken off and the gains of both norms folded in: 1 where a head raises the logit of what it
    attends to in all directions, −1 where it lowers it (copy suppression). The d_value nonzero
    eigenvalues are those of W_O (W_U W_E) W_V. `copying_expected` and `copying_sd` are mean and
    deviation over `rotations` random rotations of the output side of W_OV, which keep its
    spectrum, and are shared between the heads; `copying_z` is the standardised score, and
    `copying_p` two-sided, of Student's t with rotations − 1 degrees of freedom.

    **copied**, **suppressed** = of the 512 first words of the vocabulary, the share whose own
    logit, among the 512, rises (falls) most when a head attends to them: arg max (min) over t of
    `[W_E W_OV W_U](s, t)` is s. By chance `token_chance`.

    **successor** = over ordinal sequences (numbers, days, months, letters … that are single
    tokens), the share of elements whose successor gets the largest logit among the sequence's
    other elements. `successor_expected` = mean of 1 / (n − 1) over the elements; `successor_p` is
    from 1,000 random orders of the same elements. NaN without a tokenizer.

    Deviations: McDougall counts own logits among the ten most lowered of the whole vocabulary;
    Gould lets the successor compete with the tokens of all sequences. Positions, biases and a scale
    of the embedding are left out.

    Args:
        model: a language model of one stack.
        tokenizer: its tokenizer; without it words are unknown: ids count as they come.
        rotations: draws of the null, at least 30.
        effective: suppression and succession read the stream behind the first MLP
            (`effective_embedding`) in place of the embedding; heads of layer 0 still the embedding.
        up_to_norms: leave out norms behind attention; `caveats` then names them.
        seed: seed of the rotations and orders.
        progress: called with ("rotations", done, rotations).

    Raises:
        InputError: no LM head behind one norm, no exact W_OV (the message says where), or too few
            rotations.

    Example:
        >>> import headatlas as ha
        >>> scores = ov_scores(*ha.load("tiny"), rotations=30)
        >>> scores.rows.shape[0], -1 <= scores["L3H2"]["copying"] <= 1
        (32, True)

    Reference: Elhage et al. 2021 (copying); McDougall et al. 2023 (suppression); Gould et al. 2023
        (successor heads).
    """
    model = unbridged(model)
    rotations = whole_number("rotations", rotations, _STUDENT)
    rng = np.random.default_rng((whole_number("seed", seed, 0), 41))
    reading = read_model(model, ("OV",), up_to_norms=up_to_norms)
    ends = vocabulary(model)
    sequences = {} if tokenizer is None else ordinal_sequences(tokenizer)
    words = read_words(model, tokenizer, ends, tuple(sequences.values()), effective=effective)
    rows = pd.DataFrame(
        {
            "site": [head.site for head in reading.heads],
            "layer": [head.layer for head in reading.heads],
            "head": [head.head for head in reading.heads],
            **copying_columns(reading, ends, rotations, rng, progress=progress),
            **token_columns(reading, ends, words),
            **successor_columns(reading, ends, words, rng),
        }
    )
    return OVScores(rows, sequences, rotations, effective, reading.caveats)
