"""Find the modules that compute attention in their own code: a softmax, then a product with values.

Nothing is known of the class: one forward pass is watched function by function, and a module is
taken for attention where the result of its one softmax over scores is multiplied with values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from .errors import InputError
from .frames import unobserved
from .inline import Axes, cut_column, is_softmax, read_product, summed
from .rows import Rows
from .switch import EAGER, switched
from .watch import watch_modules


@dataclass(frozen=True)
class InlineModule:
    """A module that attends in its own code.

    Attributes:
        name: its name in `model.named_modules()`.
        pattern: shape of its pattern [batch, head, query, key].
        v: shape of its values [batch, kv_head, key, d_value].
        d_head: over how many numbers the product that gave the scores runs.
        sink: which column of its softmax, "first" or "last", is cut off and no key's; "" for none.
    """

    name: str
    pattern: tuple[int, ...]
    v: tuple[int, ...]
    d_head: int
    sink: str = ""


class _Watch(TorchFunctionMode):
    """What a forward pass calls: softmaxes over scores, and products that take their results."""

    def __init__(self, names: dict[int, str], batch: int) -> None:
        super().__init__()
        self.names, self.batch = names, batch
        self.path: list[str] = []
        self.runs = Counter[str]()
        self.rows = Rows()
        self.softmaxes: list[tuple[str, ...]] = []
        self.last: Tensor | None = None
        self.sink = ""
        # how wide the products were since, and before the softmax, by their size and last axes
        self.widths: dict[tuple[int, ...], int] = {}
        self.before: dict[tuple[int, ...], int] = {}
        self.found: list[InlineModule] = []
        self.fused = Counter[str]()  # attention in one call, by the module that makes it

    def begin(self, module: nn.Module) -> None:
        self.path.append(self.names[id(module)])
        self.runs[self.path[-1]] += 1

    def end(self, module: nn.Module, inputs: Sequence[Any], output: Any) -> None:
        self.rows.note(module, inputs, output)
        while self.path and self.path.pop() != self.names[id(module)]:
            pass  # what an exception left, caught by the model on the way

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func in _FUSED:
            self.fused[self.path[-1] if self.path else ""] += 1
        if is_softmax(func, args, kwargs):
            self.softmaxes.append(tuple(self.path))
            self.last, self.sink = out if out.ndim in (3, 4) else None, ""
            self.before, self.widths = self.widths, {}
        elif not self.sink and (cut := cut_column(func, args, self.last)):
            self.last, self.sink = out, cut
        elif self.last is not None and (product := read_product(func, args, self.last)):
            v = product.v.read(args[product.place], self.batch)
            pattern = Axes().read(self.last, self.batch)
            fits = v.shape[1] and not pattern.shape[1] % v.shape[1] and len(pattern) == self.batch
            width = self.before.get((self.last.numel(), *self.last.shape[-2:]), 0)
            if fits and width:
                name = _shared(self.softmaxes[-1], self.path)
                shapes = tuple(pattern.shape), tuple(v.shape)
                self.found.append(InlineModule(name, *shapes, width, self.sink))
            self.last = None
        elif (
            isinstance(out, Tensor) and out.ndim in (3, 4) and (width := summed(func, args, kwargs))
        ):
            self.widths[out.numel(), *out.shape[-2:]] = width
        return out


_FUSED = (
    nn.functional.scaled_dot_product_attention, nn.functional.multi_head_attention_forward
)  # fmt: skip


def attending(model: PreTrainedModel, run: Callable[[], Any], batch: int) -> Counter[str]:
    """How often each module attends in its own code, registered functions included.

    Args:
        model: the model, unhooked.
        run: runs it once, on so many sequences.
        batch: how many.

    Returns:
        By module, the innermost that holds a softmax and the product with its result, or that calls
        a fused attention.
    """
    watch = _watch_code(model, run, batch)
    return Counter(found.name for found in watch.found) + watch.fused


def _watch_code(model: PreTrainedModel, run: Callable[[], Any], batch: int) -> _Watch:
    watch = _Watch({id(module): name for name, module in model.named_modules()}, batch)
    watched = watch_modules(model.modules(), watch.end, begin=watch.begin)
    with switched(model, EAGER), unobserved(model), watched, watch:
        run()
    return watch


def _shared(path: Sequence[str], other: Sequence[str]) -> str:
    """The innermost module that both run in."""
    both = [a for a, b in zip(path, other, strict=False) if a == b]
    return both[-1] if both else ""


def find_inline(model: PreTrainedModel, run: Callable[[], Any], batch: int) -> list[InlineModule]:
    """The modules of `model` whose own code attends, in the order of their calls.

    Args:
        model: the model.
        run: runs it once, on so many sequences.
        batch: how many.

    Returns:
        One entry per call: a module that is called twice comes twice.

    Raises:
        InputError: no module does so; one does with several softmaxes over scores, of which nothing
            tells which is its pattern; or one attends within parts of its tokens.
    """
    watch = _watch_code(model, run, batch)
    if not watch.found:
        raise InputError("no softmax over scores whose result is multiplied with values was seen.")
    for found in watch.found:
        softmaxes = sum(found.name in path for path in watch.softmaxes)
        if softmaxes != watch.runs[found.name]:
            raise InputError(
                f"{found.name or 'the model'} takes several softmaxes over scores in one call, "
                "and which of them gives its heads' pattern is not known."
            )
        module = model.get_submodule(found.name)
        watch.rows.check(module, found.name or "the model", batch, found.pattern[2])
    return watch.found
