"""Attention that a model's class computes itself, seen at its softmax and its product with v.

Families older than transformers' attention registry write attention out in their own forward. There
a block's observers and edits act inside that code: what the softmax receives are the scores S, what
it returns is the pattern A, and the product that takes A and the values next gives z. All else
stays the model's own, so that its outputs do not change. Queries and keys are not seen: what such
classes add to q·k (ALiBi, relative positions, disentangled terms) is in S.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from .autocast import autocast_off
from .errors import InputError
from .frames import Views, edits_of, show, views_of
from .inline_call import InlineCall

_SOFTMAX = frozenset({functional.softmax, torch.softmax, Tensor.softmax})
_MATMUL = frozenset({torch.matmul, torch.bmm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__})
_ADDED = frozenset({torch.baddbmm, Tensor.baddbmm})  # a product onto a bias (ALiBi)


def is_softmax(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call is a softmax over the last of three axes or more, as over scores.

    Example:
        >>> is_softmax(torch.softmax, (torch.zeros(1, 2, 3, 3), -1), {})
        True
    """
    if func not in _SOFTMAX:
        return False
    s = args[0] if args else kwargs.get("input")
    axis = args[1] if len(args) > 1 else kwargs.get("dim")
    return isinstance(s, Tensor) and s.ndim >= 3 and axis in (-1, s.ndim - 1)


def cut_column(func: Any, args: Sequence[Any], weights: Tensor | None) -> str:
    """Which column of a softmax's result a call cuts off: "first", "last", or "" for neither.

    A softmax over the keys and a sink logit has one column that is no key's.

    Example:
        >>> weights = torch.zeros(1, 2, 3, 4)
        >>> cut_column(Tensor.__getitem__, (weights, (..., slice(None, -1))), weights)
        'last'
    """
    if weights is None or func is not Tensor.__getitem__ or args[0] is not weights:
        return ""
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    whole = (..., *[slice(None)] * (weights.ndim - 1))
    if index[:-1] not in (whole[:1], whole[1:]):
        return ""
    n_key = weights.shape[-1]
    ends = {"last": (slice(None, -1), slice(None, n_key - 1)), "first": (slice(1, None),)}
    return next((name for name, slices in ends.items() if index[-1] in slices), "")


@dataclass(frozen=True)
class Axes:
    """How [batch, head, row, width] lies in a tensor of the model.

    Attributes:
        order: the model's axes in that order; None: batch and heads first, or laid flat into one.
    """

    order: tuple[int, ...] | None = None

    def read(self, tensor: Tensor, batch: int) -> Tensor:
        """The tensor as [batch, head, row, width]."""
        if self.order is not None:
            return tensor.permute(self.order)
        return tensor.reshape(batch, -1, *tensor.shape[-2:])

    def write(self, tensor: Tensor, like: Tensor) -> Tensor:
        """A tensor [batch, head, row, width] as the model has it."""
        if self.order is not None:
            return tensor.permute([self.order.index(axis) for axis in range(4)])
        return tensor.flatten(0, 1) if like.ndim == 3 else tensor


@dataclass(frozen=True)
class Product:
    """A product of a pattern and values: where the values are, and how they and z lie."""

    place: int
    v: Axes
    z: Axes


def read_product(func: Any, args: Sequence[Any], pattern: Tensor) -> Product | None:
    """The product with the values, if a call of `func` takes `pattern` or its equal in shape.

    Example:
        >>> a, v = torch.ones(1, 2, 3, 3), torch.ones(1, 2, 3, 5)
        >>> read_product(torch.matmul, (a, v), a).place
        1
    """
    if func in _MATMUL and len(args) == 2 and _same(args[0], pattern):
        fits = isinstance(args[1], Tensor) and args[1].ndim == args[0].ndim
        return Product(1, Axes(), Axes()) if fits else None
    if func is torch.einsum and len(args) == 3 and isinstance(args[0], str):
        return _read_einsum(args[0].replace(" ", ""), args[1:], pattern)
    return None


def _read_einsum(equation: str, operands: Sequence[Any], pattern: Tensor) -> Product | None:
    given, _, out = equation.partition("->")
    names = given.split(",")
    if len(names) != 2 or not _same(operands[0], pattern) or operands[0].ndim != 4:
        return None
    batch, head, query, key = names[0]
    width = set(names[1]) - {batch, head, key}
    if len(names[1]) != 4 or len(width) != 1 or {*out} != {batch, head, query, *width}:
        return None
    last = width.pop()
    v = tuple(names[1].index(axis) for axis in (batch, head, key, last))
    return Product(2, Axes(v), Axes(tuple(out.index(axis) for axis in (batch, head, query, last))))


def summed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Over how many numbers a matrix product runs; 0 where a call is none.

    Example:
        >>> summed(torch.matmul, (torch.ones(2, 3, 7), torch.ones(2, 7, 4)), {})
        7
    """
    if func in _MATMUL and args:
        return args[0].shape[-1]
    if func in _ADDED:
        return (args[1] if len(args) > 1 else kwargs["batch1"]).shape[-1]
    if func is torch.einsum and len(args) == 3 and isinstance(args[0], str):
        given, _, out = args[0].replace(" ", "").partition("->")
        first, _, second = given.partition(",")
        inner = (set(first) & set(second)) - set(out)
        return args[1].shape[first.index(inner.pop())] if len(inner) == 1 else 0
    return 0


def _same(tensor: Any, pattern: Tensor) -> bool:
    """Whether a product's operand can be the pattern, after dropout and a cast."""
    return (
        isinstance(tensor, Tensor)
        and tensor.ndim in (3, 4)
        and tensor.shape[-2:] == pattern.shape[-2:]
        and tensor.numel() == pattern.numel()
    )


def _equal(weights: Tensor, pattern: Tensor | None, *, dropout: bool) -> bool:
    """Whether the operand of a product is the pattern itself, but for a cast and for dropout."""
    if pattern is None:
        return False
    found, own = weights.detach().reshape(pattern.shape), pattern.detach().to(weights.dtype)
    if not dropout or torch.equal(found, own):
        return torch.equal(found, own)
    kept = found != 0  # what dropout leaves is multiplied by one number over 1
    if not bool(kept.any()) or bool(kept.all()):
        return not bool(kept.any())
    factor = found[kept].double() / own[kept].double()
    usual = factor.median()
    return bool(
        (usual > 1) & ((factor - usual).abs() <= 16 * torch.finfo(found.dtype).eps * usual).all()
    )


def _version(tensor: Tensor) -> int:
    """How often it was written to, which tensors made in inference mode do not say."""
    return 0 if tensor.is_inference() else tensor._version


class _Inside(TorchFunctionMode):
    """One forward of an inline attention module: its softmax and its product, with their edits.

    Args:
        views: the frames that see the call, outermost first, at least one.
        dropout: whether dropout may act between the two.
    """

    def __init__(self, views: Views, *, dropout: bool) -> None:
        super().__init__()
        self.dropout = dropout
        self.views, self.site, self.edits = views, views[-1][1], edits_of(views)
        self.call: InlineCall | None = None
        self.given: Tensor | None = None  # the pattern as the model's code goes on with it
        self.version = 0  # of it: how often it was written to
        self.uncut: tuple[Tensor, Tensor] | None = None  # scores and weights with a sink's column
        self.batch = 0
        self.products = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if is_softmax(func, args, kwargs):
            scores, own = args[0] if args else kwargs["input"], func(*args, **kwargs)
            if not self.site.sink:
                return self._weigh(scores, own)
            if self.uncut is not None:
                raise self._changed("it takes several softmaxes")
            self.uncut = scores, own
            return own
        if self.uncut is not None and (cut := cut_column(func, args, self.uncut[1])):
            if cut != self.site.sink:
                raise self._changed(f"it cuts off the {cut} column of its softmax")
            scores, own = self.uncut[0], func(*args, **kwargs)
            tokens, sink = (scores[..., :-1], scores[..., -1:])
            if cut == "first":
                tokens, sink = scores[..., 1:], scores[..., :1]
            return self._weigh(tokens, own, sink)
        product = None if self.call is None else read_product(func, args, self.call.pattern)
        if product is not None:
            return self._mix(func, args, kwargs, product)
        return func(*args, **kwargs)

    def _weigh(self, scores: Tensor, own: Tensor, sink: Tensor | None = None) -> Tensor:
        heads, shape = self.site.n_heads, scores.shape
        fits = shape[1] == heads if scores.ndim == 4 else scores.ndim == 3 and not shape[0] % heads
        if self.call is not None or not fits:
            raise self._changed(f"its softmax over {tuple(shape)} was not expected")
        self.batch = shape[0] // (heads if scores.ndim == 3 else 1)
        with autocast_off(scores.device):
            s, a = (Axes().read(t, self.batch) for t in (scores, own))
            offset = None if sink is None else Axes().read(sink, self.batch)
            self.call = InlineCall(self.site, s, a, offset)
            edited = self.call.weigh(self.edits)
        self.given = Axes().write(self.call.pattern, own) if edited else own
        self.version = _version(self.given)
        return self.given

    def _mix(self, func: Any, args: Sequence[Any], kwargs: Any, product: Product) -> Tensor:
        self.products += 1
        if self.call is None or self.products > 1:
            raise self._changed("its pattern went into two products")
        weights = args[product.place - 1]
        if not self._is_unwritten() or not _equal(weights, self.given, dropout=self.dropout):
            raise self._changed("its pattern was changed between the softmax and the values")
        given = args[product.place]
        if self.call.take_values(product.v.read(given, self.batch), self.edits):
            changed = product.v.write(self.call.v, given)
            args = (*args[: product.place], changed, *args[product.place + 1 :])
        out = func(*args, **kwargs)
        edited = self.call.take_z(product.z.read(out, self.batch), self.edits)
        with autocast_off(out.device):
            show(self.call, self.views)
        return product.z.write(self.call.z, out) if edited else out

    def _is_unwritten(self) -> bool:
        """Whether the pattern is still the softmax's, though code may have written into it."""
        if self.given is None or self.call is None:
            return False
        if _version(self.given) == self.version:
            return True
        if self.call.scores.sinks is not None:
            return False
        weights, again = self.call.pattern, torch.softmax(self.call.score_matrix.detach(), -1)
        slack = (
            16 * torch.finfo(weights.dtype).eps
        )  # DeBERTa fills masked cells with the 0 they have
        return bool(
            ((weights.detach() - again.to(weights.dtype)).abs() <= slack * again + slack**2).all()
        )

    def finish(self) -> None:
        """Refuse a forward that came without its attention: observers would have missed it."""
        if self.products != 1:
            raise self._changed("no softmax whose result was multiplied with values ran")

    def _changed(self, what: str) -> InputError:
        return InputError(
            f"{self.site.label} attends here in another way than when the model was surveyed: "
            f"{what}. This way of running the model is not supported."
        )


class _Forward:
    """A module's forward, with its attention in view of the blocks around."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.own = module, module.forward
        self.before = module.__dict__.get("forward")
        self.by: set[object] = set()
        self.__wrapped__ = self.own  # its signature, for those who look

    @torch.compiler.disable  # a graph would hold no observers
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        views = views_of(self.module)
        if not views:
            return self.own(*args, **kwargs)
        inside = _Inside(views, dropout=self.module.training)
        with inside:
            output = self.own(*args, **kwargs)
        inside.finish()
        return output

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the module made inside a block, which no exit restores, gets its own."""
        twin = memo.get(id(self.module))
        return self if twin is None else MethodType(type(twin).forward, twin)

    def restore(self) -> None:
        """Give the module back what it had."""
        if self.module.__dict__.get("forward") is self:
            if self.before is None:
                del self.module.__dict__["forward"]
            else:
                self.module.__dict__["forward"] = self.before


_HELD: dict[int, _Forward] = {}
_LOCK = threading.Lock()


@contextmanager
def in_view(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Let frames see the attention that `modules` compute themselves, inside the block."""
    block = object()
    try:
        with _LOCK:
            for module in modules:
                held = _HELD.setdefault(id(module), _Forward(module))
                held.by.add(block)
                module.__dict__["forward"] = held
        yield
    finally:
        try:  # right here: a request to stop may come at the start of any function
            _release(modules, block)
        except BaseException:
            _release(modules, block)
            raise


def _release(modules: Sequence[nn.Module], block: object) -> None:
    with _LOCK:
        for module in modules:
            held = _HELD.get(id(module))
            if held is None:
                continue
            if held.by <= {block}:  # none at all where a request to stop came as it was entered
                held.restore()
                del _HELD[id(module)]
            else:
                held.by.discard(block)
