"""Edits that several tests make."""

import torch

from headatlas.interp.attach import Edit


def zero_head(target, head, layer=0):
    """Silence one head of one layer, in z or in the pattern."""

    def change(call, value):
        if call.site.layer != layer:
            return value
        keep = torch.ones(value.shape[1], dtype=value.dtype)
        keep[head] = 0
        return value * keep[:, None, None]

    return Edit(target, change)
