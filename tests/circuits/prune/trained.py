"""What the tests of training share."""

import numpy as np
import pandas as pd
import torch

from headatlas.circuits.atlas import HeadAtlas
from headatlas.circuits.prune.prune import prune_heads
from headatlas.circuits.prune.settings import GateTraining
from headatlas.interp.heads import HeadId
from headatlas.interp.probes import Prompts
from headatlas.interp.texts import Documents
from tests.circuits.causal.models import VOCAB


def training(**changes):
    """Settings of a training short enough for a test."""
    return GateTraining(**{"lam": 0.05, "steps": 6, "batch": 2, "lr": 0.3, **changes})


def atlas_of(grades, every=None):
    """An atlas of one kind, induction, made by hand: grades by address, of 2 layers of 4 heads."""
    names = every or [f"L{layer}H{head}" for layer in range(2) for head in range(4)]
    rows = [
        {
            "site": head.site, "layer": head.layer, "head": head.head, "kind": "induction",
            "grade": grades.get(str(head), "none"), "excess": 0.0,
        }
        for head in map(HeadId.parse, names)
    ]  # fmt: skip
    return HeadAtlas(pd.DataFrame(rows), {}, {}, {})


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


def text(seed, documents=16, length=20):
    ids = np.random.default_rng(seed).integers(1, VOCAB, (documents, length))
    return Documents(Prompts("text", ids, ids > 0, bos=False), f"text {seed}")


def prune(model, **changes):
    asked = {
        "method": ("l0", "magnitude", "random"), "sparsity": (0.25, 0.5), "draws": 2,
        "config": training(steps=4), "eval_documents": 16, "seq_len": 20,
    }  # fmt: skip
    eval_texts = changes.pop("eval_texts", text(2))
    return prune_heads(model, None, text(1), eval_texts=eval_texts, **{**asked, **changes})
