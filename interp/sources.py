"""Find where each attention module's queries, keys and values come from, by value, not by name.

At position 0 rotary positions are the identity, so a query there is made of columns that some
Linear, Conv1D or norm has put out just before. Which ones is read off a few short sequences.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from .attach import attach
from .forward import embedding_weight, undisturbed
from .frames import unobserved
from .grid import token_cells
from .inputs import Inputs
from .norms import is_norm
from .signals import Signal, probe_signal, reads_signal
from .sites import Site, attention_sites
from .source_parts import Input, Part, SiteSources, Source
from .source_trace import Trace
from .survey_probe import is_encoder_decoder
from .watch import watch_calls, watch_modules

__all__ = ["Input", "Part", "SiteSources", "Source", "sources"]


def sources(model: PreTrainedModel) -> Mapping[Site, SiteSources]:
    """Where q, k and v of each attention module come from.

    Runs the model once on 16 sequences of 3 tokens (32 below 32 bits; images or sounds of noise
    where it reads these) and compares the attention's
    inputs with the outputs of the Linear, Conv1D and norm modules called since the attention
    before: bit for bit, then up to a constant factor (OPT scales its queries, YaRN its rotation).
    Columns behind a norm are followed through it. What matches nothing, or several columns whose
    weights differ, is reported in `missing`. Later calls run the model again and keep what still
    holds: an adapter trained or a hook added since then is noticed. The output projection is the
    module that takes z and whose z W + b leaves the attention module, or what a wrapper returns.

    Args:
        model: a transformers model.

    Returns:
        Site -> sources, in call order.

    Raises:
        InputError: the model cannot be hooked (see `attention_sites`).

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=8, n_layer=1, n_head=2))
        >>> (found,) = sources(model).values()
        >>> found.k.parts[0].input.projection, found.k.parts[0].columns.tolist()
        ('transformer.h.0.attn.c_attn', [8, 9, 10, 11, 12, 13, 14, 15])
    """
    sites = attention_sites(model)
    with _LOCK:
        before, known = _KNOWN.get(model, ((), {}))
    known = known if before is sites else {}
    names = {id(module): name for name, module in model.named_modules()}
    inputs, place = (_noise if reads_signal(model) else _probe)(model, sites)
    trace = Trace(names, known, place)
    watched = [m for m in model.modules() if isinstance(m, nn.Linear | Conv1D) or is_norm(m)]
    frames = [m for m in model.modules() if next(m.children(), None) is not None]
    with unobserved(model), attach(model, observers=[trace.attend]):
        with watch_calls(watched, trace.see), watch_modules(frames, trace.leave):
            inputs.run(model)
        trace.close()
    found = {site: trace.found[site] for site in sites}
    if known and all(found[site] is known[site] for site in sites):
        return known
    with _LOCK:
        _KNOWN[model] = (sites, found)
    return found


_KNOWN: WeakKeyDictionary[nn.Module, tuple[tuple[Site, ...], Mapping[Site, SiteSources]]] = (
    WeakKeyDictionary()
)
_LOCK = threading.Lock()


def _probe(model: PreTrainedModel, sites: Sequence[Site]) -> tuple[Inputs, int]:
    """Sequences whose first tokens all differ, of lengths that no count of heads equals."""
    table = embedding_weight(model)
    rows = 16 if torch.finfo(table.dtype).bits >= 32 else 32
    padding = getattr(model.config.get_text_config(), "pad_token_id", None)
    tokens = [i for i in range(table.shape[0]) if i != padding]
    first = [tokens[i * len(tokens) // rows] for i in range(rows)]
    taken = {1, *(site.n_heads for site in sites), *(site.n_kv_heads for site in sites)}
    lengths = [n for n in range(3, 8 + len(taken)) if n not in taken]

    def ids(length: int) -> Tensor:
        steps = torch.arange(length, device=table.device) * 7
        places = torch.tensor(first, device=table.device)[:, None] + steps
        return torch.where(
            steps == 0, places, torch.tensor(tokens).to(places)[places % len(tokens)]
        )

    return _unpadded(ids(lengths[0]), ids(lengths[1]) if is_encoder_decoder(model) else None), 0


def _unpadded(ids: Tensor, decoder: Tensor | None, signal: Signal | None = None) -> Inputs:
    return Inputs(ids, torch.ones_like(ids, dtype=torch.bool), decoder, None, signal)


def _noise(model: PreTrainedModel, sites: Sequence[Site]) -> tuple[Inputs, int]:
    """Images or sounds of noise, and a token that differs in all of them: a CLS would not."""
    rows = 16 if torch.finfo(model.dtype).bits >= 32 else 32
    decoder = None
    if is_encoder_decoder(model):
        vocab = embedding_weight(model)
        decoder = torch.arange(2 * rows, device=vocab.device).reshape(rows, 2) % vocab.shape[0]
    more = {} if decoder is None else {"decoder_input_ids": decoder}
    with undisturbed(model), torch.no_grad():
        signal = probe_signal(model, rows, more)
    cells = token_cells(model, signal)
    inside = (cells >= 0).all(1)
    ids = torch.zeros(rows, len(cells), dtype=torch.int64, device=model.device)
    return _unpadded(ids, decoder, signal), int(inside.argmax())
