"""What a case computes on: sizes, random inputs, and labels of every kind."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..masks import Mask
from ..values import Match, Request, Scores, Weights

N_COMPARED, N_FEW, N_COLUMNS = 8, 8, 16
_PER_LABEL = 16  # keys that carry one label of a compared match, on average
_PADDING = 3


@dataclass(frozen=True)
class Ask:
    """What is asked of attention beside its output.

    Args:
        entropy: The row entropy.
        top: The largest weight of each row and its key.
        compared: How many matches with many keys per row, which are compared label by label.
        few: How many matches with one key per row.
        columns: How many matches whose label all rows look for.
        weights: Weights to write out, or to pool.
        received: The sum of each key's weights.

    Example:
        >>> Ask(compared=2, columns=3).n_match
        5
    """

    entropy: bool = False
    top: bool = False
    compared: int = 0
    few: int = 0
    columns: int = 0
    weights: Weights | None = None
    received: bool = False

    @property
    def n_match(self) -> int:
        """Label pairs in all."""
        return self.compared + self.few + self.columns


@dataclass(frozen=True)
class Setting:
    """The sizes of a call.

    Args:
        d: Width of queries, keys and values.
        n: Queries and keys per sequence.
        heads: Query heads.
        kv_heads: Key/value heads.
        batch: Sequences.
        dtype: Of q, k and v.
        padded: Whether the first sequence is padded on the left, which leaves it dead rows.

    Example:
        >>> str(Setting(d=64, n=2048))
        'd 64, N 2048, 32 heads, bfloat16'
    """

    d: int
    n: int
    heads: int = 32
    kv_heads: int = 32
    batch: int = 1
    dtype: torch.dtype = torch.bfloat16
    padded: bool = False

    def __str__(self) -> str:
        heads = f"{self.heads} heads"
        if self.kv_heads != self.heads:
            heads += f" of {self.kv_heads}"
        words = [f"d {self.d}", f"N {self.n}", heads, str(self.dtype).removeprefix("torch.")]
        return ", ".join(words + ["padded"] * self.padded)


@dataclass(frozen=True, eq=False)
class Problem:
    """Inputs of a call, and more labels than any case takes.

    Args:
        setting: Sizes.
        q: Queries.
        k: Keys.
        v: Values.
        mask: Causal, perhaps padded.
        compared: Random labels, each on about 16 keys (on half of them in short sequences).
        few: Offsets 1, 2, ….
        columns: Random halves of the keys that all rows look for.
        kept: See `keep`.
    """

    setting: Setting
    q: Float[Tensor, "batch head query d_head"]
    k: Float[Tensor, "batch kv_head key d_head"]
    v: Float[Tensor, "batch kv_head key d_head"]
    mask: Mask
    compared: tuple[Match, ...]
    few: tuple[Match, ...]
    columns: tuple[Match, ...]
    kept: dict[Hashable, Any] = field(default_factory=dict)

    def keep(self, key: Hashable, build: Callable[[], Any]) -> Any:
        """What a case makes once for all inputs that are rotated, such as a mask of N × N.

        Args:
            key: The same in all of them.
            build: Makes it.
        """
        if key not in self.kept:
            self.kept[key] = build()
        return self.kept[key]

    def matches(self, ask: Ask) -> tuple[Match, ...]:
        """The label pairs of a case: compared ones first, then few-key ones, then columns."""
        few, columns = self.few[: ask.few], self.columns[: ask.columns]
        return (*self.compared[: ask.compared], *few, *columns)

    def request(self, ask: Ask) -> Request:
        """The call as one value."""
        return Request(
            q=self.q,
            k=self.k,
            v=self.v,
            scores=Scores(),
            matches=self.matches(ask),
            weights=ask.weights,
            entropy=ask.entropy,
            top=ask.top,
            received=ask.received,
        )


def build(setting: Setting, device: torch.device, seed: int) -> Problem:
    """Random inputs for a setting.

    Args:
        setting: Sizes.
        device: Where the tensors live.
        seed: Of all that is random.

    Example:
        >>> small = Setting(d=16, n=9, heads=2, kv_heads=1, dtype=torch.float32)
        >>> build(small, torch.device("cpu"), 0).k.shape
        torch.Size([1, 1, 9, 16])
    """
    random = torch.Generator(device).manual_seed(seed)
    batch, n = setting.batch, setting.n
    here = torch.arange(n, device=device).expand(batch, n)
    padding = None
    if setting.padded:
        first = torch.tensor([_PADDING] + [0] * (batch - 1))
        padding = torch.stack([first, torch.full_like(first, n)], -1)
    vocabulary = max(2, n // _PER_LABEL)

    def label(high: int) -> Tensor:
        return torch.randint(high, (batch, n), generator=random, device=device)

    return Problem(
        setting,
        *_random(setting, random, device),
        mask=Mask(k_range=padding),
        compared=tuple(Match(label(vocabulary), label(vocabulary)) for _ in range(N_COMPARED)),
        few=tuple(Match(here - offset, here) for offset in range(1, N_FEW + 1)),
        columns=tuple(Match(torch.ones_like(here), label(2)) for _ in range(N_COLUMNS)),
    )


def rotate(problem: Problem, seeds: Sequence[int]) -> list[Problem]:
    """A problem and others with its mask and labels but fresh q, k and v, one per seed.

    Args:
        problem: The first of them.
        seeds: Of the others.

    Example:
        >>> one = build(Setting(16, 9, dtype=torch.float32), torch.device("cpu"), 0)
        >>> [other.mask is one.mask for other in rotate(one, [1, 2])]
        [True, True, True]
    """
    device = problem.q.device
    made = [problem]
    for seed in seeds:
        random = torch.Generator(device).manual_seed(seed)
        q, k, v = _random(problem.setting, random, device)
        made.append(replace(problem, q=q, k=k, v=v))
    return made


def _random(
    setting: Setting, random: torch.Generator, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    heads = setting.heads, setting.kv_heads, setting.kv_heads
    shapes = [(setting.batch, n, setting.n, setting.d) for n in heads]
    q, k, v = (
        torch.randn(shape, generator=random, device=device, dtype=setting.dtype) for shape in shapes
    )
    return q, k, v
