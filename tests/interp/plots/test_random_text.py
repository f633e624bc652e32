"""Random Unicode in every text of every plot."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from headatlas.interp.errors import InputError
from headatlas.interp.plots import (
    pattern_image,
    plot_composition,
    plot_difference,
    plot_head_map,
    plot_offsets,
    plot_pattern,
    plot_split,
)
from headatlas.interp.plots.canvas import Canvas, Lettering
from headatlas.interp.plots.lines import Line, plot_lines
from headatlas.interp.plots.style import DARK, readable
from headatlas.interp.visible import visible_all
from tests.interp.plots.made import WORDS, assert_safe, causal

TOKENS = st.lists(WORDS, min_size=1, max_size=4)
few = settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.generate])


@few
@given(tokens=TOKENS, name=WORDS, title=WORDS)
def test_patterns(tokens, name, title):
    pattern = causal(len(tokens), len(tokens))
    options = {"tokens": tokens, "heads": [name], "title": title}
    assert_safe(plot_pattern(pattern, **options))
    assert_safe(plot_difference(pattern, pattern, **options))
    figure = plot_pattern(pattern, **options)
    assert len(figure.layout.xaxis.ticktext) == len(tokens)
    assert figure.layout.xaxis.tickvals == tuple(range(len(tokens)))


@few
@given(tokens=TOKENS, name=WORDS, title=WORDS)
def test_pictures(tokens, name, title):
    pattern, written = causal(len(tokens), len(tokens)), []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Canvas, "text", lambda self, x, y, text, **_: written.append(text))
        pattern_image(pattern, tokens=tokens, heads=[name], title=title)
    assert all(readable(text) == text for text in written)  # nothing hidden is left
    letters = Lettering()
    for label in [*visible_all(tokens), name, *title.split()]:
        first = letters.drawable(readable(label)[:6].strip())
        assert any(first in text for text in written)
    # what is drawn is drawn without an error, and differs from a picture without it
    bare = pattern_image(pattern)
    assert pattern_image(pattern, heads=["x" + name]).tobytes() != bare.tobytes()


@few
@given(names=st.lists(WORDS, min_size=2, max_size=2), title=WORDS)
def test_offsets(names, title):
    figure = plot_offsets(causal(2, 5, 5), heads=names, title=title)
    assert_safe(figure)
    assert len(figure.data) == 2


@few
@given(tokens=TOKENS, what=WORDS, title=WORDS)
def test_splits(tokens, what, title):
    vectors = np.ones((len(tokens), 2, 3))
    assert_safe(plot_split(vectors, tokens=tokens, what=what, title=title))
    assert_safe(plot_split(vectors, what=what, heads=[what, title]))


@few
@given(words=st.lists(WORDS, min_size=4, max_size=4), value=WORDS, title=WORDS, site=WORDS)
def test_head_maps(words, value, title, site):
    # as objects: strings that are no UTF-8 fit in no other column
    sites, kinds = (pd.Series(texts, dtype=object) for texts in ([site] * 4, words))
    numbers = pd.DataFrame({"layer": [0, 0, 1, 1], "head": [0, 1, 0, 1], "site": sites})
    assert_safe(plot_head_map(np.ones((2, 2)), value=value, title=title))
    figure = plot_head_map(numbers.assign(does=kinds), value="does", title=title)
    assert_safe(figure)
    assert len(figure.layout.coloraxis.colorbar.ticktext) == len(set(words))


@few
@given(kind=WORDS, title=WORDS)
def test_composition(kind, title):
    rows = pd.DataFrame([{"source": "L0H0", "target": "L1H1", "z": 1.0}])
    rows["kind"] = pd.Series([kind], dtype=object)
    assert_safe(plot_composition(rows, kind=kind, title=title))


@few
@given(names=st.lists(WORDS, min_size=1, max_size=10), x=WORDS, y=WORDS, title=WORDS)
def test_lines(names, x, y, title):
    points = np.arange(3.0)
    figure = plot_lines(
        [Line(name, points, points) for name in names], x=x, y=y, title=title, theme=DARK
    )
    assert_safe(figure)
    assert len(figure.data) == len(names)


def test_any_64_lines_differ_in_colour_mark_or_dash():
    points = np.arange(3.0)
    figure = plot_lines(
        [Line(str(i), points, points) for i in range(64)], x="x", y="y", title=None, theme=DARK
    )
    looks = {(one.line.color, one.line.dash, one.marker.symbol) for one in figure.data}
    assert len(looks) == 64
    marks = {(one.line.color, one.marker.symbol) for one in figure.data[:56]}
    assert len(marks) == 56  # dashes are hard to tell apart


@pytest.mark.parametrize(
    "draw",
    [
        lambda **options: plot_pattern(causal(2, 2), **options),
        lambda **options: pattern_image(causal(2, 2), **options),
        lambda **options: plot_difference(causal(2, 2), causal(2, 2), **options),
        lambda **options: plot_offsets(causal(2, 2), **options),
        lambda **options: plot_split(np.ones((2, 1, 2)), **options),
    ],
)
def test_texts_that_are_none_are_refused(draw, as_users_call):
    with pytest.raises(InputError, match="title is a text; got 5"):
        draw(title=5)
    with pytest.raises(InputError, match="heads= is one name per head; got 5"):
        draw(heads=5)


def test_further_texts_that_are_none_are_refused(as_users_call):
    with pytest.raises(InputError, match="what is a text; got 5"):
        plot_split(np.ones((2, 1, 2)), what=5)
    with pytest.raises(InputError, match="one string per position"):
        plot_pattern(causal(2, 2), tokens=5)
    with pytest.raises(InputError, match="title is a text; got 5"):
        plot_head_map(np.ones((2, 2)), title=5)
