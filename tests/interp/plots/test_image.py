import numpy as np
import pytest
import torch
from PIL import Image

from headatlas.interp.errors import InputError
from headatlas.interp.plots import pattern_image, write_pattern_image
from headatlas.interp.plots.canvas import Canvas, Lettering, shades_of
from headatlas.interp.plots.style import DARK, LIGHT
from tests.interp.plots.made import causal


def cells_of(image, n, cell, theme):
    """The colours in the middle of the cells: the panel ends right above the labels."""
    pixels = np.asarray(image)
    blank = np.array([int(theme.blank[i : i + 2], 16) for i in (1, 3, 5)])
    rows, columns = np.nonzero((pixels == blank).all(-1))
    top, right = rows.min(), columns.max() + 1  # of the cell (0, n − 1), which is blank
    left = right - n * cell
    middle = np.arange(n) * cell + cell // 2
    return pixels[top + middle][:, left + middle]


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_cells_have_the_colour_of_their_weight(theme):
    pattern = causal(6, 6)
    image = pattern_image(pattern, theme=theme.name, heads=["L0H0"], title="a title")
    found, shades = cells_of(image, 6, 16, theme), shades_of(theme.rising)
    expected = shades[np.round(pattern.double().numpy() * 255).astype(int)]
    lower = np.tril(np.ones((6, 6), bool))
    assert (found[lower] == expected[lower]).all()
    blank = [int(theme.blank[i : i + 2], 16) for i in (1, 3, 5)]
    assert (found[~lower] == blank).all()


def test_a_long_pattern_has_a_pixel_per_token():
    pattern = causal(900, 900)
    image = pattern_image(pattern, tokens=[f"t{i}" for i in range(900)], max_weight=0.5)
    found = cells_of(image, 900, 1, LIGHT)
    shade = round(min(1.0, pattern[700, 3].item() / 0.5) * 255)
    assert found[700, 3].tolist() == shades_of(LIGHT.rising)[shade].tolist()


def test_labels_make_room():
    short = pattern_image(causal(5, 5), tokens=["a"] * 5)
    long = pattern_image(causal(5, 5), tokens=["Ġantidisestab"] * 5)
    assert long.width > short.width
    assert long.height > short.height
    several = pattern_image(causal(5, 5, 5), heads=list("abcde"))
    assert several.width > short.width
    assert several.height > short.height


def test_a_picture_is_written_all_at_once(tmp_path):
    write_pattern_image(torch.eye(3), tmp_path / "a.PNG", title="t")
    assert Image.open(tmp_path / "a.PNG").size == pattern_image(torch.eye(3), title="t").size
    with pytest.raises(InputError, match=r"written as \.png; got"):
        write_pattern_image(torch.eye(3), tmp_path / "a.jpg")
    with pytest.raises(InputError, match="folder"):
        write_pattern_image(torch.eye(3), tmp_path / "none" / "a.png")
    assert [path.name for path in tmp_path.iterdir()] == ["a.PNG"]


def test_what_a_font_lacks_shows_as_its_code(tmp_path, monkeypatch):
    monkeypatch.setattr("headatlas.interp.plots.canvas._WIDE_SETS", ())
    lettering = Lettering()
    assert lettering.drawable("a中⏎ b") == "a<U+4E2D>\\n b"
    (tmp_path / "x.ttf").write_bytes(b"no font")
    for path in (tmp_path / "x.ttf", tmp_path / "none.ttf"):
        with pytest.raises(InputError, match="is no font that can be read"):
            pattern_image(torch.eye(2), font=path)


@pytest.mark.parametrize(
    ("pattern", "options", "part"),
    [
        (torch.full((2, 2), 0.9), {}, "must sum to 1"),
        (torch.eye(2), {"tokens": ["a"]}, "2 queries and tokens= has 1|2 keys and tokens= has 1"),
        (torch.eye(2), {"heads": ["a", "b"]}, "1 heads and heads= names 2"),
        (torch.eye(2), {"max_weight": 0.0}, "max_weight"),
        (torch.eye(2), {"theme": "sepia"}, "'light' or 'dark'"),
    ],
)
def test_what_is_no_pattern_is_refused(pattern, options, part):
    with pytest.raises(InputError, match=part):
        pattern_image(pattern, **options)


def test_rows_are_blank_after_their_own_keys():
    image = pattern_image(causal(6, 6)[[1, 4]], rows=[1, 4])
    pixels = np.asarray(image)
    blank = np.array([int(LIGHT.blank[i : i + 2], 16) for i in (1, 3, 5)])
    assert (pixels == blank).all(-1).sum() % 5 == 0
    assert (pixels == blank).all(-1).sum() > 0
    whole = pattern_image(causal(6, 6)[[1, 4]])  # as the last two of six
    assert (np.asarray(whole) == blank).all(-1).sum() * 5 == (pixels == blank).all(-1).sum()


@pytest.fixture
def written(monkeypatch):
    """What is written into pictures: its text, and the box it takes."""
    found = []
    write = Canvas.text

    def text(self, x, y, text, *, anchor="la", upright=False):
        sizes = [round(self._lettering.font.getlength(text)), 12]
        wide, high = sizes[::-1] if upright else sizes
        left = x - {"l": 0, "m": wide // 2, "r": wide}[anchor[0]]
        top = y - {"a": 0, "m": high // 2, "b": high}[anchor[1]]
        found.append((text, (left, top, left + wide, top + high)))
        write(self, x, y, text, anchor=anchor, upright=upright)

    monkeypatch.setattr(Canvas, "text", text)
    return found


@pytest.mark.parametrize("shape", [(64, 2, 2), (1, 1, 100), (1, 1, 1), (4, 12, 12), (9, 3, 40)])
def test_texts_stand_in_the_picture_and_apart(written, shape):
    heads = [f"L10H{i}" for i in range(shape[0])]
    image = pattern_image(causal(*shape), heads=heads, title="a title of several words")
    texts = [text for text, _ in written]
    assert texts.count("key (source)") == texts.count("query (destination)") == 1
    assert {*heads, "weight", "0", "0.25", "1"} <= set(texts)
    for text, (left, top, right, bottom) in written:
        assert left >= 0, text
        assert top >= 0, text
        assert right <= image.width, text
        assert bottom <= image.height, text
    names = [box for text, box in written if text in heads]
    for place, (left, top, right, bottom) in enumerate(names):
        for other in names[:place]:
            apart = right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
            assert apart


def test_titles_that_are_cut_say_so(written):
    pattern_image(torch.eye(2), title="word " * 200)
    lines = [text for text, _ in written if text.startswith("word")]
    assert len(lines) == 4
    assert lines[-1].endswith(("…", "..."))


def test_names_that_the_font_lacks_show_as_codes(written):
    pattern_image(torch.eye(2), heads=["a\U0010fffdb"])
    assert "a<U+10FFFD>b" in [text for text, _ in written]
