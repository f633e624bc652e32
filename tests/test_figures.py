"""Each measured figure of the documents has a module that makes it anew."""

from pathlib import Path

import pytest

from .bench.figures import placed, with_figures


def test_every_figure_has_its_module():
    assert placed(), "no document holds a measured figure"
    for name, parts in placed().items():
        module = (Path(__file__).parent / "bench" / f"{name}.py").read_text(encoding="utf-8")
        assert "def markdown(" in module
        for part in parts:
            assert not part or f'"{part}": ' in module, f"{name} makes no {part}"


@pytest.mark.parametrize("table", ["| a |\n|---|\n| 1 |", r"\1 \g<2> $", ""])
def test_only_the_named_figures_change(table):
    text = (
        "a\n<!-- figures: one -->\nold\n<!-- end -->\nb\n<!-- figures: two -->\nold\n<!-- end -->\n"
        "in <!-- figures: two.part -->old<!-- end --> prose"
    )
    new = with_figures(text, "two", {"": table})
    assert new.startswith(text[: text.index("two")])
    assert new.endswith(text[text.index("in <!--") :])
    assert with_figures(new, "two", {"": "old"}) == text
    part = with_figures(text, "two", {"part": "new"})
    assert part == text.replace("-->old<!--", "-->new<!--")
