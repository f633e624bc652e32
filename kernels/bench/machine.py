"""What a benchmark ran on, and what that device reaches at its best."""

from __future__ import annotations

import importlib
import platform
import subprocess
from pathlib import Path

import torch

from .floor import Ceilings
from .measure import Stopwatch

_COPY_BYTES = 2**31
_PRODUCT = 8192


def machine() -> dict[str, str | int | None]:
    """The device, its driver, and the versions of everything that is measured.

    What cannot be found out is None. The commit is that of the checkout, with "+" where files
    differ from it; None outside a checkout.
    """
    package = (__package__ or "headatlas").partition(".")[0]
    gpu = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    return {
        "gpu": None if gpu is None else gpu.name,
        "capability": None if gpu is None else f"{gpu.major}.{gpu.minor}",
        "multiprocessors": None if gpu is None else gpu.multi_processor_count,
        "memory_bytes": None if gpu is None else gpu.total_memory,
        "cache_bytes": None if gpu is None else cache_bytes(),
        "driver": _told(
            "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"
        ),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "torch": torch.__version__,
        "triton": importlib.import_module("triton").__version__,
        "python": platform.python_version(),
        "headatlas": importlib.import_module(package).__version__,
        "commit": _commit(),
    }


def cache_bytes() -> int:
    """Size of the GPU's last cache."""
    return int(torch.cuda.get_device_properties(0).L2_cache_size)


def _commit() -> str | None:
    here = str(Path(__file__).resolve().parent)
    commit = _told("git", "-C", here, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _told("git", "-C", here, "status", "--porcelain", "--untracked-files=no")
    return commit + "+" * bool(changed)


def _told(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0].strip() if lines else ""


def ceilings(stopwatch: Stopwatch, device: torch.device) -> Ceilings:
    """Measure a copy of 2 GiB and a product of random 8192 × 8192 bfloat16 matrices.

    Args:
        stopwatch: Of the device.
        device: The device; with less than 16 GiB of memory free, an eighth of it is copied.
    """
    free, _ = torch.cuda.mem_get_info(device)
    n = min(_COPY_BYTES, free // 8)
    source = torch.empty(n, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    copy_ms = stopwatch.median_ms(lambda: target.copy_(source))
    del source, target
    a, b = (torch.randn(_PRODUCT, _PRODUCT, device=device, dtype=torch.bfloat16) for _ in range(2))
    into = torch.empty_like(a)
    product_ms = stopwatch.median_ms(lambda: torch.mm(a, b, out=into))
    return Ceilings(2e3 * n / copy_ms, 2e3 * _PRODUCT**3 / product_ms)
