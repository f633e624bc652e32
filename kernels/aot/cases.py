"""Every kernel configuration that ships: what the gate compiles.

Masks are not among them: causal, windowed and padded calls differ in the key intervals of their
rows, which are data, and run the same machine code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .compile import CompilableLaunch

HEAD_DIMS = ((64, 64), (80, 80), (96, 96), (128, 128), (256, 256), (192, 128), (576, 512))
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# what is asked of each kernel; the names of variants are unique
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "forward": {
        "plain": {},
        "entropy top": {"entropy": True, "top": True},
        "entropy top M2": {"entropy": True, "top": True, "matches": 2},
        "entropy top M4": {"entropy": True, "top": True, "matches": 4, "sinks": True},
        "bias": {"bias": True},
        "softcap": {"softcap": 50.0},
        "sinks": {"sinks": True},
        "softcap M2": {"entropy": True, "top": True, "matches": 2, "softcap": 50.0, "sinks": True},
        "bias M2": {"entropy": True, "top": True, "matches": 2, "bias": True, "sinks": True},
        "strict M2": {"entropy": True, "top": True, "matches": 2, "strict": 3, "sinks": True},
        "all M1": {
            "entropy": True,
            "top": True,
            "matches": 1,
            "strict": 1,
            "softcap": 50.0,
            "bias": True,
            "sinks": True,
        },
        "all columns": {
            "entropy": True,
            "top": True,
            "columns": True,
            "softcap": 50.0,
            "bias": True,
            "sinks": True,
        },
        "known entropy top M4": {"known": True, "entropy": True, "top": True, "matches": 4},
    },
    "weights": {"all rows": {}, "chosen rows": {"rows": True}},
    "pooled": {"mean": {"largest": False}, "max": {"largest": True}},
    "received": {"sums": {}},
    "few": {"4 keys": {}},
}
# one of everything, the widest and the fullest kernels among them
REPRESENTATIVE = (
    "forward 128 bf16 plain",
    "forward 128 bf16 entropy top M4",
    "forward 128 bf16 strict M2",
    "forward 128 bf16 all M1",
    "forward 128 bf16 bias",
    "forward 128 bf16 known entropy top M4",
    "forward 64 bf16 entropy top M2",
    "forward 80 fp16 all columns",
    "forward 256 bf16 all M1",
    "forward 192/128 bf16 entropy top",
    "forward 576/512 bf16 plain",
    "forward 128 fp32 entropy top M2",
    "weights 128 bf16 all rows",
    "weights 80 fp32 chosen rows",
    "pooled 64 fp16 mean",
    "received 128 bf16 sums",
    "few 192 bf16 4 keys",
)
_HEADS, _KV_HEADS, _LENGTH = 8, 2, 256
_CELL = (128, 128)  # smaller cells take smaller blocks, which need not fill a matrix instruction


@dataclass(frozen=True)
class ShippedCase:
    """One kernel of the probe, for one head width, type and request.

    Args:
        kernel: A key of `VARIANTS`.
        d_key: Width of queries and keys.
        d_value: Width of values; d_key for kernels that read none.
        dtype: A key of `DTYPES`.
        variant: What is asked of the kernel, a key of `VARIANTS[kernel]`.

    Example:
        >>> ShippedCase("forward", 192, 128, "bf16", "plain").name
        'forward 192/128 bf16 plain'
    """

    kernel: str
    d_key: int
    d_value: int
    dtype: str
    variant: str

    @property
    def name(self) -> str:
        """Kernel, head width (of keys / of values), type and variant."""
        width = str(self.d_key) + f"/{self.d_value}" * (self.d_value != self.d_key)
        return f"{self.kernel} {width} {self.dtype} {self.variant}"

    @property
    def ieee(self) -> bool:
        """Whether it multiplies in full float32, without matrix instructions."""
        return self.dtype == "fp32" or self.kernel == "few"

    def launch(self, arch: int) -> CompilableLaunch:
        """The launch that ships for an architecture, on uninitialised CPU tensors."""
        from ..fused.configs import use_architecture

        asked = VARIANTS[self.kernel][self.variant]
        with use_architecture(arch):
            return _forward(self, asked) if self.kernel == "forward" else _read(self, asked)


def _forward(case: ShippedCase, asked: Mapping[str, Any]) -> CompilableLaunch:
    from ..fused.rows import RowCall

    known = asked.get("known", False)
    call = RowCall(
        inputs=_inputs(case, asked),
        v=None if known else _empty(case, _KV_HEADS, case.d_value),
        known=torch.empty(1, _HEADS, _LENGTH) if known else None,
        sinks=torch.empty(_HEADS) if asked.get("sinks") else None,
        labels=_labels(case, asked),
        entropy=asked.get("entropy", False),
        top=asked.get("top", False),
    )
    # of values in slices the last launch: that of the statistics, where some are asked for
    return call.launches(call.outputs())[-1]


def _read(case: ShippedCase, asked: Mapping[str, Any]) -> CompilableLaunch:
    from ..fused.plan import MOST_FEW
    from ..fused.reads import ReadCall

    heads = torch.arange(_HEADS, dtype=torch.int32)
    call = ReadCall(_inputs(case, asked), torch.empty(1, _HEADS, _LENGTH))
    if case.kernel == "weights":
        rows = torch.zeros(1, _LENGTH, dtype=torch.int32) if asked.get("rows") else None
        return call.weights(heads, rows, call.empty_weights(_HEADS, _LENGTH, DTYPES[case.dtype]))
    if case.kernel == "pooled":
        into = call.empty_grid(_HEADS, _CELL)
        return call.pooled(heads, _CELL, largest=asked["largest"], into=into)
    if case.kernel == "few":
        keys = torch.zeros(1, 3, _LENGTH, MOST_FEW, dtype=torch.int32)
        return call.few(keys, torch.empty(1, 3, _HEADS, _LENGTH))
    return call.received(torch.empty(1, _HEADS, _LENGTH))


def _inputs(case: ShippedCase, asked: Mapping[str, Any]) -> Any:
    from ..fused.launch import Inputs

    interval, dtype = torch.zeros(1, _LENGTH, dtype=torch.int32), DTYPES[case.dtype]
    return Inputs(
        q=_empty(case, _HEADS, case.d_key),
        k=_empty(case, _KV_HEADS, case.d_key),
        lo=interval,
        hi=interval,
        bias=torch.empty(1, 1, _LENGTH, _LENGTH, dtype=dtype) if asked.get("bias") else None,
        scale=case.d_key**-0.5,
        softcap=asked.get("softcap"),
    )


def _labels(case: ShippedCase, asked: Mapping[str, Any]) -> Any:
    from ..fused.rows import COLUMNS, Labels

    matches = asked.get("matches", 0)
    dtype = torch.float32 if case.dtype == "fp32" else torch.float16  # as `fused.plan` makes them
    codes = torch.zeros(1, matches, _LENGTH, dtype=torch.int32) if matches else None
    columns = torch.empty(1, _LENGTH, COLUMNS, dtype=dtype) if asked.get("columns") else None
    own = torch.zeros(1, _LENGTH, dtype=torch.int32) if asked.get("strict") else None
    return Labels(codes, codes, own, asked.get("strict", 0), columns)


def _empty(case: ShippedCase, heads: int, width: int) -> torch.Tensor:
    return torch.empty(1, heads, _LENGTH, width, dtype=DTYPES[case.dtype])


def shipped_cases() -> list[ShippedCase]:
    """All of them, in the order of the table.

    Example:
        >>> shipped_cases()[0].name
        'forward 64 bf16 plain'
    """
    return [
        ShippedCase(kernel, d_key, d_value if kernel == "forward" else d_key, dtype, variant)
        for kernel, variants in VARIANTS.items()
        for d_key, d_value in HEAD_DIMS
        for dtype in DTYPES
        for variant in variants
    ]


def select(words: Sequence[str] = (), *, representative: bool = False) -> list[ShippedCase]:
    """The cases whose names hold all words of one of the given texts.

    Args:
        words: Such as "bf16 128"; none selects all.
        representative: Only those of `REPRESENTATIVE`.

    Raises:
        ValueError: There are none.

    Example:
        >>> [case.name for case in select(["forward 576 fp32 columns", "received 64 fp16"])]
        ['forward 576/512 fp32 all columns', 'received 64 fp16 sums']
    """
    wanted = [set(text.split()) for text in words] or [set()]
    found = [
        case
        for case in shipped_cases()
        if any(text <= {*case.name.split(), *re.split(r"[ /]", case.name)} for text in wanted)
        and (case.name in REPRESENTATIVE or not representative)
    ]
    if not found:
        among = " of the representative ones" * representative
        raise ValueError(f"no kernel{among} is named {' or '.join(words)}; see --list.")
    return found
