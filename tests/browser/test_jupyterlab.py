"""The notebook on patterns, run in JupyterLab by a reader with a browser."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import headatlas as ha

from .conftest import SHOTS

ROOT = Path(__file__).parents[2]
NAME = "02_attention_patterns.ipynb"
PATIENCE = 120_000  # ms: the notebook classifies the heads of the built-in model


@pytest.fixture
def lab(tmp_path):
    """The address of a JupyterLab that serves a copy of the notebook to this machine alone."""
    shutil.copy(ROOT / "notebooks" / NAME, tmp_path / NAME)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [
        "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
        "--IdentityProvider.token=", "--ServerApp.password=", f"--ServerApp.root_dir={tmp_path}",
        "--LabApp.news_url=", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # fmt: skip
    home = tmp_path / "home"
    settings = home / "config/lab/user-settings/@jupyterlab/notebook-extension"
    settings.mkdir(parents=True)
    # all cells in the page, not those in view alone
    every = json.dumps({"windowingMode": "none"})
    (settings / "tracker.jupyterlab-settings").write_text(every)
    paths = {"JUPYTER_CONFIG_DIR": str(home / "config"), "JUPYTER_DATA_DIR": str(home / "data"),
             "JUPYTER_RUNTIME_DIR": str(home / "run"), "PYTHONPATH": str(ROOT)}  # fmt: skip
    with (tmp_path / "lab.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *arguments],
            env={**os.environ, **paths}, stdout=log, stderr=log, cwd=tmp_path,
        )  # fmt: skip
        try:
            address = f"http://127.0.0.1:{port}"
            _wait_for(f"{address}/api/status", server, tmp_path / "lab.log")
            yield address
        finally:
            server.terminate()
            server.wait(20)


def _wait_for(url, server, log):
    for _ in range(240):
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.25)
    pytest.fail(log.read_text())


@pytest.fixture
def notebook(browser, lab):
    """The notebook after "Run All Cells", and what the page complained about or asked for."""
    context = browser.new_context(viewport={"width": 1400, "height": 1100})
    page, outside = context.new_page(), []

    def inside(route):
        if route.request.url.startswith((lab, "data:", "blob:")):
            route.continue_()
        else:
            outside.append(route.request.url)
            route.abort()

    context.route("**/*", inside)
    try:
        _run_all(page, f"{lab}/lab/tree/{NAME}?reset")
        yield page
    finally:
        SHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SHOTS / "jupyterlab.png")
        context.close()
    assert not outside


def _run_all(page, address):
    page.goto(address)
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=PATIENCE)
    # asked to run before its kernel is there, JupyterLab asks which one to take
    page.get_by_text("| Idle").wait_for(timeout=PATIENCE)
    page.get_by_text("Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    # the last cell of code has its number when all have run
    page.wait_for_function(
        """() => { const prompts = [...document.querySelectorAll(
               ".jp-CodeCell .jp-InputArea-prompt")].map((prompt) => prompt.textContent);
             return prompts.length > 5 && prompts.every((text) => /\\[\\d+\\]/.test(text)); }""",
        timeout=PATIENCE,
    )


def test_figures_and_the_explorer_live_in_jupyterlab(notebook):
    page = notebook
    assert page.locator(".jp-RenderedText[data-mime-type*=stderr]").all_text_contents() == []
    source = "".join(
        "".join(cell["source"])
        for cell in json.loads((ROOT / "notebooks" / NAME).read_text("utf-8"))["cells"]
    )
    text = re.search(r'^text = "(.*)"$', source, re.M)[1]
    model, tokenizer = ha.load("tiny")
    cache = ha.capture(model, tokenizer, text, names_filter="pattern")
    first = page.locator(".js-plotly-plot").first
    first.scroll_into_view_if_needed()
    first.locator(".heatmaplayer, canvas, image").first.wait_for(state="attached", timeout=PATIENCE)
    shown = first.evaluate(
        "(figure) => Array.from(figure._fullData[0].z, (row) => Array.from(row))"
    )
    true = cache["pattern", 1][0, 1].double().numpy()
    lower = np.tril(np.ones_like(true, bool))
    np.testing.assert_allclose(np.array(shown, float)[lower], true[lower], atol=1e-9)
    page.mouse.move(0, 0)
    box = first.locator(".nsewdrag").first.bounding_box()
    n = len(true)
    page.mouse.move(box["x"] + 3.5 / n * box["width"], box["y"] + 4.5 / n * box["height"])
    told = first.locator(".hoverlayer").text_content(timeout=PATIENCE)
    page.wait_for_function(
        "(figure) => figure.querySelector('.hoverlayer').textContent.includes('weight')",
        arg=first.element_handle(),
    )
    told = first.locator(".hoverlayer").text_content()
    assert f"{true[4, 3]:.4f}" in told

    frame = page.frame_locator(".jp-OutputArea iframe[title='Headatlas explorer']")
    page.locator(".jp-OutputArea iframe").last.scroll_into_view_if_needed()
    frame.locator("#t4").click(timeout=PATIENCE)
    lines = frame.locator("#lists > div").first.locator("li").all_inner_texts()
    weights = cache["pattern", 0][0, 0, 4]
    best = int(weights.argmax())
    assert lines[0].split()[1] == str(best)
    assert abs(float(lines[0].split()[0]) - weights[best].item()) < 1e-4
