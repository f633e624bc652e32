"""Find a model's attention modules by running it on a few tokens, and check that hooks are exact.

Nothing is read from names or configs that the forward pass can tell: which modules attend, in what
order, with how many heads, to which keys, and whether hooking them changes the output.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .closeness import apart, half_digits
from .errors import InputError
from .forward import undisturbed
from .frames import FULL_ROWS, WITHIN_TOKENS
from .inline_survey import attending
from .linear_layers import linear_layers
from .site_table import SiteTable
from .sites import Site
from .survey_calls import attached, list_calls, list_inline, number, run_cut
from .survey_probe import PROBE_BATCH, is_encoder_decoder, output_of, probe_inputs, run_alone
from .switch import is_copy, is_switched, own_implementations
from .watch import watch_modules

# Their time-mixing modules are named attention.
_NO_ATTENTION = frozenset({"rwkv"})
_OF_TRANSFORMERS = (
    "eager",
    "sdpa",
    "flash_attention",
    "flex_attention",
    "paged|",
    "kernels-community/",
)


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
    _check_implementation(model)
    _check_weights(model)
    inputs = probe_inputs(model)
    exact = torch.autocast(model.device.type, enabled=False)
    with undisturbed(model), torch.no_grad(), exact:
        own = run_alone(model, inputs)
        try:
            return _checked(model, inputs, own, list_calls)
        except InputError as refused:
            _check_again(model, inputs, own)
            # the registry does not have it all: what the classes' own code shows may be all
            try:
                return _checked(model, inputs, own, list_inline)
            except InputError as error:
                found = (
                    _with_full_rows(model, inputs) if isinstance(refused, _InexactError) else None
                )
                if found is None:
                    raise _both(refused, error, _advice(model, error)) from error
                return found


def _check_again(model: PreTrainedModel, inputs: dict[str, Any], own: Tensor) -> None:
    """Refuse a model that gives something else each time it runs, as those with random masks."""
    again = output_of(model, inputs)
    if again.shape != own.shape or not apart(again, own) <= half_digits(own.dtype):
        raise InputError(
            f"{type(model).__name__} gives another output each time it runs on the same inputs in "
            "eval mode, so what hooks change cannot be told from chance. It is not supported."
        )


class _InexactError(InputError):
    """Hooked outputs differ."""


def _with_full_rows(
    model: PreTrainedModel, inputs: dict[str, Any]
) -> tuple[tuple[Site, ...], float] | None:
    """Sites and drift of a model that is exact as long as every query sees a key.

    A padded query sees none, and what it gives instead is a choice of each implementation. In
    some hybrids it goes on to tokens, through layers that take no mask. Where hooks are exact with
    padding on the right, such queries are refused from then on (`attach`).
    """
    if "attention_mask" not in inputs or is_encoder_decoder(model):
        return None
    inputs = {**inputs, "attention_mask": inputs["attention_mask"].flip(1)}
    try:
        found = _checked(model, inputs, output_of(model, inputs), list_calls)
    except InputError:
        return None
    FULL_ROWS.add(model)
    return found


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
    order, ran = list[str](), set[str]()  # all that look like attention, and those of tokens
    likely = {model.get_submodule(name): name for name in _likely_attention(model)}

    def note(module: nn.Module, _: Any, output: Any) -> None:
        order.append(likely[module])
        if not _is_pooled(output):
            ran.add(likely[module])

    with _said_plainly(model), watch_modules(likely, note):
        calls, seen = list_calls(model, inputs)
    called = list(dict.fromkeys(site.module for site in calls))
    pooled = [name for name in dict.fromkeys(order) if name not in ran]
    if pooled and _reach_tokens(model, inputs, pooled, own):
        ran.update(pooled)
        pooled = []
    missed = [n for n in likely.values() if n in ran and not _covered(n, called)]
    linear = linear_layers(model, missed, lambda: output_of(model, inputs))
    within = {name for name, module in model.named_modules() if module in WITHIN_TOKENS}
    known = {*linear, *pooled, *within}
    _check_calls(model, called, [n for n in likely.values() if n in ran and n not in known])
    _check_code(model, inputs, Counter(site.module for site in calls), known)
    sites = number(calls)
    _check_turns(model, inputs, sites)
    drift = _distance(seen, own)
    _check_exact(model, seen, own, "hooked outputs differ from its own by a relative")
    with _said_plainly(model):
        by_z, by_pattern = (run_cut(model, inputs, sites, to) for to in ("z", "pattern"))
    what = "removing a head through z or through its pattern differs by"
    _check_exact(model, by_z, by_pattern, what)
    return sites, drift


def _both(refused: InputError, inline: InputError, advice: str) -> InputError:
    """Why neither way shows a model's heads."""
    if str(inline) in str(refused):
        return refused
    return InputError(f"{refused} Nor does its own code show them: {inline}{advice}")


def _advice(model: PreTrainedModel, inline: InputError) -> str:
    """What may help where a class's own code was seen, but gives something else than the model."""
    if not isinstance(inline, _InexactError) or set(own_implementations(model)) <= {"eager", None}:
        return ""
    return (
        " Its own code was run eagerly; load the model with attn_implementation='eager', since "
        "the implementations of a class may differ."
    )


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


def _check_implementation(model: PreTrainedModel) -> None:
    """Refuse an attention function of somebody's own, which may do more than a few tokens show."""
    for name in own_implementations(model):
        if name is not None and not name.startswith(_OF_TRANSFORMERS):
            raise InputError(
                f"{type(model).__name__} attends by {name!r}, which is none of transformers' own "
                "implementations, and hooks would take its place. Call "
                "set_attn_implementation('sdpa') or 'eager' first."
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


def _check_turns(model: PreTrainedModel, inputs: dict[str, Any], sites: tuple[Site, ...]) -> None:
    """Refuse modules that run several times and cannot be told apart by counting.

    Raises:
        InputError: their runs do not all lie in one of the base model, or come in another order.
    """
    if not any(site.call for site in sites):
        return
    seen, begun = list[Site](), list[int]()
    base = watch_modules([model.base_model], lambda *_: None, begin=lambda _: begun.append(0))
    with (
        _said_plainly(model),
        base,
        attached(model, SiteTable(model, sites), (lambda call: seen.append(call.site),)),
    ):
        output_of(model, inputs)
    if len(begun) != 1 or seen != [*sites]:
        raise InputError(
            f"{type(model).__name__} calls {_listing([s.module for s in sites if s.call])} more "
            "than once in a forward pass, and in an order that does not tell which call is which, "
            "so a head there has no address. The model is not supported."
        )


def _check_calls(model: PreTrainedModel, called: list[str], ran: list[str]) -> None:
    """Refuse a model whose attention was not all seen; `ran` is what looks like it."""
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


def _is_pooled(output: Any) -> bool:
    """Whether a module gives one vector for each input: what attends there are no tokens."""
    while isinstance(output, tuple | list) and output:
        output = output[0]
    return isinstance(output, Tensor) and output.numel() == PROBE_BATCH * output.shape[-1]


def _reach_tokens(
    model: PreTrainedModel, inputs: dict[str, Any], names: list[str], own: Tensor
) -> bool:
    """Whether a token's output changes with what modules give that pool the tokens into one vector.

    One that does not is no layer of the tokens, such as the head behind them (SigLIP).
    """

    def change(module: nn.Module, args: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            return 1.5 * output + 1
        return type(output)([1.5 * output[0] + 1, *output[1:]])

    if own.numel() == PROBE_BATCH * own.shape[-1]:  # no token is left in it either
        own = _tokens_of(model, inputs)
    handles = [model.get_submodule(name).register_forward_hook(change) for name in names]
    try:
        changed = _tokens_of(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    own = own if own.shape == changed.shape else _tokens_of(model, inputs)
    return not torch.equal(own, changed)


def _tokens_of(model: PreTrainedModel, inputs: dict[str, Any]) -> Tensor:
    """The hidden states of the base model's tokens."""
    takes = inspect.signature(model.base_model.forward).parameters
    return model.base_model(**{key: value for key, value in inputs.items() if key in takes})[0]


def _check_code(
    model: PreTrainedModel, inputs: dict[str, Any], calls: Counter[str], known: set[str]
) -> None:
    """Refuse attention in the classes' own code that is among no calls, whatever its name.

    Args:
        model: the model.
        inputs: of the probe.
        calls: how often each attention module was called.
        known: modules whose attention is none of tokens.
    """
    for name, count in attending(model, lambda: output_of(model, inputs), PROBE_BATCH).items():
        own = [module for module in calls if f"{name}.".startswith(f"{module}.")]
        if (
            count > sum(calls[module] for module in own)
            if own
            else not _covered(name, [*calls, *known])
        ):
            raise InputError(
                f"{type(model).__name__} attends in {name or 'its own forward'} beside the calls "
                "that hooks see: a softmax over scores there, or a fused attention, goes into a "
                "product with values. The model is not supported."
            )


def _covered(name: str, called: list[str]) -> bool:
    return any(f"{c}.".startswith(f"{name}.") or f"{name}.".startswith(f"{c}.") for c in called)


def _listing(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _check_exact(model: nn.Module, a: Tensor, b: Tensor, what: str) -> None:
    # rounding of a narrow dtype can move one entry far; in float32 any entry that moves is a fault
    narrow = torch.finfo(b.dtype).bits < 32
    distance, limit = apart(a, b) if narrow else _distance(a, b), half_digits(b.dtype)
    if not distance <= limit:
        raise _InexactError(
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


def _distance(a: Tensor, b: Tensor) -> float:
    scale = max(b.abs().max().item(), torch.finfo(b.dtype).tiny)
    return (a - b).abs().max().item() / scale
