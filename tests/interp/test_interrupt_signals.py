"""Real requests to stop, at whatever instruction they come, leave nothing behind."""

import signal
import time

import pytest
import torch
from torch import nn

from headatlas.interp import attach as attach_module
from headatlas.interp import forward, inline, switch, watch
from headatlas.interp import frames as frames_module
from headatlas.interp.interventions import run, zero
from headatlas.interp.layers import hooks
from headatlas.interp.layers.attention import HookedAttention
from headatlas.interp.layers.config import AttentionConfig
from headatlas.interp.sites import attention_sites

from .edits import IDS, assert_same_state, state
from .inline_models import build_inline

TURNS, LIMIT = 300, 3.0  # signals, seconds


def left_behind(model):
    """What blocks keep while they last, and hooks on modules; empty outside."""
    flags = [part for part in model.modules() if not part.training]
    hooked = [part for part in model.modules() if part._forward_hooks or part._forward_pre_hooks]
    acting = list(frames_module._ACTING)
    frames = (frames_module._FRAMES.get(), hooks._FRAMES.get(), hooks._USES.get())
    held = (dict(switch._HELD), dict(forward._HELD), dict(inline._HELD))
    return [x for x in (*frames, *held, acting, watch._WATCHING.get(), flags, hooked) if x]


def stop(*_):
    raise KeyboardInterrupt


@pytest.fixture
def alarms():
    """SIGALRM asks to stop, as Ctrl-C does; no timer outlives the test."""
    before = signal.signal(signal.SIGALRM, stop)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def interrupted(call, check, spread):
    """Call until a signal comes, at another delay each time; how many came."""
    came, until = 0, time.monotonic() + LIMIT
    for turn in range(TURNS):
        if time.monotonic() > until:
            break
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-5 + spread * (turn * 0.618 % 1))
            lost = time.monotonic() + 10 * spread + 0.02  # a destructor may have swallowed it
            while time.monotonic() < lost:
                call()
        except KeyboardInterrupt:
            came += 1
        check()
    return came


@pytest.mark.usefixtures("as_users_call", "alarms")
class TestSignals:
    def test_interventions_on_layers(self):
        layer = HookedAttention(AttentionConfig(d_model=4, n_heads=2))
        model = nn.Sequential(layer, nn.Dropout(0.5)).train()
        x, change = torch.ones(1, 1, 4), zero("L0H0")
        assert interrupted(lambda: run(model, x, change), lambda: self.clean(model), 4e-3) > 100

    def test_empty_blocks(self):
        """Little but entering and leaving, where most windows would be."""
        layer = HookedAttention(AttentionConfig(d_model=4, n_heads=2))
        model = nn.Sequential(layer).train()

        def blocks():
            with hooks.attach_layers(model, edits=[]), forward.undisturbed(model):
                pass

        assert interrupted(blocks, lambda: self.clean(model), 1e-3) > 100

    def test_blocks_around_models(self, tiny):
        model = tiny("llama").train()
        attention_sites(model)
        before = state(model)

        def blocks():
            with attach_module.attach(model, observers=[print]), forward.undisturbed(model):
                pass

        def check():
            self.clean(model)
            assert_same_state(before, state(model))

        assert interrupted(blocks, check, 2e-3) > 100
        model.eval()(IDS)

    def test_blocks_around_models_that_attend_in_their_own_code(self):
        model = build_inline("bloom").train()
        attention_sites(model)
        before = state(model)

        def blocks():
            with attach_module.attach(model, observers=[print]):
                pass

        def check():
            self.clean(model)
            assert_same_state(before, state(model))

        assert interrupted(blocks, check, 2e-3) > 100

    def clean(self, model):
        assert left_behind(model) == []


class StoppedSet(set):
    """A request to stop that comes just before a block is counted."""

    def add(self, _):
        raise KeyboardInterrupt


@pytest.mark.parametrize("where", [forward, switch], ids=["eval mode", "attention"])
def test_a_stop_between_keeping_and_counting(tiny, monkeypatch, where):
    model = tiny("llama").train()
    attention_sites(model)
    before = state(model)
    monkeypatch.setattr(where, "set", StoppedSet, raising=False)
    block = forward.undisturbed if where is forward else switch.switched
    with pytest.raises(KeyboardInterrupt), block(model):
        pass
    monkeypatch.undo()
    assert left_behind(model) == []
    assert_same_state(before, state(model))
