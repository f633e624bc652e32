"""What the tests of training share."""

import torch

from headatlas.circuits.prune.settings import GateTraining


def training(**changes):
    """Settings of a training short enough for a test."""
    return GateTraining(**{"lam": 0.05, "steps": 6, "batch": 2, "lr": 0.3, **changes})


def snapshot(model):
    """All that training must leave alone."""
    return {
        "weights": {name: value.clone() for name, value in model.state_dict().items()},
        "places": {name: weight.data_ptr() for name, weight in model.named_parameters()},
        "flags": [module.training for module in model.modules()],
        "needs": [weight.requires_grad for weight in model.parameters()],
        "grads": [None if w.grad is None else w.grad.clone() for w in model.parameters()],
        "attention": model.config._attn_implementation,
        "forward": ["forward" in module.__dict__ for module in model.modules()],
        "hooks": [len(module._forward_hooks) for module in model.modules()],
        "random": torch.random.get_rng_state(),
    }


def assert_same(one, other):
    """Whether two snapshots are equal, bit for bit."""
    assert one.keys() == other.keys()
    for key, value in one.items():
        _assert_equal(value, other[key])


def _assert_equal(one, other):
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            _assert_equal(value, other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            _assert_equal(left, right)
    else:
        assert one == other
