"""Every kind of head recomputed from whole eager patterns, cell by cell, sharing no code.

Nothing here imports the package's kinds, scores or kernels: definitions are written out again.
"""

from __future__ import annotations

import numpy as np
import torch


@torch.no_grad()
def eager_patterns(model, ids, mask):
    """Patterns of a transformers model through `output_attentions`, [layer, batch, head, q, k]."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        out = model.base_model(
            input_ids=torch.as_tensor(ids), attention_mask=torch.as_tensor(mask).long(),
            output_attentions=True, use_cache=False,
        )  # fmt: skip
    finally:
        model.set_attn_implementation(before)
    return torch.stack(out.attentions).double().numpy()


def scores_by_hand(patterns, ids, mask, *, bos, delimiter):
    """Mean mass per scored row for every statistic, {name: [layer, head]}.

    Args:
        patterns: [layer, document, head, query, key].
        ids: token ids [document, pos]; padding on either side.
        mask: true on real tokens.
        bos: whether each document starts with a BOS.
        delimiter: true on delimiters, or None.
    """
    sums, rows = {}, {}
    for document in range(len(ids)):
        columns = np.flatnonzero(mask[document])
        a = patterns[:, document][:, :, columns][:, :, :, columns]
        tokens = [int(t) for t in ids[document, columns]]
        marks = None if delimiter is None else delimiter[document, columns]
        for name, cells in _cells(tokens, bos, marks).items():
            for row, keys in cells.items():
                sums[name] = sums.get(name, 0) + a[:, :, row, keys].sum(-1)
                rows[name] = rows.get(name, 0) + 1
    return {name: total / rows[name] for name, total in sums.items()}


def _cells(tokens, bos, marks):
    """For every statistic, the scored rows of one document and their keys."""
    n, first = len(tokens), int(bos)
    found = {
        "previous_token": {i: [i - 1] for i in range(1, n)},
        "first_position": {i: [0] for i in range(1, n)},
        "first_position:alpha64": {i: [0] for i in range(64)} if n >= 64 else {},
        "current_token": {i: [i] for i in range(1, n)},
    }
    for back in range(1, 9):
        found[f"offset:-{back}"] = {i: [i - back] for i in range(max(1, back), n)}
    copies = {i: [j for j in range(first, i) if tokens[j] == tokens[i]] for i in range(first, n)}
    copies = {i: earlier for i, earlier in copies.items() if earlier}
    found["duplicate_token"] = copies
    found["duplicate_token:most_recent"] = {i: [max(js)] for i, js in copies.items()}
    found["induction"] = {i: [j + 1 for j in js] for i, js in copies.items()}
    if marks is not None:
        keys = [j for j in range(first, n) if marks[j]]
        found["delimiter"] = {i: [j for j in keys if j <= i] for i in range(1, n)}
    return found
