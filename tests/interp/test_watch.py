import contextlib
import threading

import pytest
import torch
from torch import nn

from headatlas.interp import watch
from headatlas.interp.watch import watch_calls, watch_modules

from .edits import IDS, assert_same_state, logits, state
from .interrupts import interrupt_at


def hooks(model):
    """Everything that a forward hook leaves on a module."""
    kinds = ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
    return [[dict(getattr(module, kind)) for kind in kinds] for module in model.modules()]


class Both(nn.Module):
    def forward(self, x, *, y):
        return x + y, y


def test_all_inputs_and_whatever_comes_out():
    module, seen = Both(), []
    x, y = torch.zeros(2), torch.ones(2)
    with watch_modules([module], lambda *event: seen.append(event)):
        output = module(x, y=y)
    ((who, inputs, gave),) = seen
    assert who is module
    assert inputs[0] is x
    assert inputs[1] is y
    assert gave is output


def test_only_maps_from_tensor_to_tensor():
    inner, seen = nn.Linear(2, 3), []
    with watch_calls([inner, both := Both()], lambda *event: seen.append(event)):
        both(torch.zeros(2), y=torch.zeros(2))
        assert seen == []
        output = inner(input=torch.zeros(1, 2))
    assert [(who, tuple(x.shape)) for who, x, _ in seen] == [(inner, (1, 2))]
    assert seen[0][2] is output


def test_other_threads_go_unseen(tiny):
    model, seen = tiny("llama"), []
    with watch_calls(model.modules(), lambda module, x, y: seen.append(module)):
        thread = threading.Thread(target=logits, args=(model,))
        thread.start()
        thread.join(60)
        assert seen == []
        logits(model)
    assert model.lm_head in seen


def test_blocks_nest_and_leave_the_users_hooks(tiny):
    model, outer, inner, mine = tiny("llama"), [], [], []
    handle = model.lm_head.register_forward_hook(lambda *_: mine.append(1))
    before = hooks(model)
    with watch_calls([model.lm_head], lambda *_: outer.append(1)):
        with watch_calls([model.lm_head], lambda *_: inner.append(1)):
            logits(model)
        logits(model)
    logits(model)
    assert (len(outer), len(inner), len(mine)) == (2, 1, 3)
    assert hooks(model) == before
    handle.remove()


def test_no_hook_outlives_an_exception(tiny):
    model = tiny("llama")
    before = state(model), hooks(model)

    def fail(*_):
        raise RuntimeError("stop here")

    with pytest.raises(RuntimeError, match="stop here"), watch_calls(model.modules(), fail):
        model(IDS)
    assert_same_state(before[0], state(model))
    assert hooks(model) == before[1]
    assert watch._WATCHING.get() == ()


@pytest.mark.parametrize("function", ["watch_modules", "watch_calls", "_unwatch"])
@pytest.mark.parametrize("fails", [False, True])
def test_no_hook_outlives_an_interrupt(function, fails):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    before = hooks(model)
    event, reached, stopped = 0, True, 0
    while reached:
        event += 1
        try:
            with (
                contextlib.suppress(KeyError),
                interrupt_at(event, watch, function) as seen,
                watch_calls(model.modules(), lambda *_: None),
            ):
                model(torch.zeros(1, 2))
                if fails:
                    raise KeyError
        except KeyboardInterrupt:
            stopped += 1
        reached = seen() >= event
        assert hooks(model) == before
        assert watch._WATCHING.get() == ()
    assert stopped == event - 1 >= 3
