"""Fifteen thousand blocks on a tiny model, then all else that hooks; what they leave, as JSON.

    python -m tests.interp.leaks

A process of its own: the type checks of the test suite make a block ten times as slow.
"""

import gc
import json
import sys
import threading

import psutil
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from headatlas.interp import forward, inline, placement, switch, watch
from headatlas.interp import frames as frames_module
from headatlas.interp.attach import attach
from headatlas.interp.capture import capture
from headatlas.interp.hook_names import TARGETS
from headatlas.interp.intervention import edits_for
from headatlas.interp.interventions import gate, intervene, run, zero
from headatlas.interp.layers import hooks as layer_hooks
from headatlas.interp.layers.attention import HookedAttention
from headatlas.interp.layers.config import AttentionConfig
from headatlas.interp.layers.hooks import attach_layers
from headatlas.interp.watch import watch_calls

ROUND = 5_000
TURNS = 100  # of everything else
IDS = torch.tensor([[1, 2, 3]])


def tiny_model():
    config = LlamaConfig(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return LlamaForCausalLM(config).eval()


@torch.no_grad()
def cycle(model, times):
    """Attach and detach: now and then with a forward pass, an exception, as interventions."""
    changes = [zero("L0H1", "k", positions=1), gate("L0H0", 0.5, "scores")]
    edits, seen = edits_for(model, changes), []
    for turn in range(times):
        seen.clear()
        try:
            block = attach(model, edits=edits, observers=[seen.append])
            with block if turn % 25 else intervene(model, changes):
                if turn % 20 == 0:
                    model(IDS)
                if turn % 11 == 0:
                    raise KeyError
        except KeyError:
            pass


@torch.no_grad()
def beside(model, layer, times):
    """Captures, runs with interventions at every target, watched modules, layers, threads."""
    for _ in range(times):
        capture(model, None, IDS)
        run(model, IDS, [gate("L0H0", 0.5, target) for target in TARGETS])
        seen = []
        with (
            watch_calls(model.modules(), lambda *event, seen=seen: seen.append(event)),
            attach_layers(layer, observers=[seen.append]),
            attach(model),
            intervene(model, zero("L0H1", "pattern")),  # nested
        ):
            model(IDS)
            layer(torch.zeros(1, 3, 8))
            thread = threading.Thread(target=cycle, args=(model, 2))
            thread.start()
            thread.join()


def held():
    """Objects that the garbage collector tracks, blocks of Python's allocator, resident bytes."""
    gc.collect()
    return len(gc.get_objects()), sys.getallocatedblocks(), psutil.Process().memory_info().rss


def traces(model):
    """Where hooking could leave something."""
    return {
        "hooks": sum(
            len(m._forward_hooks) + len(m._forward_hooks_with_kwargs) + len(m._forward_pre_hooks)
            for m in model.modules()
        ),
        "attributes": sum(len(module.__dict__) for module in model.modules()),
        "implementation": model.config._attn_implementation,
        "held": len(switch._HELD) + len(forward._HELD) + len(inline._HELD),
        "acting": len(frames_module._ACTING),
        "frames": len(frames_module._FRAMES.get()) + len(layer_hooks._FRAMES.get()),
        "watching": len(watch._WATCHING.get()),
        "noted": len(placement._NOTED),
    }


def main():
    """Print what there was before, and after each of three rounds, of both kinds."""
    torch.set_num_threads(1)
    model = tiny_model()
    cycle(model, 500)  # tables of torch, transformers and the interpreter fill
    report = {"traces": [traces(model)], "held": [held()]}
    for _ in range(3):
        cycle(model, ROUND)
        report["held"].append(held())
    report["traces"].append(traces(model))
    layer = HookedAttention(AttentionConfig(d_model=8, n_heads=2)).eval()
    beside(model, layer, 20)
    report["beside"] = [held()]
    for _ in range(3):
        beside(model, layer, TURNS)
        report["beside"].append(held())
    report["traces"].append(traces(model))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
