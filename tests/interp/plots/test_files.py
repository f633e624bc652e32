"""Files of figures; a real browser draws one, where there is one."""

import os
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from headatlas.interp.errors import InputError
from headatlas.interp.plots import check_figure_suffix, files, plot_pattern, write_figure


@pytest.fixture
def figure():
    return plot_pattern(torch.eye(3), tokens=["$x$", "<b>", "a"], theme="dark")


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_without_a_browser_pictures_are_refused_before_anything_is_written(
    tmp_path, monkeypatch, figure, suffix
):
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "none"))
    with pytest.raises(InputError, match=r"Chrome or Chromium.*write \.html"):
        check_figure_suffix(f"a{suffix}")
    with pytest.raises(InputError, match="write_pattern_image"):
        write_figure(figure, tmp_path / f"a{suffix}")
    assert not list(tmp_path.iterdir())


def test_without_kaleido_pictures_are_refused(monkeypatch):
    monkeypatch.setattr(files.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="package kaleido"):
        check_figure_suffix("a.png")
    assert check_figure_suffix("a.html") == ".html"


def test_a_browser_that_fails_is_one_error(tmp_path, monkeypatch, figure):
    import kaleido

    def fail(*_, **__):
        raise RuntimeError("the tab\ncrashed")

    monkeypatch.setattr(files, "_can_draw", lambda: True)
    monkeypatch.setattr(kaleido, "write_fig_from_object_sync", fail)
    with pytest.raises(InputError, match=r"could not draw the figure: the tab crashed\. Write"):
        write_figure(figure, tmp_path / "a.svg")
    assert not list(tmp_path.iterdir())


@pytest.mark.browser
def test_a_browser_draws_without_a_network(tmp_path, monkeypatch, figure):
    # whatever would come from the network does not come
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for suffix in ("png", "svg", "pdf"):
        write_figure(figure, tmp_path / f"a.{suffix}")
    drawing = (tmp_path / "a.svg").read_text()
    assert drawing.startswith("<svg")
    assert "rgb(20, 23, 28)" in drawing  # the dark paper
    texts = ElementTree.fromstring(drawing).itertext()
    assert {"$x$", "<b>", "weight", "key (source)"} <= {text.strip() for text in texts}
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    pixels = np.asarray(Image.open(tmp_path / "a.png").convert("RGB")).reshape(-1, 3)
    colours = {tuple(pixel) for pixel in np.unique(pixels, axis=0).tolist()}
    assert {(0xF2, 0xFA, 0xFF), (0x3A, 0x3D, 0x42)} <= colours  # a weight of 1, and blank
    image = Image.open(tmp_path / "a.png").convert("RGB")
    assert image.size == (2 * figure.layout.width, 2 * figure.layout.height)
    assert image.getpixel((2, 2)) == (0x14, 0x17, 0x1C)  # the dark paper


def test_the_page_has_the_theme_and_no_formulas(tmp_path, figure):
    write_figure(figure, tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    assert '<body style="background:#14171c;margin:0">' in page
    assert '"typesetMath": false' in page
    assert os.listdir(tmp_path) == ["a.html"]  # noqa: PTH208


@pytest.mark.parametrize(
    "colour",
    [
        'var(--"><img src=x onerror=alert(1)>)',
        "var(--x);background-image:url(//example.org/a)",
        "var(--x)' onload='alert(1)",
    ],
)
def test_a_colour_of_the_figure_s_own_stays_a_colour(tmp_path, figure, colour):
    figure.update_layout(paper_bgcolor=colour)
    write_figure(figure, tmp_path / "a.html")
    assert "<body>" in (tmp_path / "a.html").read_text()  # plotly's own, without a style


@pytest.mark.parametrize("colour", ["rgba(1, 2, 3, 0.5)", "white", "#fff", "hsl(10, 5%, 5%)"])
def test_plain_colours_are_the_page_s(tmp_path, figure, colour):
    figure.update_layout(paper_bgcolor=colour)
    write_figure(figure, tmp_path / "a.html")
    assert f'<body style="background:{colour};margin:0">' in (tmp_path / "a.html").read_text()
