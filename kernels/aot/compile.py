"""Compiling a kernel for a GPU that is not there, through the JIT's own specialisation."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from .sass import Code, Resources, SassError, read_resources, read_sass

_WARP = 32
_TOOLS = ("cuobjdump", "nvdisasm")


class CannotCompileError(RuntimeError):
    """This machine or process cannot compile for a GPU at all."""


@runtime_checkable
class CompilableLaunch(Protocol):
    """What the gate needs to know of a kernel's launch; `fused.launch.Launch` is one.

    Args:
        kernel: The jitted function.
        grid: Programs.
        arguments: Tensors (on the CPU), strides, sizes and numbers, in order.
        constants: Compile-time arguments by name, BLOCK_M and BLOCK_N among them.
        warps: Warps per program.
        stages: Steps in flight.
    """

    @property
    def kernel(self) -> Any: ...  # noqa: D102
    @property
    def grid(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def arguments(self) -> tuple[Any, ...]: ...  # noqa: D102
    @property
    def constants(self) -> dict[str, Any]: ...  # noqa: D102
    @property
    def warps(self) -> int: ...  # noqa: D102
    @property
    def stages(self) -> int: ...  # noqa: D102


class StubDriver:
    """A GPU of an architecture, as far as Triton's compiler asks for one.

    Its device number is the architecture: Triton remembers compiled kernels by device.

    Args:
        arch: Compute capability, major · 10 + minor.

    Example:
        >>> StubDriver(90).get_current_device()
        90
    """

    def __init__(self, arch: int) -> None:
        self.arch = arch

    def get_current_device(self) -> int:
        """The architecture."""
        return self.arch

    def get_current_stream(self, device: int) -> int:
        """The default stream."""
        return 0

    def get_current_target(self) -> Any:
        """What to compile for."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.arch, _WARP)

    def get_active_torch_device(self) -> torch.device:
        """Where tensors are."""
        return torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Compiled:
    """A kernel's machine code and what it takes.

    Args:
        codes: Its sections of machine code.
        resources: Registers and stack.
        shared: Bytes of shared memory that a launch asks for.

    Example:
        >>> Compiled((), Resources(32, 0, 0), 49152).shared
        49152
    """

    codes: tuple[Code, ...]
    resources: Resources
    shared: int


def check_compiler() -> None:
    """Refuse where nothing can be compiled or read.

    Raises:
        CannotCompileError: Triton is missing, interprets kernels instead of compiling them, or
            came without NVIDIA's disassembler.
    """
    try:
        from triton import knobs
    except ImportError as error:
        raise CannotCompileError(
            f"Triton cannot be imported ({error}); install triton, which exists for Linux alone."
        ) from error
    if knobs.runtime.interpret:
        raise CannotCompileError(
            "TRITON_INTERPRET is set: kernels are interpreted, not compiled. Unset it."
        )
    for name in _TOOLS:
        _tool(name)


def compile_launch(launch: CompilableLaunch, arch: int) -> Compiled:
    """Compile a kernel for an architecture, without running it, and disassemble it.

    From here on this process compiles for that architecture, whatever GPU it has.

    Args:
        launch: The kernel and its arguments; their types, sizes and alignment are specialised on
            as at run time, their values are not read.
        arch: Compute capability, major · 10 + minor.

    Raises:
        CannotCompileError: A tool cannot be found.
        SassError: A tool fails on this kernel, or its listing cannot be read.
        Exception: What Triton's compiler raises on a kernel that it cannot compile.
    """
    from triton.runtime.driver import driver

    driver.set_active(StubDriver(arch))  # type: ignore[arg-type]
    built = launch.kernel.warmup(
        *launch.arguments, grid=launch.grid, **launch.constants, num_warps=launch.warps,
        num_stages=launch.stages, enable_fp_fusion=True,  # off by default from Triton 3.10
    )  # fmt: skip
    launch.kernel.device_caches.clear()  # every stage of every kernel is kept: GBs in the end
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        resources = read_resources(_output("cuobjdump", "--dump-resource-usage", file.name))
        codes = read_sass(_output("nvdisasm", "-c", file.name))
    return Compiled(codes, resources, built.metadata.shared)


def _tool(name: str) -> str:
    from triton import knobs

    try:
        return getattr(knobs.nvidia, name).path
    except (RuntimeError, OSError) as error:
        folder = Path(knobs.__file__).parent / "backends" / "nvidia" / "bin"
        raise CannotCompileError(
            f"Triton's {name} cannot be run ({error}); it comes with the wheel, in {folder}. "
            f"Reinstall triton, or set TRITON_{name.upper()}_PATH."
        ) from error


def _output(name: str, *arguments: str) -> str:
    done = subprocess.run([_tool(name), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = " ".join((done.stderr or done.stdout).split())
        raise SassError(f"{name} ended with status {done.returncode}: {reason}")
    return done.stdout
