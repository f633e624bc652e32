"""Forward passes that begin in the middle, and what they leave behind."""

import contextlib
import threading

import pytest
import torch
from torch import nn

from headatlas.interp import resume
from headatlas.interp.attach import Edit, attach
from headatlas.interp.errors import InputError
from headatlas.interp.forward import run_base
from headatlas.interp.resume import find_blocks, is_same, keep_states, resumed
from headatlas.interp.sites import Site, attention_sites
from tests.circuits.causal.models import gemma2, gpt2, llama
from tests.interp.interrupts import interrupt_at

IDS = torch.tensor([[1, 2, 3, 4, 5], [9, 8, 7, 6, 5]])


def kept(model):
    blocks = find_blocks(model, attention_sites(model))
    with keep_states(blocks) as states:
        out = run_base(model, IDS).last_hidden_state
    return blocks, states, out


def untouched(model):
    return all("forward" not in module.__dict__ for module in model.modules())


@pytest.mark.parametrize("build", [gpt2, llama, gemma2])
def test_a_pass_begun_at_any_block_equals_a_whole_one(build):
    model = build()
    blocks, states, whole = kept(model)
    for start in range(len(blocks.modules)):
        with resumed(blocks, start, states.entering[start], states):
            assert is_same(run_base(model, IDS).last_hidden_state, whole)
    assert untouched(model)


def test_the_batch_may_be_repeated_and_edited():
    model = llama()
    blocks, states, _ = kept(model)
    site = attention_sites(model)[1]

    def silence(_call, z):
        z[2:, 3] = 0  # in the second copy of the documents
        return z

    edits = [Edit("z", silence, frozenset({site}))]
    twice = states.entering[1].repeat(2, 1, 1)
    with resumed(blocks, 1, twice, states), attach(model, edits=edits):
        begun = run_base(model, IDS.repeat(2, 1)).last_hidden_state
    with attach(model, edits=edits):
        whole = run_base(model, IDS.repeat(2, 1)).last_hidden_state
    assert is_same(begun, whole)
    assert not is_same(begun[2:], begun[:2])


def test_earlier_blocks_do_not_compute():
    model = gpt2()
    blocks, states, _ = kept(model)
    seen = []
    watch = attach(model, observers=[lambda call: seen.append(call.site.layer)])
    with resumed(blocks, 2, states.entering[2], states), watch:
        run_base(model, IDS)
    assert seen == [2]


def test_an_own_forward_of_a_block_comes_back():
    model = gpt2()
    own = model.transformer.h[0].forward
    model.transformer.h[0].forward = own
    blocks, states, _ = kept(model)
    with pytest.raises(KeyError), resumed(blocks, 1, states.entering[1], states):
        raise KeyError
    assert model.transformer.h[0].__dict__["forward"] is own
    assert "forward" not in model.transformer.h[1].__dict__


def test_other_threads_run_the_whole_model():
    model = gpt2()
    blocks, states, whole = kept(model)
    found = []

    def other():
        found.append(run_base(model, IDS).last_hidden_state)

    with resumed(blocks, 2, states.entering[2] * 0, states):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert is_same(found[0], whole)


@pytest.mark.parametrize("function", ["_override", "_give_back"])
def test_a_request_to_stop_leaves_the_blocks_as_they_were(function):
    model = gpt2()
    blocks, states, whole = kept(model)
    event = 0
    while True:
        event += 1
        begun = resumed(blocks, 1, states.entering[1], states)
        stop = interrupt_at(event, resume, function)
        with contextlib.suppress(KeyboardInterrupt), stop as seen, begun:
            pass
        assert untouched(model), f"interrupted at event {event}"
        if seen() < event:
            break
    assert event > 4
    assert is_same(run_base(model, IDS).last_hidden_state, whole)


def test_blocks_that_pass_on_more_than_states_are_refused():
    model = gpt2()

    class Chatty(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, *args, **kwargs):
            return self.inner(*args, **kwargs), torch.ones(1)

    blocks = find_blocks(model, attention_sites(model))
    chatty = resume.Blocks((Chatty(blocks.modules[0]),), {})
    with keep_states(chatty), pytest.raises(resume.UnfitBlocksError, match="more than one tensor"):
        chatty.modules[0](torch.zeros(1, 2, 16))


def test_there_is_no_block_beyond_the_last():
    blocks, states, _ = kept(gpt2())
    beyond = resumed(blocks, 3, states.entering[0], states)
    with pytest.raises(InputError, match="states of 3 blocks; got 3"), beyond:
        pass


def test_sites_outside_one_list_have_no_blocks():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.ModuleList([nn.Linear(1, 1)]), nn.ModuleList([nn.Linear(1, 1)])
            self.alone = nn.Linear(1, 1)

    one, two, alone = (
        Site(module, "", layer, 1, 1, 1, 1, True)
        for layer, module in enumerate(["one.0", "two.0", "alone"])
    )
    assert find_blocks(Pair(), [one, two]) is None
    assert find_blocks(Pair(), [alone]) is None
    assert find_blocks(Pair(), [two]).of == {two: 0}


def test_is_same_tells_rounding_from_difference():
    x = torch.tensor([1.0, 2.0])
    assert is_same(x * (1 + 1e-7), x)
    assert not is_same(x * (1 + 1e-4), x)
    assert not is_same(x[:1], x)
    assert not is_same(x * float("nan"), x)
