"""The page on images and sounds does what it says."""

from pathlib import Path

from .test_readme import run_snippets

PAGE = Path(__file__).parent.parent / "docs" / "images.md"


def test_its_snippets_run():
    names = run_snippets(PAGE)
    assert names["cache"]["pattern", 0].shape == (16, 4, 65, 65)
    assert names["cache"].tokens[0][:3] == ["0", "(0,0)", "(0,1)"]
    assert names["picture"].shape == (8, 8)
    assert len(names["atlas"]) == 8
