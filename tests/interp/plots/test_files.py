"""Files of figures; a real browser draws one, where there is one."""

import os

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
    kaleido = pytest.importorskip("kaleido")

    def fail(*_, **__):
        raise RuntimeError("the tab\ncrashed")

    monkeypatch.setattr(files, "_can_draw", lambda: True)
    monkeypatch.setattr(kaleido, "write_fig_from_object_sync", fail)
    with pytest.raises(InputError, match=r"could not draw the figure: the tab crashed\. Write"):
        write_figure(figure, tmp_path / "a.svg")
    assert not list(tmp_path.iterdir())


def test_a_browser_draws(tmp_path, figure):
    if not files._can_draw():
        pytest.skip("no kaleido, or no browser")
    write_figure(figure, tmp_path / "a.png")
    image = Image.open(tmp_path / "a.png").convert("RGB")
    assert image.size == (2 * figure.layout.width, 2 * figure.layout.height)
    assert image.getpixel((2, 2)) == (0x14, 0x17, 0x1C)  # the dark paper


def test_the_page_has_the_theme_and_no_formulas(tmp_path, figure):
    write_figure(figure, tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    assert '<body style="background:#14171c;margin:0">' in page
    assert '"typesetMath": false' in page
    assert os.listdir(tmp_path) == ["a.html"]  # noqa: PTH208
