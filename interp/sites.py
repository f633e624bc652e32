"""Where a model's attention heads are."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from transformers import PreTrainedModel

from .errors import InputError
from .heads import HeadId
from .switch import own_implementations


@dataclass(frozen=True)
class Site:
    """One attention module of a model.

    Attributes:
        module: its name in `model.named_modules()`.
        stack: `""`, or in an encoder-decoder model `"enc"`, `"dec"` or `"cross"`.
        layer: 0-based position among the attention modules of its stack, in call order. Layers
            without attention do not count.
        n_heads: query heads.
        n_kv_heads: key and value heads.
        d_head: width of a query or key.
        d_value: width of a value, of one head's z.
        causal: whether a query sees no later key.
        inline: whether its class computes attention itself, outside transformers' attention
            registry: scores, pattern, v and z are seen there, q and k are not.
        sink: whether a learned sink takes a share of every row: `"logit"` beside the scores, or the
            `"first"` or `"last"` column of an inline softmax, cut off before the values; `""` for
            none.
        call: how often its module ran before in the same forward pass, where layers share weights.
    """

    module: str
    stack: str
    layer: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_value: int
    causal: bool
    inline: bool = False
    sink: str = ""
    call: int = 0

    @property
    def prefix(self) -> str:
        """What its captured names start with: `""`, `"enc."`, `"dec."` or `"cross."`."""
        return f"{self.stack}." if self.stack else ""

    @property
    def label(self) -> str:
        """What messages call it: its module's name, or "the layer" where it is no part of another.

        Example:
            >>> Site("", "", 0, 2, 2, 4, 4, causal=True).label
            'the layer'
        """
        return self.module or "the layer"

    @property
    def heads(self) -> tuple[HeadId, ...]:
        """Its query heads in order."""
        return tuple(HeadId(self.stack, self.layer, head) for head in range(self.n_heads))

    def check_queries(self, what: str) -> None:
        """Refuse what would show or change its q and k, where they are not seen.

        Raises:
            InputError: its class computes attention itself.
        """
        if self.inline:
            raise InputError(
                f"{what} does not exist at {self.label}: its class computes attention outside "
                "transformers' attention registry, so that scores, pattern, v and z are seen "
                "there, but not q and k."
            )


@dataclass(frozen=True)
class _Survey:
    sites: tuple[Site, ...]
    drift: float
    fingerprint: int
    forwards: tuple[object, ...]


_SURVEYS: WeakKeyDictionary[PreTrainedModel, _Survey] = WeakKeyDictionary()
_LOCK = threading.RLock()


def attention_sites(model: nn.Module) -> tuple[Site, ...]:
    """The attention modules of `model`, in call order, after checking that hooking them is exact.

    Runs the model a few times on two sequences of at most 8 tokens (two images or sounds of noise,
    where it reads these), once per model: as it is, hooked, and with one head per module removed
    through z and through the pattern, which must agree. Where transformers' attention registry does
    not show all of its attention, it is looked for in the classes' own code, a softmax over scores
    and a product with values, and checked in the same way (`Site.inline`). The result is kept until
    the model's modules, its attention implementation, a forward of its attention, or a weight's
    shape, dtype or device change. Training mode, random state and gradients are left alone.

    Raises:
        InputError: no model, such as a name; a TransformerLens bridge that computes something else
            than its model; no attention; attention outside transformers' registry, in all layers or
            in some, that is no plain softmax over scores of tokens; layers that share weights and
            run in an order that changes; a weight that is not finite; a forward that breaks with
            its attention hooked; or hooked outputs that differ from the model's own.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=8, n_layer=1, n_head=2))
        >>> attention_sites(model)[0].module, attention_sites(model)[0].d_head
        ('transformer.h.0.attn', 4)
    """
    return _survey(model).sites


def hook_drift(model: nn.Module) -> float:
    """How far hooking moves the output: max |hooked − own| / max |own| over the probe's tokens.

    `own` is the model under its own attention implementation, in its present dtype.

    Raises:
        InputError: as `attention_sites`.
    """
    return _survey(model).drift


def _survey(model: nn.Module) -> _Survey:
    model = check_model(model)
    from .survey import examine  # which hooks the model, and so needs Site from here

    with _LOCK:
        fingerprint = _fingerprint(model)
        known = _SURVEYS.get(model)
        if (
            known is None
            or known.fingerprint != fingerprint
            or known.forwards != _forwards(model, known.sites)
        ):
            sites, drift = examine(model)
            known = _Survey(sites, drift, fingerprint, _forwards(model, sites))
            _SURVEYS[model] = known
        return known


def _forwards(model: nn.Module, sites: tuple[Site, ...]) -> tuple[object, ...]:
    """What was put in place of the forwards of attention modules, blocks of ours aside."""
    found = []
    for site in sites:
        forward = vars(model.get_submodule(site.module)).get("forward")
        while hasattr(forward, "restore"):  # `inline.in_view`
            forward = getattr(forward, "before", None)
        found.append(forward)
    return tuple(found)


def check_model(model: Any) -> PreTrainedModel:
    """The model itself, if it is one of transformers; of a TransformerLens bridge the one inside.

    Raises:
        InputError: no module, a module of another kind, or a bridge that computes something else
            than the model inside (see `bridge.plain_model`).
    """
    if not isinstance(model, nn.Module):
        raise InputError(_not_a_model(model))
    model = unbridged(model)
    if isinstance(model, PreTrainedModel):
        return model
    from .layers.attention import HookedAttention  # which needs Site from here

    if any(isinstance(part, HookedAttention) for part in model.modules()):
        itself = isinstance(model, HookedAttention)
        given = "a HookedAttention" if itself else f"a {type(model).__name__} of HookedAttention"
        raise InputError(
            f"expected a transformers PreTrainedModel; got {given}. With layers of our own run and "
            "intervene work (zero, gate, add, and patch or freeze from a cache), diagnose_scales, "
            "the layer's trace(x), and attach_layers(model, observers=…, edits=…)."
        )
    raise InputError(
        f"expected a transformers PreTrainedModel; got {type(model).__name__}. "
        "Pass the model inside the wrapper."
    )


def _not_a_model(value: object) -> str:
    name = value if isinstance(value, str) else "tiny"
    given = repr(value) if isinstance(value, str) else type(value).__name__
    return (
        f"expected a transformers model; got {given}. Load one first: "
        f"model, tokenizer = headatlas.load({name!r})."
    )


def _fingerprint(model: nn.Module) -> int:
    """What a survey depends on: the tree of modules, the kind of each weight, the implementation.

    The tree is walked by hand: `named_modules` and `parameters` cost a small model's short forward
    several per cent.
    """
    found: list[Any] = [own_implementations(model)]
    queue, seen = [model], {id(model)}
    while queue:
        module = queue.pop()
        for name, weight in module._parameters.items():
            kind = None if weight is None else (weight.shape, weight.dtype, weight.device)
            found.append((name, kind))
        for name, child in module._modules.items():
            found.append((name, id(child), type(child)))
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                queue.append(child)
    return hash(tuple(found))


def unbridged(model: Any) -> Any:
    """The transformers model inside a TransformerLens bridge; whatever else arrives, as it is.

    Raises:
        InputError: a bridge that stands for no transformers model (see `bridge.plain_model`).
    """
    if not isinstance(model, nn.Module) or not holds_bridge(model):
        return model
    if not is_of_bridge(model) and not isinstance(model, PreTrainedModel):
        return model  # a module around a bridge
    from .bridge import plain_model  # which runs the model, and so needs what is here

    return plain_model(model)


def holds_bridge(model: nn.Module) -> bool:
    """Whether it is TransformerLens's, or has modules that are, as a model given to a bridge has.

    Nothing is imported for it: plain models go without TransformerLens.
    """
    return any(map(_is_of_bridge, {type(module) for module in model.modules()}))


def is_of_bridge(module: nn.Module) -> bool:
    """Whether it is of a class that TransformerLens wrote.

    Example:
        >>> is_of_bridge(nn.Linear(2, 2))
        False
    """
    return _is_of_bridge(type(module))


def _is_of_bridge(kind: type) -> bool:
    return any(base.__module__.split(".")[0] == "transformer_lens" for base in kind.__mro__)
