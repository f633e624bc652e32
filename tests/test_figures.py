"""Each measured table of the documents has a module that makes it anew."""

from pathlib import Path

import pytest

from .bench.figures import placed, with_table


def test_every_table_has_its_module():
    assert placed(), "no document holds a measured table"
    for name in placed():
        module = Path(__file__).parent / "bench" / f"{name}.py"
        assert "def markdown(" in module.read_text(encoding="utf-8")


@pytest.mark.parametrize("table", ["| a |\n|---|\n| 1 |", r"\1 \g<2> $", ""])
def test_only_the_named_table_changes(table):
    text = (
        "a\n<!-- figures: one -->\nold\n<!-- end -->\nb\n<!-- figures: two -->\nold\n<!-- end -->\n"
    )
    new = with_table(text, "two", table)
    assert new.startswith(text[: text.index("two")])
    assert with_table(new, "two", "old") == text
