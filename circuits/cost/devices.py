"""Peak arithmetic and memory bandwidth of a few accelerators, and the bytes of a number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ...interp.errors import InputError, shown

BYTES: Mapping[str, int] = MappingProxyType({"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1})
"""Number format -> bytes of one number."""


_FASTEST = 1e30


@dataclass(frozen=True)
class Device:
    """An accelerator's two roofs.

    Attributes:
        name: the vendor's name.
        flops: number format -> peak FLOP/s of a dense matrix product in it. fp32 is the plain
            rate, since torch leaves TF32 off unless asked.
        bandwidth: peak bytes/s of its memory.

    Raises:
        InputError: a rate is no number from 1 to 1e30.

    Reference:
        Williams 2009 (the roofline model).
    """

    name: str
    flops: Mapping[str, float]
    bandwidth: float

    def __post_init__(self) -> None:
        for what, rate in (("bandwidth", self.bandwidth), *self.flops.items()):
            # NaN fails the comparison
            if type(rate) not in (int, float) or not 1 <= rate <= _FASTEST:
                raise InputError(
                    f"the rate for {what} of {self.name} must be a number per second from 1 to "
                    f"{_FASTEST:g}; got {shown(rate)}."
                )

    def peak(self, dtype: str) -> float:
        """FLOP/s in a number format.

        Raises:
            InputError: the device has no matrix unit for it.
        """
        bytes_per_number(dtype)
        if dtype not in self.flops:
            raise InputError(f"{self.name} computes in {', '.join(self.flops)}, not in {dtype}.")
        return self.flops[dtype]

    def ridge(self, dtype: str) -> float:
        """FLOP per byte from which on arithmetic, not memory, sets the pace: peak / bandwidth."""
        return self.peak(dtype) / self.bandwidth


def _device(name: str, *, tera: Mapping[str, float], gigabytes_per_second: float) -> Device:
    flops = MappingProxyType({dtype: rate * 1e12 for dtype, rate in tera.items()})
    return Device(name, flops, gigabytes_per_second * 1e9)


# Data sheets mark most matrix rates "with sparsity"; the dense rate is half of such a figure.
DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        # NVIDIA A100 80GB data sheet (2021), SXM column: FP32 19.5, FP16 and BF16 312 without
        # sparsity, 2,039 GB/s; no FP8
        "a100": _device(
            "A100 80GB SXM",
            tera={"fp32": 19.5, "fp16": 312.0, "bf16": 312.0},
            gigabytes_per_second=2039.0,
        ),
        # NVIDIA H100 data sheet, SXM column: FP32 67, FP16 and BF16 1,979 and FP8 3,958 with
        # sparsity, 3.35 TB/s
        "h100": _device(
            "H100 SXM",
            tera={"fp32": 67.0, "fp16": 989.5, "bf16": 989.5, "fp8": 1979.0},
            gigabytes_per_second=3350.0,
        ),
        # NVIDIA H200 data sheet, SXM column: the H100's rates, 4.8 TB/s
        "h200": _device(
            "H200 SXM",
            tera={"fp32": 67.0, "fp16": 989.5, "bf16": 989.5, "fp8": 1979.0},
            gigabytes_per_second=4800.0,
        ),
        # NVIDIA L4 data sheet: FP32 30.3, FP16 and BF16 242 and FP8 485 with sparsity, 300 GB/s
        "l4": _device(
            "L4",
            tera={"fp32": 30.3, "fp16": 121.0, "bf16": 121.0, "fp8": 242.5},
            gigabytes_per_second=300.0,
        ),
        # NVIDIA Ada GPU architecture whitepaper, appendix A: FP32 82.6; accumulating in FP32, FP16
        # and BF16 165.2 and FP8 330.3 without sparsity; 1,008 GB/s
        "rtx4090": _device(
            "GeForce RTX 4090",
            tera={"fp32": 82.6, "fp16": 165.2, "bf16": 165.2, "fp8": 330.3},
            gigabytes_per_second=1008.0,
        ),
    }
)
"""Short name -> accelerator."""


def find_device(name: str) -> Device:
    """The device of a short name, whatever its case, blanks and dashes.

    Raises:
        InputError: none of that name; the message lists them.

    Example:
        >>> find_device("RTX 4090").ridge("fp16")
        163.88888888888889
    """
    key = "".join(letter for letter in name.lower() if letter.isalnum())
    if key not in DEVICES:
        raise InputError(f"unknown device {name!r}; known: {', '.join(DEVICES)}.")
    return DEVICES[key]


def bytes_per_number(dtype: str) -> int:
    """Bytes of one number in a format such as `"fp16"`.

    Raises:
        InputError: an unknown format; the message lists them.
    """
    if dtype not in BYTES:
        raise InputError(f"unknown number format {dtype!r}; known: {', '.join(BYTES)}.")
    return BYTES[dtype]
