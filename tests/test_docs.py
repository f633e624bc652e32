"""The documents say what the program does, and the site asks nothing of other hosts."""

import doctest
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import headatlas as ha

from .test_readme import blocks, run_snippets

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SITE = DOCS / "site"


@pytest.fixture
def of_site(monkeypatch):
    """Import a module of docs/site by its name."""
    monkeypatch.syspath_prepend(str(SITE))
    return __import__


def one_line(text):
    return " ".join(text.split())


def test_the_first_page_names_every_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    (told,) = re.findall(
        r"^Extras: (.*?)\. The", (DOCS / "index.md").read_text("utf-8"), re.M | re.S
    )
    named = set(re.findall(r"`([a-z]+)`", told))
    assert named == set(extras) - {"test", "docs"}  # those are the project's own


def test_the_first_page_says_what_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_snippets(DOCS / "index.md")
    assert str(names["head"]) in names["atlas"]
    assert names["figure"].data
    assert (tmp_path / "explorer.html").stat().st_size > 10_000
    assert "causal" in names["atlas"].tables


def test_the_first_page_names_commands_that_run(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    _, shell = blocks("sh", DOCS / "index.md")  # the first one installs
    lines = [shlex.split(line, comments=True) for line in shell.splitlines()]
    assert [line[:2] for line in lines] == [
        ["headatlas", name] for name in ("classify", "plot", "ablate", "explore")
    ]
    for _, *arguments in lines:
        done = command(*arguments)
        assert done.status == 0, done.error
    assert {path.name for path in tmp_path.iterdir()} == {"atlas.json", "pattern.html", "page.html"}


class TestNavigation:
    TEXT = (ROOT / "mkdocs.yml").read_text("utf-8")

    def test_every_page_is_in_it_once(self):
        named = re.findall(r": ([\w/]+\.md)$", self.TEXT, re.MULTILINE)
        pages = [path.name for path in DOCS.glob("*.md")]
        notebooks = [f"notebooks/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")]
        api = [f"api/{room}.md" for room in ("circuits", "interp", "kernels")]
        assert sorted(named) == sorted([*pages, *notebooks, *api])

    def test_no_other_host_is_asked(self):
        assert "font: false" in self.TEXT
        assert not re.search(r"https?://", self.TEXT)

    def test_nothing_for_which_the_theme_would_ask_one(self, of_site):
        """See `THEME_LOADS`: diagrams, and a repository's counts."""
        assert len(of_site("offline_check").THEME_LOADS) == 3
        assert not re.search(r"repo_url|mermaid|^  - offline", self.TEXT, re.MULTILINE)

    def test_it_says_that_search_needs_a_server(self):
        comment = one_line(self.TEXT.split("use_directory_urls")[0].replace("# ", ""))
        assert "The search does not" in comment


class TestOutsideResources:
    @pytest.mark.parametrize(
        "page",
        [
            '<script src="https://a.b/c.js"></script>',
            '<script src="//a.b/c.js"></script>',
            '<link rel="stylesheet" href="HTTPS://a.b/c.css">',
            '<link rel="preconnect" href="https://a.b">',
            '<img srcset="x.png 1x, https://a.b/c.png 2x">',
            '<iframe srcdoc="&lt;script src=&quot;https://a.b/c.js&quot;&gt;&lt;/script&gt;">',
            "<style>@import 'https://a.b/c.css';</style>",
            '<p style="background: url(https://a.b/c.png)">',
            '<script>load("https://a.b/c.js")</script>',
            "<script type='module'>import x from '//a.b/c.js'</script>",
        ],
    )
    def test_are_found(self, of_site, page):
        assert len(of_site("offline_check").outside_resources(page)) == 1

    @pytest.mark.parametrize(
        "page",
        [
            '<a href="https://a.b/c.js">a</a>',
            '<script src="../assets/c.js"></script>',
            '<link rel="canonical" href="https://a.b/c.html">',
            "<pre>&lt;script src=&quot;https://a.b/c.js&quot;&gt;</pre>",
            '<img src="data:image/png;base64,AAAA">',
            '<script type="application/json">{"x": "url(https://a.b)"}</script>',
            '<script type="application/json">{"x": "https://a.b/c.js"}</script>',
            "<script>// see https://a.b/c\nlet ns = 'http://www.w3.org/2000/svg'</script>",
        ],
    )
    def test_what_loads_nothing_is_not(self, of_site, page):
        assert of_site("offline_check").outside_resources(page) == []

    @pytest.mark.parametrize(
        "script",
        [
            'fetch("https://a.b/c.json")',
            "import('//a.b/c.js')",
            "s.src = `https://api.a.b/repos/${e}`",
            'new WebSocket("wss://a.b")',
        ],
    )
    def test_in_a_script(self, of_site, script):
        assert len(of_site("offline_check").script_addresses(script)) == 1

    @pytest.mark.parametrize(
        "script", ["/* from https://a.b/c */", 'warn("see https://a.b/c.js")', 'x = "a//b"', "'//'"]
    )
    def test_what_a_script_only_says(self, of_site, script):
        assert of_site("offline_check").script_addresses(script) == []

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("page.html", '<script src="https://a.b/c.js"></script>'),
            ("own.css", "@import 'https://a.b/c.css';"),
            ("assets/own.js", 'fetch("https://a.b")'),
            ("assets/own.js", 'load("https://unpkg.com/mermaid@11/x.js")'),  # not the theme's own
            ("assets/javascripts/bundle.js", 'load("https://unpkg.com/other")'),
        ],
    )
    def test_a_site_with_one_is_refused(self, of_site, tmp_path, name, content):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, "utf-8")
        hooks = pytest.importorskip("mkdocs") and of_site("hooks")
        with pytest.raises(hooks.PluginError, match=re.escape(f"{name}: https://")):
            hooks.on_post_build(config=SimpleNamespace(site_dir=str(tmp_path)))
        file.write_text("", "utf-8")
        hooks.on_post_build(config=SimpleNamespace(site_dir=str(tmp_path)))


class TestNotebookPages:
    HOSTILE = '</script></pre><img src=x onerror="alert(1)"> ‮ ```\n# no title'

    def page(self, of_site, tmp_path, *outputs):
        cells = [
            {"cell_type": "markdown", "source": ["# Title"]},
            {"cell_type": "code", "source": ["1 + 1"], "outputs": list(outputs)},
        ]
        path = tmp_path / "own.ipynb"
        path.write_text(json.dumps({"cells": cells}), "utf-8")
        return of_site("notebook_pages").read_page(path)

    def test_hostile_outputs_stay_text(self, of_site, tmp_path):
        figure = {"data": [{"type": "bar", "text": [self.HOSTILE]}], "layout": {}}
        page = self.page(
            of_site,
            tmp_path,
            {"output_type": "stream", "name": "stdout", "text": [self.HOSTILE]},
            {
                "output_type": "execute_result",
                "data": {"application/vnd.plotly.v1+json": figure, "text/html": "not shown"},
            },
        )
        filled = page.filled(page.markdown)
        assert self.HOSTILE not in page.markdown
        assert "<img" not in filled
        assert "not shown" not in filled
        (data,) = re.findall(r'<script type="application/json">(.*?)</script>', filled)
        assert json.loads(data)["data"][0]["text"] == [self.HOSTILE]
        assert page.has_figures

    def test_warnings_are_left_out_and_errors_refused(self, of_site, tmp_path):
        noise = {"output_type": "stream", "name": "stderr", "text": ["a warning"]}
        page = self.page(of_site, tmp_path, noise)
        assert page.outputs == ()
        assert not page.has_figures
        with pytest.raises(ValueError, match="shows no output of type error"):
            self.page(of_site, tmp_path, {"output_type": "error", "ename": "ValueError"})

    @pytest.mark.parametrize(
        ("trace", "layout"),
        [
            ({"type": "scattermap"}, {}),
            ({"type": "choropleth"}, {}),
            ({"type": "scattergeo"}, {}),
            ({"type": "densitymapbox"}, {}),
            ({"type": "image", "source": "https://a.b/c.png"}, {}),
            ({"type": "bar"}, {"images": [{"source": "//a.b/c.png"}]}),
        ],
    )
    def test_a_figure_that_asks_another_host_is_refused(self, of_site, tmp_path, trace, layout):
        def shown(figure):
            data = {"application/vnd.plotly.v1+json": figure}
            return self.page(of_site, tmp_path, {"output_type": "display_data", "data": data})

        with pytest.raises(ValueError, match="would ask other hosts"):
            shown({"data": [trace], "layout": layout})
        assert shown({"data": [{"type": "heatmap"}, {}], "layout": {}}).has_figures

    def test_a_lost_place_is_noticed(self, of_site, tmp_path):
        page = self.page(
            of_site, tmp_path, {"output_type": "stream", "name": "stdout", "text": ["2"]}
        )
        with pytest.raises(ValueError, match="output 0 has no place"):
            page.filled("<p>something else</p>")

    def test_a_changed_notebook_is_not_current(self, of_site, tmp_path):
        runs = of_site("notebook_runs")
        own, copy = tmp_path / "own.ipynb", tmp_path / "copy.ipynb"
        cells = [{"cell_type": "code", "source": ["a = 1\n", "a"]}]
        own.write_text(json.dumps({"cells": cells}), "utf-8")
        assert runs.why_not_current(own, copy) == "is not executed"
        copy.write_text(json.dumps({"cells": [{**cells[0], "source": "a = 1\na"}]}), "utf-8")
        assert runs.why_not_current(own, copy) is None
        copy.write_text(json.dumps({"cells": [{**cells[0], "source": "a = 2\na"}]}), "utf-8")
        assert runs.why_not_current(own, copy) == "has changed since it was executed"


@pytest.mark.parametrize("module", ["offline_check", "api_pages"])
def test_examples_of_the_sites_own_code(of_site, module):
    done = doctest.testmod(of_site(module))
    assert done.attempted
    assert not done.failed


def test_the_api_has_every_name_of_the_front_door(of_site):
    pages = "\n".join(text for _, text in of_site("api_pages").api_pages())
    assert sorted(re.findall(r"heading: ha\.(\w+)", pages)) == sorted(ha._HOMES)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built strictly into another folder, from the notebooks that ran last (`make notebooks`)."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.notebooks
class TestBuiltSite:
    def test_pages(self, site):
        names = {str(path.relative_to(site)) for path in site.rglob("*.html")}
        assert {"index.html", "kinds.html", "coverage.html", "api/circuits.html"} <= names
        assert len([name for name in names if name.startswith("notebooks/")]) == 6

    def test_an_entry_of_the_api(self, site):
        page = (site / "api" / "circuits.html").read_text("utf-8")
        assert 'id="headatlas.circuits.classify.classify"' in page
        for part in ("Parameters:", "Returns:", "Raises:", "Examples:"):
            assert part in page

    def test_figures_share_one_copy_of_what_draws_them(self, site):
        (script,) = site.rglob("plotly.min.js")
        assert script.stat().st_size > 1_000_000
        page = (site / "notebooks" / "02_attention_patterns.html").read_text("utf-8")
        assert page.count('class="output output-figure"') == 6
        assert page.count("../assets/plotly.min.js") == 1
        assert len(page) < 5_000_000
