"""`attach_layers` ends with its block, whatever ends that."""

import contextlib
import gc
import weakref

import pytest
import torch

from headatlas.interp.attach import Edit
from headatlas.interp.layers import hooks
from headatlas.interp.layers.attention import HookedAttention
from headatlas.interp.layers.config import AttentionConfig
from headatlas.interp.layers.hooks import attach_layers

from .interrupts import interrupt_at

X = torch.linspace(-1, 1, 24).reshape(1, 3, 8)


def layer():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return HookedAttention(AttentionConfig(d_model=8, n_heads=2)).eval()


@torch.no_grad()
def output(module):
    result = module(X)
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("function", ["attach_layers", "_end"])
@pytest.mark.parametrize("nested", [False, True])
def test_no_edit_outlives_an_interrupt(function, nested):
    module, calls = layer(), []
    own, outside = output(module), [Edit("z", lambda _, z: z * 2)] if nested else []
    with attach_layers(module, edits=outside):
        expected, frames = output(module), hooks._FRAMES.get()
        assert torch.equal(expected, own) != nested
        event, reached, stopped = 0, True, 0
        while reached:
            event += 1
            try:
                with (
                    interrupt_at(event, hooks, function) as seen,
                    attach_layers(
                        module, observers=[calls.append], edits=[Edit("z", lambda _, z: z * 0)]
                    ),
                ):
                    pass
            except KeyboardInterrupt:
                stopped += 1
            reached = seen() >= event
            assert hooks._FRAMES.get() == frames
            assert torch.equal(output(module), expected)
    assert stopped == event - 1 >= 2
    assert torch.equal(output(module), own)
    assert calls == []


@pytest.mark.parametrize("target", ["q", "k", "v", "scores", "pattern", "z"])
def test_no_edit_outlives_an_exception(target):
    module = layer()
    own, keys = output(module), list(module.state_dict())

    def fail(_, value):
        raise RuntimeError("stop here")

    with (
        pytest.raises(RuntimeError, match="stop here"),
        attach_layers(module, edits=[Edit(target, fail)]),
    ):
        output(module)
    assert hooks._FRAMES.get() == ()
    assert torch.equal(output(module), own)
    assert list(module.state_dict()) == keys


def test_layers_are_freed():
    module = layer()
    with contextlib.suppress(KeyError), attach_layers(module, observers=[lambda call: None]):
        output(module)
        raise KeyError
    gone = weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None
