"""What scoring heads costs beside the model's plain forward: CPU time and peak memory, as ratios.

    python -m tests.bench.classify_cost [--lengths 256 1024 2048] [--out FILE.json]

Every contender runs the model without its LM head on the same tokens. CPU times are medians of
interleaved rounds in one process (process time of all threads); the ratio is taken round by round
against the plain SDPA forward of the same round. Peak memory is each contender's own process: the
high-water mark of resident memory over the loaded and warmed-up model.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib.metadata
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import transformers

import headatlas as ha
from headatlas.circuits.score import score
from headatlas.interp.forward import run_base
from headatlas.interp.probes import (
    Prompts,
    delimiters,
    natural_prompts,
    random_prompts,
    token_pool,
)

ONE_KEY = "previous_token,offset,first_position,current_token"
NAMED = "previous_token,duplicate_token,induction"  # the three that detect_head knows
PLAIN = "plain SDPA forward"
ALWAYS = (
    PLAIN, "one-key kinds", "previous, duplicate, induction", "default battery",
    "default battery, 16 null draws",
)  # fmt: skip
EAGER = ("eager hooks, streamed diagonals", "eager output_attentions")
LENS = ("TransformerLens detect_head × 3", "TransformerLens, one shared cache")


def document(model, tokenizer, kind: str, length: int) -> Prompts:
    """One document of natural text or of repeated random tokens, delimiters marked."""
    if kind == "natural":
        return natural_prompts(tokenizer, 1, length, prepend_bos=True, seed=0)
    pool = token_pool(model.config.vocab_size, tokenizer)
    made = random_prompts(pool, 1, length, bos_id=tokenizer.bos_token_id, seed=0)
    return Prompts("random", made.ids, made.mask, True, delimiters(tokenizer, made.ids))


def contenders(model, tokenizer, prompts: Prompts, names) -> dict[str, Callable[[], object]]:
    """The named contenders as functions without arguments."""
    ids = torch.from_numpy(prompts.ids)
    makers: dict[str, Callable[[], Callable[[], object]]] = {
        PLAIN: lambda: lambda: run_base(model, ids),
        ALWAYS[1]: lambda: lambda: score(model, prompts, ONE_KEY, profile_rows=0),
        ALWAYS[2]: lambda: lambda: score(model, prompts, NAMED, profile_rows=0),
        ALWAYS[3]: lambda: lambda: score(model, prompts),
        ALWAYS[4]: lambda: lambda: score(model, prompts, null_draws=16),
        EAGER[0]: lambda: lambda: _streamed_diagonals(model, ids),
        EAGER[1]: lambda: lambda: _output_attentions(model, ids),
        LENS[0]: lambda: _lens(tokenizer, ids, shared=False),
        LENS[1]: lambda: _lens(tokenizer, ids, shared=True),
    }
    return {name: makers[name]() for name in names}


@torch.no_grad()
def _streamed_diagonals(model, ids):
    """The careful one-prompt script: eager attention, a hook per layer, diagonals kept."""
    kept = []

    def hook(_module, _args, output):
        pattern = output[1]
        rows = {f"-{k}": pattern.diagonal(-k, 2, 3).mean(-1) for k in range(9)}
        kept.append({**rows, "first": pattern[:, :, 1:, 0].mean(-1)})
        return (output[0], None)

    handles = [layer.self_attn.register_forward_hook(hook) for layer in model.model.layers]
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        model.base_model(input_ids=ids, use_cache=False)
    finally:
        model.set_attn_implementation(before)
        for handle in handles:
            handle.remove()
    return kept


@torch.no_grad()
def _output_attentions(model, ids):
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        out = model.base_model(input_ids=ids, use_cache=False, output_attentions=True)
        return [(a.diagonal(-1, 2, 3).mean(-1), a[:, :, 1:, 0].mean(-1)) for a in out.attentions]
    finally:
        model.set_attn_implementation(before)


def _lens(tokenizer, ids, *, shared: bool):
    """detect_head for its three named kinds, on our tokens; the shared cache is its best case."""
    from transformer_lens.head_detector import HEAD_NAMES, detect_head
    from transformer_lens.model_bridge import TransformerBridge

    own, _ = ha.load("smollm2-135m")  # the bridge changes the model that it is given
    own.lm_head = torch.nn.Linear(own.config.hidden_size, 1, bias=False)  # no LM head on any side
    bridge = TransformerBridge.boot_transformers(
        "HuggingFaceTB/SmolLM2-135M-Instruct", hf_model=own, tokenizer=tokenizer, device="cpu"
    )
    bridge.to_tokens = lambda *_args, **_kwargs: ids

    @torch.no_grad()
    def run():
        cache = None
        if shared:
            _, cache = bridge.run_with_cache(
                ids, remove_batch_dim=True, names_filter=lambda name: name.endswith("pattern")
            )
        return [detect_head(bridge, "text", name, cache=cache) for name in HEAD_NAMES]

    return run


def cpu_ratios(length: int, kind: str, names, rounds: int) -> dict[str, dict[str, float]]:
    """Median CPU seconds and median ratio to the plain forward of the same round."""
    model, tokenizer = ha.load("smollm2-135m")
    prompts = document(model, tokenizer, kind, length)
    runs = contenders(model, tokenizer, prompts, names)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):  # the first round warms up
        for name, run in runs.items():
            start = time.process_time()
            run()
            if turn:
                times[name].append(time.process_time() - start)
    plain = np.array(times[PLAIN])
    return {
        name: {
            "cpu_s": statistics.median(values),
            "ratio": float(np.median(np.array(values) / plain)),
        }
        for name, values in times.items()
    }


def peak_memory(length: int, kind: str, name: str) -> float:
    """Peak MiB over the loaded, warmed-up model; measured in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.classify_cost", "--memory", kind, str(length)]
    done = subprocess.run([*command, name], capture_output=True, text=True, check=True)
    return float(done.stdout.strip().splitlines()[-1])


def _measure_memory(kind: str, length: int, name: str) -> float:
    model, tokenizer = ha.load("smollm2-135m")
    warm = document(model, tokenizer, kind, 64)
    for run in contenders(model, tokenizer, warm, [name]).values():
        run()
    runs = contenders(model, tokenizer, document(model, tokenizer, kind, length), [name])
    del warm
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # give back what the warm-up left, or it hides the peak
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark (Linux)
    for run in runs.values():
        run()
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    """A memory figure of this process in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def _line(row: dict) -> str:
    return (
        f"{row['tokens']:5} {row['text']:9} {row['contender']:34} {row['cpu_s']:7.2f} CPU s  "
        f"{row['ratio']:6.2f} ×  {row['peak_mib']:8.0f} MiB"
    )


def measure(options: argparse.Namespace) -> Iterator[dict]:
    """One row per contender, length and text."""
    for length in options.lengths:
        for kind in options.kinds:
            groups = [((*ALWAYS, EAGER[0]), options.rounds)]
            if length in options.others:  # slow: fewer rounds, beside the same plain forward
                groups.append(((PLAIN, EAGER[1], *LENS), 2))
            for names, rounds in groups:
                times = cpu_ratios(length, kind, names, rounds)
                for name in names if names[1] == ALWAYS[1] else names[1:]:
                    row = {"tokens": length, "text": kind, "contender": name, **times[name]}
                    yield row | {"peak_mib": peak_memory(length, kind, name)}


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024, 2048])
    parser.add_argument("--kinds", nargs="+", default=["natural", "repeated"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--others", type=int, nargs="*", default=[1024], help="lengths for peers")
    parser.add_argument("--threads", type=int, default=1, help="threads that wait burn CPU time")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--memory", nargs=3, metavar=("KIND", "LENGTH", "NAME"))
    return parser.parse_args(arguments)


def markdown(arguments: list[str] | None = None) -> dict[str, str]:
    """The table: ratios of CPU time by length, natural / repeated, and peak memory at 1,024.

    With it, for prose: the battery's least and largest ratio, and what `detect_head` takes.
    """
    options = _options(arguments or [])
    torch.set_num_threads(options.threads)
    rows = list(measure(options))
    cells = {(row["contender"], row["tokens"], row["text"]): row for row in rows}
    lengths = [f"{length:,}" for length in options.lengths]
    lines = [f"| contender | {' | '.join(lengths)} | peak MiB |", "|---" * (len(lengths) + 2) + "|"]
    plain = cells[PLAIN, 1024, "natural"]["peak_mib"]
    for name in (*ALWAYS[1:], *EAGER, *LENS):
        ratios = [
            " / ".join(_ratio(cells.get((name, length, kind))) for kind in options.kinds)
            for length in options.lengths
        ]
        peak = cells[name, 1024, "natural"]["peak_mib"]
        lines.append(f"| {name} | {' | '.join(ratios)} | {peak:.0f} |")
    versions = ", ".join(f"{name} {value}" for name, value in _machine(options).items())
    battery = [row["ratio"] for row in rows if row["contender"] == ALWAYS[3]]
    lens = cells[LENS[0], 1024, "natural"]
    memory = f"{lens['peak_mib'] / 1024:.1f} GiB"
    return {
        "": "\n".join([*lines, f"\nPlain forward: {plain:.0f} MiB. {versions}."]),
        "battery": f"{min(battery):.1f} to {max(battery):.1f}",
        "lens": f"{lens['ratio']:.0f} times as long for three kinds, and {memory}",
    }


def _ratio(row: dict | None) -> str:
    return "–" if row is None else f"{row['ratio']:.2f}"


def _machine(options: argparse.Namespace) -> dict[str, str]:
    lens = importlib.metadata.version("transformer-lens")
    return {
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "transformer-lens": lens,
        "threads": str(options.threads),
    }


def main() -> None:
    """Run the benchmark and print its rows."""
    options = _options(sys.argv[1:])
    torch.set_num_threads(options.threads)
    if options.memory:
        kind, length, name = options.memory
        print(_measure_memory(kind, int(length), name))
        return
    rows = []
    for row in measure(options):
        rows.append(row)
        print(_line(row), flush=True)
    if options.out:
        options.out.write_text(json.dumps({"machine": _machine(options), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
