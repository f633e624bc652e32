"""What tests of hooks and edits share: a batch, a model's state, an edit that several make."""

import torch

from headatlas.interp import switch
from headatlas.interp.attach import Edit

IDS = torch.tensor([[5, 9, 11, 9, 40, 7], [3, 4, 5, 6, 7, 8]])


def state(model):
    """Everything about a model that hooking could leave changed."""
    return (
        [config._attn_implementation for config in switch.configs(model)],
        [(len(m._forward_hooks), len(m._forward_pre_hooks), m.training) for m in model.modules()],
        {name: value.clone() for name, value in model.state_dict().items()},
        [p.grad for p in model.parameters()],
        [sorted(module.__dict__) for module in model.modules()],
    )


def assert_same_state(before, after):
    assert before[0] == after[0]
    assert before[1] == after[1]
    assert before[2].keys() == after[2].keys()
    assert all(torch.equal(before[2][name], after[2][name]) for name in before[2])
    assert all(grad is None for grad in after[3])
    assert before[4] == after[4]


def logits(model, ids=IDS):
    with torch.no_grad():
        return model(ids).logits


def zero_head(target, head, layer=0):
    """Silence one head of one layer, in z or in the pattern."""

    def change(call, value):
        if call.site.layer != layer:
            return value
        keep = torch.ones(value.shape[1], dtype=value.dtype)
        keep[head] = 0
        return value * keep[:, None, None]

    return Edit(target, change)
