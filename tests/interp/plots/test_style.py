import colorsys

import numpy as np
import pytest
from plotly.graph_objects import Figure

from headatlas.interp.plots.style import DARK, LIGHT, escaped, lay_out, named, readable, title_lines


def luminance(colour):
    """Relative luminance of sRGB (WCAG 2.1)."""
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_text_stands_out_and_lightness_runs_one_way(theme):
    assert contrast(theme.text, theme.paper) > 7
    steps = np.diff([luminance(colour) for colour in theme.rising])
    assert (steps > 0).all() or (steps < 0).all()
    assert contrast(theme.rising[0], theme.blank) > 1.1  # zero is not blank
    low, middle, high = theme.diverging[0], theme.diverging[2], theme.diverging[4]
    for end in (low, high):
        assert contrast(end, middle) > 3
    hues = [colorsys.rgb_to_hls(*(int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)))[0]
            for c in (low, high)]  # fmt: skip
    assert abs(hues[0] - hues[1]) > 0.4  # blue and orange
    assert len(set(theme.colours)) == 8
    for colour in theme.colours:
        assert contrast(colour, theme.paper) > 2


def test_long_titles_are_broken_and_the_figure_grows():
    figure = Figure()
    lay_out(figure, LIGHT, "word " * 40, size=(400, 300), margin=(1, 1, 60, 1))
    lines = figure.layout.title.text.split("<br>")
    assert len(lines) == 4
    assert lines[-1].endswith("…")
    assert max(map(len, lines)) * 8 <= 400
    assert figure.layout.height == 300 + 3 * 18
    assert title_lines(None, 400) == title_lines(" \n", 400) == []


def test_texts_are_safe():
    assert escaped("%{x} & <i>$a$</i>") == "&#37;{x} &amp; &lt;i&gt;&#36;a&#36;&lt;/i&gt;"
    assert readable("a\u202e\x00\ud800 é") == "a<U+202E><U+0000><U+D800> é"
    assert named("x" * 100) == "x" * 59 + "…"
