"""The reader of machine code, on listings written by hand and on any text at all."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headatlas.kernels.aot.flow import DEEPEST, nested
from headatlas.kernels.aot.sass import (
    Resources,
    SassError,
    count,
    is_spill,
    read_resources,
    read_sass,
)


def listing(*lines, name="kernel"):
    """`nvdisasm -c`'s form of instructions and of labels (lines that end in a colon)."""
    text, address = [f'\t.section\t.text.{name},"ax",@progbits', f".text.{name}:"], 0
    for line in lines:
        if line.endswith(":"):
            text.append(line)
        else:
            text.append(f"        /*{address:04x}*/                   {line} ;")
            address += 16
    return "\n".join(text) + "\n"


def loops(*lines):
    (code,) = read_sass(listing(*lines))
    return [
        [instruction.address // 16 for instruction in loop.instructions]
        for outer in code.loops()
        for loop in outer.nest()
    ]


def test_guards_suffixes_and_operands_are_told_apart():
    (code,) = read_sass(listing("@!P0 LDL.LU R3, [R1+0x4]", "@UP1 UMOV UR4, 0x1", "@!PT NOP"))
    first, second, third = code.instructions
    assert (first.guard, first.opcode, first.kind) == ("!P0", "LDL.LU", "LDL")
    assert first.operands == "R3, [R1+0x4]"
    assert (second.guard, second.kind, second.address) == ("UP1", "UMOV", 16)
    assert (third.guard, third.kind, third.operands) == ("!PT", "NOP", "")
    assert code.name == "kernel"


def test_scheduling_remarks_are_no_operands():
    text = listing("BRA `(.L_x_0) &req={1} ?WAIT5_END_GROUP", "STL [R1], R2", ".L_x_0:", "EXIT")
    (code,) = read_sass(text)
    assert code.instructions[0].operands == "`(.L_x_0)"
    assert code.loops() == ()


def test_a_branch_back_makes_a_loop():
    assert loops("MOV R0, RZ", ".L_x_0:", "IADD3 R0, R0, 0x1, RZ", "@P0 BRA `(.L_x_0)", "EXIT") == [
        [1, 2]
    ]


@pytest.mark.parametrize(
    "back", ["BRA.U !UP0, `(.L_x_0)", "@!P0 CALL.REL.NOINC `(.L_x_0)", "BRA !P3, `(.L_x_0)"]
)
def test_branches_that_are_written_otherwise(back):
    assert loops(".L_x_0:", "NOP", back, "EXIT") == [[0, 1]]


def test_without_a_condition_nothing_follows_a_branch():
    assert loops("BRA `(.L_x_1)", ".L_x_0:", "NOP", ".L_x_1:", "EXIT", "BRA `(.L_x_0)") == []


def test_a_slow_path_behind_the_end_is_no_loop_over_everything():
    lines = [
        "NOP", "@!P0 BRA `(.L_x_slow)", ".L_x_back:", "HMMA.16816.F32 R0, R0, R0, R0",
        ".L_x_loop:", "STL [R1], R2", "@P1 BRA `(.L_x_loop)", "EXIT",
        ".L_x_slow:", "SYNCS P0", "@!P0 BRA `(.L_x_slow)", "BRA `(.L_x_back)",
    ]  # fmt: skip
    assert loops(*lines) == [[3, 4], [6, 7]]


def test_a_slow_path_of_a_loop_belongs_to_it():
    lines = [
        ".L_x_loop:", "@!P0 BRA `(.L_x_slow)", ".L_x_back:", "NOP", "@P1 BRA `(.L_x_loop)", "EXIT",
        ".L_x_slow:", "LDL R2, [R1]", "BRA `(.L_x_back)",
    ]  # fmt: skip
    assert loops(*lines) == [[0, 1, 2, 4, 5]]


def test_inner_loops_lie_in_their_outer_one():
    lines = [
        ".L_x_0:", "NOP", ".L_x_1:", "HMMA.16816.F32 R0, R0, R0, R0", "@P0 BRA `(.L_x_1)",
        "LDL R0, [R1]", "@P1 BRA `(.L_x_0)", "EXIT",
    ]  # fmt: skip
    (code,) = read_sass(listing(*lines))
    (outer,) = code.loops()
    (inner,) = outer.inner
    assert len(outer.instructions) == 5
    assert outer.count(is_spill) == 1
    assert [instruction.kind for instruction in inner.instructions] == ["HMMA", "BRA"]
    assert inner.inner == ()


def test_a_loop_that_is_entered_in_the_middle_is_found():
    lines = [
        "@P0 BRA `(.L_x_1)", ".L_x_0:", "NOP", ".L_x_1:", "LDL R0, [R1]",
        "@P1 BRA `(.L_x_0)", "EXIT",
    ]  # fmt: skip
    assert loops(*lines) == [[1, 2, 3]]


def test_a_wait_at_the_end_is_a_loop_of_its_own():
    assert loops("EXIT", ".L_x_0:", "BRA `(.L_x_0)", "NOP") == [[1]]


def test_spills_are_counted_by_their_kind():
    (code,) = read_sass(
        listing("STL.64 [R1], R2", "LDS R1, [R2]", "@P0 LDL R2, [R1]", "STG.E [R2], R3")
    )
    assert count(code.instructions, is_spill) == 2


def test_each_section_is_read_for_itself():
    text = listing(".L_x_0:", "NOP", "@P0 BRA `(.L_x_0)", name="a") + listing("EXIT", name="b")
    first, second = read_sass(text)
    assert (first.name, second.name) == ("a", "b")
    assert (len(first.loops()), len(second.loops())) == (1, 0)


def test_calls_and_returns_of_subroutines():
    lines = ["CALL.REL.NOINC `($__inner_0)", "EXIT", "$__inner_0:", "NOP", "RET.REL.NODEC R2 `(f)"]
    assert loops(*lines) == []


@pytest.mark.parametrize("jump", ["BRX R2 -0x10", "JMXU UR4 0x20"])
def test_a_jump_through_a_register_is_refused(jump):
    (code,) = read_sass(listing("NOP", jump, "EXIT"))
    with pytest.raises(SassError, match=r"at 0x10 of kernel jumps through a register"):
        code.loops()


@pytest.mark.parametrize("target", ["`(.L_x_9)", "0x40", ""])
def test_a_jump_to_nowhere_is_refused(target):
    (code,) = read_sass(listing(f"BRA {target}", ".L_x_0:", "EXIT"))
    with pytest.raises(SassError, match=r"goes to '.*', which is not in the listing"):
        code.loops()


@pytest.mark.parametrize("text", ["", "nvdisasm fatal   : no such file", ".section .text.f\nf:\n"])
def test_what_is_no_listing_is_refused(text):
    with pytest.raises(SassError, match=r"no machine code in this text; give the output"):
        read_sass(text)


def test_resources_are_those_of_the_greediest_function():
    text = (
        "Resource usage:\n Common:\n  GLOBAL:11 CONSTANT[4]:8\n"
        " Function f:\n  REG:255 STACK:56 SHARED:1024 LOCAL:0 CONSTANT[0]:800\n"
        " Function g:\n  REG:16 STACK:64 SHARED:0 LOCAL:8 CONSTANT[0]:800\n"
    )
    assert read_resources(text) == Resources(registers=255, stack=64, shared=1024)


@pytest.mark.parametrize("text", ["", " Function f:\n  REG:1 STACK:2\n", "REG:1 STACK:2 SHARED:3"])
def test_resources_that_are_not_told_are_refused(text):
    with pytest.raises(SassError, match=r"no resource usage in this text"):
        read_resources(text)


def followed(text):
    """The code of a text and its loops; nothing where it is refused as documented."""
    try:
        return [(code, code.loops()) for code in read_sass(text)]
    except SassError:
        return []


@given(st.text())
def test_any_text_is_read_or_refused(text):
    followed(text)
    with contextlib.suppress(SassError):
        read_resources(text)


LABELS = st.integers(0, 5).map(".L_x_{}".format)
LINES = st.one_of(
    LABELS.map("{}:".format),
    st.builds("{}{} {}`({})".format, st.sampled_from(["", "@P0 ", "@!UP1 "]),
              st.sampled_from(["BRA", "BRA.U", "CALL.REL.NOINC", "JMP"]),
              st.sampled_from(["", "!UP0, "]), LABELS),
    st.sampled_from(["EXIT", "@P0 EXIT", "RET.REL.NODEC R2 `(f)", "LDL R0, [R1]", "BRX R2 0x0",
                     "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], RZ, !UPT"]),
    st.text(max_size=8).map(lambda text: text.replace("\n", " ")),
)  # fmt: skip


@settings(deadline=2000)
@given(st.lists(LINES, max_size=60))
def test_any_control_flow_is_followed_or_refused(lines):
    for code, outermost in followed(listing(*lines)):
        for outer in outermost:
            for loop in outer.nest():
                assert set(loop.instructions) <= set(code.instructions)
                for inner in loop.inner:  # what is inside is smaller, so that nests end
                    assert len(inner.instructions) < len(loop.instructions)


@given(st.integers(1, 25).flatmap(
    lambda n: st.lists(st.lists(st.integers(0, n - 1), max_size=3), min_size=n, max_size=n)
))  # fmt: skip
def test_cycles_are_what_can_reach_itself(following):
    graph = dict(enumerate(following))

    def reached(node):
        seen, waiting = set(), list(graph[node])
        while waiting:
            here = waiting.pop()
            if here not in seen:
                seen.add(here)
                waiting.extend(graph[here])
        return seen

    reach = {node: reached(node) for node in graph}
    found = {cycle.nodes for cycle in nested(graph)}
    wanted = {
        frozenset(other for other in reach[node] if node in reach[other])
        for node in graph
        if node in reach[node]
    }
    assert found == wanted


def test_nests_without_end_are_cut_off_and_long_code_takes_no_time():
    n = 3000  # node i leads on, and back to the start of every loop that it ends
    graph = {i: [i + 1, n - 1 - i] if i >= n // 2 else [i + 1] for i in range(n - 1)}
    depth, level = 0, nested(graph | {n - 1: []})
    while level:
        depth, level = depth + 1, level[0].inner
    assert depth == DEEPEST
