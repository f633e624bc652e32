"""The pages that viewers of attention write, all of the same patterns; for `viewers`.

    python -m tests.bench.viewer_pages VIEWER TOKENS PAGE.html [--gib 8]

One page is written per process, which may hold so many GiB of data: exit status 3 says that they
were not enough. CircuitsVis and BertViz are read from a folder beside the environment, and the
scripts that their pages fetch from the archives of npm in it:

    pip install --no-deps --target build/viewers/python circuitsvis==1.43.3 bertviz==1.4.1 \\
        importlib-metadata==8.7.0 zipp
    cd build/viewers && npm pack requirejs@2.3.6 d3@5.7.0 jquery@2.1.0
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import tarfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import headatlas as ha
from headatlas.interp.probes import natural_prompts

BUILD = Path(__file__).parents[2] / "build" / "viewers"
PYTHON = BUILD / "python"
N_HEADS = 12
NO_MEMORY = 3
_SETUP = "python -m pydoc tests.bench.viewer_pages tells how to set it up"
_BUNDLE = PYTHON / "circuitsvis" / "dist" / "cdn" / "iife.js"
_IN_NPM = {  # what BertViz's pages fetch: the archive and its file that stand for it
    "/ajax/libs/require.js/2.3.6/require.min.js": ("requirejs-2.3.6.tgz", "require.js"),
    "/ajax/libs/d3/5.7.0/d3.min.js": ("d3-5.7.0.tgz", "dist/d3.min.js"),
    # npm has no jQuery 2.0
    "/ajax/libs/jquery/2.0.0/jquery.min.js": ("jquery-2.1.0.tgz", "dist/jquery.min.js"),
}


def check_setup() -> None:
    """End with a message unless the other viewers and their scripts are there."""
    archives = [BUILD / archive for archive, _ in _IN_NPM.values()]
    missing = [path for path in (_BUNDLE, PYTHON / "bertviz", *archives) if not path.exists()]
    if missing:
        raise SystemExit(f"viewers needs {missing[0]}; {_SETUP}.")


@cache
def script(path: str) -> bytes:
    """The script that a page fetches from this path of its CDN.

    CircuitsVis has its bundle as a module there, which is not on npm: the same bundle, as its
    wheel brings it for pages without a network, stands for it.
    """
    if path.endswith("/dist/cdn/esm.js"):
        names = "render, AttentionPatterns, AttentionHeads"
        return _BUNDLE.read_bytes() + f"\nexport const {{{names}}} = CircuitsVis;\n".encode()
    archive, member = _IN_NPM[path]
    with tarfile.open(BUILD / archive) as files:
        found = files.extractfile(f"package/{member}")
        if found is None:
            raise ValueError(f"{archive} has no file {member}")
        return found.read()


def versions() -> dict[str, str]:
    """Of the other viewers."""
    found = importlib.metadata.distributions(path=[str(PYTHON)])
    known = {package.metadata["Name"]: package.version for package in found}
    return {name: known[name] for name in ("circuitsvis", "bertviz")}


def random_model(length: int) -> tuple[GPT2LMHeadModel, torch.Tensor]:
    """A random GPT-2 of one layer of 12 heads, neither flat nor one-hot, and random tokens."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=1000,
        bos_token_id=None,
        eos_token_id=None,
        n_embd=16 * N_HEADS,
        n_layer=1,
        n_head=N_HEADS,
        n_positions=length,
    )
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        model.transformer.h[0].attn.c_attn.weight.mul_(5)
    return model, torch.randint(config.vocab_size, (1, length))


def patterns(length: int) -> tuple[torch.Tensor, list[str]]:
    """What the explorer shows of that model, [head, query, key], and the words of its tokens."""
    model, ids = random_model(length)
    cache = ha.capture(model, None, ids, names_filter="pattern")
    return cache["pattern", 0][0], list(cache.tokens[0])


def explorer(length: int) -> str:
    """Headatlas's page of the 12 heads."""
    model, ids = random_model(length)
    return ha.explore(model, None, ids).html


def explorer_whole(length: int) -> str:
    """Headatlas's page of all 270 heads of smollm2-135m, on natural text."""
    model, tokenizer = ha.load("smollm2-135m")
    prompts = natural_prompts(tokenizer, 1, length, prepend_bos=True, seed=0)
    return ha.explore(model, tokenizer, torch.from_numpy(prompts.ids)).html


def circuitsvis(name: str, *, inside: bool = False) -> Callable[[int], str]:
    """What a function of CircuitsVis makes; `inside`: its page for notebooks without network."""

    def write(length: int) -> str:
        from circuitsvis import attention

        weights, tokens = patterns(length)
        made = getattr(attention, name)(tokens=tokens, attention=weights)
        return made.local_src if inside else str(made)

    return write


def bertviz(name: str) -> Callable[[int], str]:
    """What a function of BertViz makes."""

    def write(length: int) -> str:
        import bertviz as package

        weights, tokens = patterns(length)
        return getattr(package, name)([weights[None]], tokens, html_action="return").data

    return write


WRITERS: dict[str, Callable[[int], str]] = {
    "Headatlas explorer": explorer,
    "BertViz head_view": bertviz("head_view"),
    "BertViz model_view": bertviz("model_view"),
    "CircuitsVis attention_heads": circuitsvis("attention_heads"),
    "CircuitsVis attention_patterns": circuitsvis("attention_patterns"),
    "CircuitsVis attention_patterns, script inside": circuitsvis("attention_patterns", inside=True),
    "Headatlas explorer, 270 heads": explorer_whole,
}


def json_bytes(heads: Iterable[torch.Tensor]) -> int:
    """The length of `json.dumps` of the weights of several heads, held row by row.

    Example:
        >>> weights = torch.rand(2, 3, 3)
        >>> json_bytes(weights) == len(json.dumps(weights.tolist()))
        True
    """
    return _list_bytes(_list_bytes(_row_bytes(row) for row in head) for head in heads)


def _row_bytes(row: torch.Tensor) -> int:
    return len(json.dumps(row.tolist()))


def _list_bytes(sizes: Iterable[int]) -> int:
    known = list(sizes)
    return sum(known) + 2 * max(len(known), 1)  # two brackets, and ", " between


def main() -> None:
    """Write one page, or (`json`) say how long the weights are as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("viewer", choices=[*WRITERS, "json"])
    parser.add_argument("tokens", type=int)
    parser.add_argument("page", type=Path)
    parser.add_argument("--gib", type=float, default=8)
    options = parser.parse_args()
    import resource  # not on Windows, where the tests read this module too

    sys.path.append(str(PYTHON))
    most = int(options.gib * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    torch.set_num_threads(1)
    try:
        if options.viewer == "json":
            written = str(json_bytes(patterns(options.tokens)[0]))
        else:
            written = WRITERS[options.viewer](options.tokens)
        options.page.write_text(written, encoding="utf-8")
    except MemoryError:
        sys.exit(NO_MEMORY)
    except RuntimeError as error:  # torch's way to say so
        if "allocate memory" not in str(error):
            raise
        sys.exit(NO_MEMORY)


if __name__ == "__main__":
    main()
