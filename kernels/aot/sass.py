"""Reading machine code: instructions, labels and loops of `nvdisasm -c`, and what a kernel takes.

A loop is a cycle of the control flow, not a stretch of addresses: compilers put slow paths (a wait
that has to spin) behind the end of the kernel, and their way back looks like a loop over all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .flow import Cycle, nested

_SECTION = re.compile(r"\s*\.section\s+\.text\.([^,\s]+)")
_LABEL = re.compile(r"\s*([.$\w]+):\s*$", re.ASCII)
# an address, a guard, an opcode, the rest up to the semicolon or to a scheduling remark (&, ?)
_INSTRUCTION = re.compile(
    r"\s*/\*(?P<address>[0-9a-f]{4,16})\*/\s+\{?\s*(?:@(?P<guard>!?U?P[0-9T])\s+)?"
    r"(?P<opcode>[A-Z][A-Z0-9_.]*)(?P<operands>[^;&?]*)",
    re.ASCII,
)
_TARGET = re.compile(r"(?P<condition>[^`]*)`\((?P<label>[^)]*)\)")
_JUMPS = ("BRA", "JMP", "CALL")
_UNKNOWN_JUMPS = ("BRX", "BRXU", "JMX", "JMXU")  # through a register
_ENDS = ("EXIT", "RET", "KILL")

_FUNCTION = re.compile(r"Function\s+(\S+):\s*\n([^\n]*)")
_NUMBER = re.compile(r"\b(REG|STACK|SHARED):(\d{1,9})\b", re.ASCII)


class SassError(ValueError):
    """A text that is no listing of a kernel, or one whose control flow cannot be followed."""


@dataclass(frozen=True)
class Instruction:
    """One machine instruction.

    Args:
        address: Bytes from the start of its section.
        guard: The predicate it depends on, such as "!P0"; "" where it always runs.
        opcode: With its suffixes, such as "HMMA.16816.F32.BF16".
        operands: The rest, stripped.

    Example:
        >>> Instruction(16, "!P0", "LDL.LU", "R3, [R1+0x4]").kind
        'LDL'
    """

    address: int
    guard: str
    opcode: str
    operands: str

    @property
    def kind(self) -> str:
        """The opcode without its suffixes."""
        return self.opcode.split(".")[0]


@dataclass(frozen=True, eq=False)
class Loop:
    """The instructions that may run again and again, in the order of their addresses.

    Args:
        instructions: All of the loop, those of inner loops included.
        inner: The loops directly inside it.

    Example:
        >>> add = Instruction(0, "", "IADD3", "R1, R1, 0x1, RZ")
        >>> Loop((add, add)).count(lambda kind: kind == "IADD3")
        2
    """

    instructions: tuple[Instruction, ...]
    inner: tuple[Loop, ...] = ()

    def count(self, wanted: Callable[[str], bool]) -> int:
        """How many instructions have a kind that is wanted."""
        return count(self.instructions, wanted)

    def nest(self) -> Iterator[Loop]:
        """The loop and every loop in it."""
        waiting: list[Loop] = [self]
        while waiting:
            loop = waiting.pop()
            yield loop
            waiting.extend(loop.inner)


@dataclass(frozen=True)
class Resources:
    """What a kernel takes per thread and block, as `cuobjdump --dump-resource-usage` tells.

    Its LOCAL is not read: it says 0 for kernels that spill, whose bytes stand under STACK.

    Args:
        registers: Per thread.
        stack: Bytes per thread.
        shared: Static bytes per block; what the launch asks for comes on top.

    Example:
        >>> Resources(registers=128, stack=0, shared=1024).stack
        0
    """

    registers: int
    stack: int
    shared: int


def count(instructions: Sequence[Instruction], wanted: Callable[[str], bool]) -> int:
    """How many instructions have a kind that is wanted.

    Example:
        >>> load = Instruction(0, "", "LDL.64", "R2, [R1]")
        >>> count([load], is_spill)
        1
    """
    return sum(wanted(instruction.kind) for instruction in instructions)


def is_spill(kind: str) -> bool:
    """Whether an instruction moves a register to or from the thread's stack."""
    return kind in ("LDL", "STL")


def read_resources(text: str) -> Resources:
    r"""Read the output of `cuobjdump --dump-resource-usage`; of several functions, the most.

    Raises:
        SassError: no function is told of.

    Example:
        >>> read_resources(" Function f:\n  REG:40 STACK:8 SHARED:0 LOCAL:0")
        Resources(registers=40, stack=8, shared=0)
    """
    found = [dict(_NUMBER.findall(line)) for _, line in _FUNCTION.findall(text)]
    if not found or any(len(numbers) != 3 for numbers in found):
        raise SassError(
            "no resource usage in this text; give the output of cuobjdump --dump-resource-usage."
        )
    most = (max(int(numbers[name]) for numbers in found) for name in ("REG", "STACK", "SHARED"))
    return Resources(*most)


@dataclass(frozen=True, eq=False)
class Code:
    """The machine code of one section, and where its labels point.

    Args:
        name: Of the section, which is that of the kernel.
        instructions: In the order of the listing.
        labels: Index of the instruction that follows each label; one past the end may occur.

    Example:
        >>> text = '''.section .text.f,"ax"
        ... .L_x_0:
        ...   /*0000*/  IADD3 R0, R0, 0x1, RZ ;
        ...   /*0010*/  @P0 BRA `(.L_x_0) ;
        ...   /*0020*/  EXIT ;'''
        >>> [len(loop.instructions) for loop in read_sass(text)[0].loops()]
        [2]
    """

    name: str
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]

    def loops(self) -> tuple[Loop, ...]:
        """The outermost loops, which hold the others.

        Raises:
            SassError: a jump goes through a register or to a label that is not there.
        """
        return tuple(self._loop(part) for part in nested(self._successors()))

    def _loop(self, part: Cycle) -> Loop:
        own = tuple(self.instructions[i] for i in sorted(part.nodes))
        return Loop(own, tuple(self._loop(inner) for inner in part.inner))

    def _successors(self) -> dict[int, tuple[int, ...]]:
        """Which instructions may follow each."""
        graph = {}
        for index, instruction in enumerate(self.instructions):
            following = [self._jump(instruction)] if instruction.kind in _JUMPS else []
            if instruction.kind in _UNKNOWN_JUMPS:
                raise SassError(
                    f"{instruction.opcode} at {instruction.address:#x} of {self.name} jumps through"
                    " a register: its loops cannot be told."
                )
            if not _never_falls_through(instruction):
                following.append(index + 1)
            graph[index] = tuple(i for i in following if i < len(self.instructions))
        return graph

    def _jump(self, instruction: Instruction) -> int:
        found = _TARGET.search(instruction.operands)
        label = found["label"] if found else instruction.operands
        if label not in self.labels:
            raise SassError(
                f"{instruction.opcode} at {instruction.address:#x} of {self.name} goes to {label!r}"
                ", which is not in the listing."
            )
        return self.labels[label]


def _never_falls_through(instruction: Instruction) -> bool:
    if instruction.guard or instruction.kind not in (*_ENDS, "BRA", "JMP"):
        return False  # a call comes back, or is a jump in disguise; then too much is followed
    found = _TARGET.search(instruction.operands)
    return found is None or not found["condition"].strip()


def _instruction(found: re.Match[str]) -> Instruction:
    address, guard = int(found["address"], 16), found["guard"] or ""
    return Instruction(address, guard, found["opcode"], found["operands"].strip())


def read_sass(text: str) -> tuple[Code, ...]:
    """Read the output of `nvdisasm -c`, section by section.

    Raises:
        SassError: there is no section with instructions in it.

    Example:
        >>> read_sass("nothing")
        Traceback (most recent call last):
        headatlas.kernels.aot.sass.SassError: no machine code in this text; give the output of \
nvdisasm -c.
    """
    codes: list[Code] = []
    name, instructions, labels = "", [], {}

    def close() -> None:
        if instructions:
            codes.append(Code(name, tuple(instructions), labels))

    for line in text.splitlines():
        if section := _SECTION.match(line):
            close()
            name, instructions, labels = section[1], [], {}
        elif label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif found := _INSTRUCTION.match(line):
            instructions.append(_instruction(found))
    close()
    if not codes:
        raise SassError("no machine code in this text; give the output of nvdisasm -c.")
    return tuple(codes)
