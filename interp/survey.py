"""Find a model's attention modules by running it on a few tokens, and check that hooks are exact.

Nothing is read from names or configs that the forward pass can tell: which modules attend, in what
order, with how many heads, to which keys, and whether hooking them changes the output.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .attach import AttentionCall, Edit, hooked
from .closeness import apart, half_digits
from .errors import InputError
from .forward import embedding_weight, undisturbed
from .frames import Frame
from .inline_survey import find_inline
from .pattern import masked_scores
from .sites import Site
from .switch import is_copy, is_switched
from .watch import watch_modules

PROBE_TOKENS = 8
DECODER_TOKENS = 5  # fewer, so that cross-attention shows by its shape

# Their time-mixing modules are named attention.
_NO_ATTENTION = frozenset({"rwkv"})


def examine(model: PreTrainedModel) -> tuple[tuple[Site, ...], float]:
    """The model's sites in call order and the drift of hooked outputs; see `attention_sites`."""
    if is_switched(model):
        raise InputError(
            f"{type(model).__name__} was first seen while attached through another model that "
            "shares its modules. Call attention_sites on it before, outside the block."
        )
    if is_copy(model):
        raise InputError(
            f"{type(model).__name__} was copied inside an attach block, and the copy still asks "
            "for hooks. Copy it outside, or call set_attn_implementation('sdpa') on the copy first."
        )
    _refuse_own_layers(model)
    _check_weights(model)
    inputs = probe_inputs(model)
    exact = torch.autocast(embedding_weight(model).device.type, enabled=False)
    with undisturbed(model), torch.no_grad(), exact:
        own = _run_alone(model, inputs)
        try:
            return _checked(model, inputs, own, _list_calls)
        except InputError as refused:
            # the registry does not have it all: what the classes' own code shows may be all
            try:
                return _checked(model, inputs, own, _list_inline)
            except InputError as error:
                raise _both(refused, error) from error


def _checked(
    model: PreTrainedModel,
    inputs: dict[str, Any],
    own: Tensor,
    list_calls: Callable[..., tuple[list[Site], Tensor]],
) -> tuple[tuple[Site, ...], float]:
    """Sites and drift in one of the two ways to hook a model.

    Raises:
        InputError: it does not show all of the model's attention exactly.
    """
    ran = set[str]()
    likely = {model.get_submodule(name): name for name in _likely_attention(model)}
    with _said_plainly(model), watch_modules(likely, lambda module, *_: ran.add(likely[module])):
        calls, seen = list_calls(model, inputs)
    _check_calls(model, [site.module for site in calls], [n for n in likely.values() if n in ran])
    sites = _number(calls)
    drift = _distance(seen, own)
    _check_exact(model, seen, own, "hooked outputs differ from its own by a relative")
    with _said_plainly(model):
        by_z, by_pattern = (run_cut(model, inputs, sites, to) for to in ("z", "pattern"))
    what = "removing a head through z or through its pattern differs by"
    _check_exact(model, by_z, by_pattern, what)
    return sites, drift


def _both(refused: InputError, inline: InputError) -> InputError:
    """Why neither way shows a model's heads."""
    if str(inline) in str(refused):
        return refused
    return InputError(f"{refused} Nor does its own code show them: {inline}")


def _refuse_own_layers(model: nn.Module) -> None:
    """Refuse a model of transformers with layers of ours in it, which go past the registry."""
    from .layers.attention import HookedAttention  # here: transformers models do without

    own = [name for name, part in model.named_modules() if isinstance(part, HookedAttention)]
    if own:
        raise InputError(
            f"{type(model).__name__} holds HookedAttention ({_listing(own)}), which hooks on a "
            "transformers model miss, so its other layers would be numbered without them. Use "
            "attach_layers(model, observers=…, edits=…), which sees the HookedAttention alone."
        )


@contextmanager
def _said_plainly(model: nn.Module) -> Iterator[None]:
    """One plain error where a forward that ran by itself breaks with our attention in place."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise InputError(
            f"{type(model).__name__} cannot be hooked: it runs alone, but not with its attention "
            f"and masks replaced ({reason}). The model is not supported."
        ) from error


def _list_calls(model: PreTrainedModel, inputs: dict[str, Any]) -> tuple[list[Site], Tensor]:
    """Every attention call of a forward pass as a site yet without layer, and the output."""
    names = {id(module): name for name, module in model.named_modules()}
    calls: list[Site] = []

    def site_of(module: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Site:
        name = names.get(id(module))
        if name is None:
            raise InputError(
                f"{type(module).__name__} attends but is not among the model's modules."
            )
        stack = _stack(model, name, q.shape[2], k.shape[2])
        return Site(name, stack, -1, q.shape[1], k.shape[1], q.shape[3], v.shape[3], False)

    def record(call: AttentionCall) -> None:
        calls.append(replace(call.site, causal=is_causal(call)))

    with hooked(model, Frame(site_of, (record,), (), model)):
        seen = _output(model, inputs)
    return calls, seen


def _list_inline(model: PreTrainedModel, inputs: dict[str, Any]) -> tuple[list[Site], Tensor]:
    """The same of a model whose classes compute attention in their own code."""
    found = find_inline(model, lambda: _output(model, inputs), len(inputs["input_ids"]))
    table, calls = dict[int, Site](), list[Site]()
    for part in found:
        _, heads, n_query, n_key = part.pattern
        stack, shape = _stack(model, part.name, n_query, n_key), (part.d_head, part.v[3])
        site = Site(part.name, stack, -1, heads, part.v[1], *shape, causal=False, inline=True)
        table[id(model.get_submodule(part.name))] = site

    def record(call: AttentionCall) -> None:
        calls.append(replace(call.site, causal=is_causal(call)))

    frame = Frame(lambda module: table.get(id(module)), (record,), (), model)
    with hooked(model, frame, [model.get_submodule(part.name) for part in found]):
        seen = _output(model, inputs)
    return calls, seen


def run_cut(
    model: PreTrainedModel, inputs: dict[str, Any], sites: tuple[Site, ...], target: str
) -> Tensor:
    """The output with one head per module zeroed, another one in each layer."""
    table = {id(model.get_submodule(site.module)): site for site in sites}

    def change(call: AttentionCall, value: Tensor) -> Tensor:
        keep = torch.ones(value.shape[1], dtype=value.dtype, device=value.device)
        keep[call.site.layer % value.shape[1]] = 0
        return value * keep[:, None, None]

    def site_of(module: nn.Module, *_: Tensor) -> Site | None:
        return table.get(id(module))

    inline = [model.get_submodule(site.module) for site in sites if site.inline]
    with hooked(model, Frame(site_of, (), (Edit(target, change),), model), inline):
        return _output(model, inputs)


def _stack(model: PreTrainedModel, name: str, n_query: int, n_key: int) -> str:
    """Which stack a call is of, by how many tokens it attends from and to.

    Raises:
        InputError: its rows and columns are not the tokens (pooled ones, prompts put before them).
    """
    encoder_decoder = is_encoder_decoder(model)
    stacks = {(PROBE_TOKENS, PROBE_TOKENS): "enc" if encoder_decoder else ""}
    if encoder_decoder:
        stacks |= {(DECODER_TOKENS, DECODER_TOKENS): "dec", (DECODER_TOKENS, PROBE_TOKENS): "cross"}
    if (n_query, n_key) not in stacks:
        raise InputError(
            f"{name} attends from {n_query} places to {n_key}, of {PROBE_TOKENS} tokens, so its "
            "rows and columns are not tokens. The model is not supported."
        )
    return stacks[n_query, n_key]


def is_causal(call: AttentionCall) -> bool:
    """Whether no query of the first sequence sees a later key."""
    if call.q.shape[2] != call.k.shape[2]:
        return False
    scores = masked_scores(call.q, call.k, call.mask, call.scores)[0]
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return bool((scores[:, later] == float("-inf")).all())


def _number(calls: list[Site]) -> tuple[Site, ...]:
    count: Counter[str] = Counter()
    sites = []
    for site in calls:
        sites.append(replace(site, layer=count[site.stack]))
        count[site.stack] += 1
    return tuple(sites)


def _check_calls(model: PreTrainedModel, called: list[str], ran: list[str]) -> None:
    """Refuse a model whose attention was not all seen, each once; `ran` is what looks like it."""
    kind = type(model).__name__
    likely = [] if model.config.model_type in _NO_ATTENTION else ran
    if not called:
        if likely:
            module = type(model.get_submodule(likely[0])).__name__
            raise InputError(
                f"{kind} computes attention in {module} without transformers' attention registry, "
                "so that hooks there miss it."
            )
        raise InputError(f"{kind} has no attention heads.")
    twice = [name for name, count in Counter(called).items() if count > 1]
    if twice:
        raise InputError(
            f"{kind} calls {_listing(twice)} more than once in a forward pass, so a head there has "
            "no single address. Models with shared or repeated attention are not supported."
        )
    missed = [name for name in likely if not _covered(name, called)]
    if missed:
        raise InputError(
            f"{kind} passes only some of its attention through transformers' registry; not seen: "
            f"{_listing(missed)}. The model is not supported."
        )


def _likely_attention(model: nn.Module) -> Iterator[str]:
    """Modules that look like attention: so named, and holding a weight matrix of their own."""
    for name, module in model.named_modules():
        label = type(module).__name__.lower()
        if ("attention" in label or "attn" in label) and any(
            getattr(getattr(child, "weight", None), "ndim", 0) == 2 for child in module.children()
        ):
            yield name


def _covered(name: str, called: list[str]) -> bool:
    return any(f"{c}.".startswith(f"{name}.") or f"{name}.".startswith(f"{c}.") for c in called)


def _listing(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _check_exact(model: nn.Module, a: Tensor, b: Tensor, what: str) -> None:
    # rounding of a narrow dtype can move one entry far; in float32 any entry that moves is a fault
    narrow = torch.finfo(b.dtype).bits < 32
    distance, limit = apart(a, b) if narrow else _distance(a, b), half_digits(b.dtype)
    if not distance <= limit:
        raise InputError(
            f"{type(model).__name__}: {what} {distance:.1e}, over the limit {limit:.1e} of "
            f"{b.dtype}. The model's attention does something hooks would miss; it is not "
            "supported."
        )


def _check_weights(model: nn.Module) -> None:
    for name, weight in model.named_parameters():
        if weight.device.type == "meta":
            raise InputError(
                f"the weight {name} is not loaded (meta device). Load the model first."
            )
        if weight.numel() == 0 or weight.dtype not in (
            torch.float16, torch.bfloat16, torch.float32, torch.float64,
        ):  # fmt: skip
            continue
        low, high = torch.aminmax(weight.detach())
        if not bool(torch.isfinite(low) & torch.isfinite(high)):
            raise InputError(
                f"the weight {name} holds a value that is not finite. Reload or repair the model."
            )


def probe_inputs(model: PreTrainedModel) -> dict[str, Any]:
    """Two short sequences, the second with left padding where the model takes a mask."""
    if model.main_input_name != "input_ids":
        raise InputError(
            f"{type(model).__name__} reads {model.main_input_name}, not text. "
            "Pass a model that reads input_ids."
        )
    takes = inspect.signature(model.forward).parameters
    vocab = embedding_weight(model).shape[0]
    device = embedding_weight(model).device
    ids = (vocab // 4 + 3 * torch.arange(2 * PROBE_TOKENS, device=device)) % vocab
    inputs: dict[str, Any] = {"input_ids": ids.reshape(2, PROBE_TOKENS)}
    if "attention_mask" in takes:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        inputs["attention_mask"][1, :2] = 0
    if is_encoder_decoder(model):
        inputs["decoder_input_ids"] = inputs["input_ids"].flip(1)[:, :DECODER_TOKENS]
    if "use_cache" in takes or any(p.kind is p.VAR_KEYWORD for p in takes.values()):
        inputs["use_cache"] = False
    return inputs


def _output(model: PreTrainedModel, inputs: dict[str, Any]) -> Tensor:
    """The model's logits, or its last hidden state, where tokens stand."""
    output = model(**inputs)
    values = getattr(output, "logits", None)
    values = output[0] if values is None else values
    mask = inputs.get("attention_mask")
    if mask is not None and values.dim() >= 3 and values.shape[:2] == mask.shape:
        values = values[mask.bool()]
    return values


def _run_alone(model: PreTrainedModel, inputs: dict[str, Any]) -> Tensor:
    """The output before any hook; drops padding from `inputs` where the model cannot take it."""
    try:
        own = _output(model, inputs)
    except Exception as error:
        raise InputError(
            f"{type(model).__name__} could not run on {PROBE_TOKENS} token ids, before any hook: "
            f"{type(error).__name__}: {error}"
        ) from error
    if "attention_mask" in inputs and not bool(torch.isfinite(own).all()):
        # transformers' own eager attention is NaN at padded queries in float64
        del inputs["attention_mask"]
        return _run_alone(model, inputs)
    if not bool(torch.isfinite(own).all()):
        raise InputError(
            f"{type(model).__name__} gives outputs that are not finite, before any hook. "
            "Load it in a wider dtype, such as float32."
        )
    return own


def _distance(a: Tensor, b: Tensor) -> float:
    scale = max(b.abs().max().item(), torch.finfo(b.dtype).tiny)
    return (a - b).abs().max().item() / scale


def is_encoder_decoder(model: PreTrainedModel) -> bool:
    """Whether `model` runs an encoder and a decoder, as opposed to either of them alone."""
    takes = inspect.signature(model.forward).parameters
    return bool(model.config.is_encoder_decoder) and "decoder_input_ids" in takes
