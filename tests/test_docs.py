"""The documents say what the program does, and the site asks nothing of other hosts."""

import doctest
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headatlas as ha
from headatlas.circuits.words.kinds import WORD_KINDS
from headatlas.circuits.words.syntax import DIRECTIONS, VOITA_MARGIN, syntactic_kind

from .bench import coverage
from .conftest import FAMILIES
from .test_readme import run_snippets

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


KINDS = (DOCS / "kinds.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^### `([^`]+)`\n(.*?)(?=^##|\Z)", KINDS, re.MULTILINE | re.DOTALL))
NULLS = {"uniform": "every visible key alike", "profile": "the head's own habits of position"}


class TestKinds:
    """docs/kinds.md against the registry, word for word."""

    def test_it_has_every_kind_and_no_other(self):
        syntactic = [f"syntactic.RELATION.{way}" for way in DIRECTIONS]
        assert list(SECTIONS) == [*ha.KINDS, *syntactic, *WORD_KINDS]

    @pytest.mark.parametrize("name", list(SECTIONS))
    def test_each_has_a_formula_and_a_source(self, name):
        body = SECTIONS[name]
        assert re.search(r"^    score = ", body, re.MULTILINE)
        years = re.findall(r"([A-Z]\w+) (?:and \w+ )?(\d{4})", body.split("- Source:")[1])
        references = one_line(KINDS.split("References:")[1])
        for author, year in years:
            assert re.search(rf"{author} (et al\. |and \w+ )?{year}", references), (author, year)
        assert years

    @pytest.mark.parametrize("kind", ha.KINDS.values(), ids=list(ha.KINDS))
    def test_kinds_on_tokens(self, kind):
        body = one_line(SECTIONS[kind.name])
        assert body.startswith(kind.definition)
        prompts = ", ".join(kind.prompts)
        assert f"By chance: {NULLS[kind.null]}. Prompts: {prompts}." in body
        legacy = kind.legacy.rule if kind.legacy else None
        assert ("Legacy verdict:" in body) == (legacy is not None)
        if legacy:
            assert f"Legacy verdict: {legacy}." in body
        assert ("Removal should harm:" in body) == (kind.behaviour is not None)
        if kind.behaviour:
            harmed = kind.behaviour.definition
            assert f"Removal should harm: {harmed[0].lower()}{harmed[1:]}" in body

    @pytest.mark.parametrize("way", DIRECTIONS)
    def test_syntactic_kinds(self, way):
        body = one_line(SECTIONS[f"syntactic.RELATION.{way}"])
        assert body.startswith(syntactic_kind("nsubj", way).definition.replace("nsubj", "RELATION"))

    def test_the_margin_of_syntactic_kinds(self):
        assert f"Voita 2019: by {VOITA_MARGIN * 100:.0f} points" in one_line(KINDS)

    @pytest.mark.parametrize("kind", WORD_KINDS.values(), ids=list(WORD_KINDS))
    def test_other_kinds_between_words(self, kind):
        body = one_line(SECTIONS[kind.name])
        assert body.startswith(kind.definition)
        assert re.findall(r"\(`(\w+)`\)", body) == list(kind.guesses)


class TestCoverage:
    PAGE = (DOCS / "coverage.md").read_text("utf-8")

    @pytest.mark.parametrize("family", FAMILIES)
    def test_the_table_has_every_family_as_it_is(self, family):
        assert coverage.layout(family) in self.PAGE.splitlines()

    @pytest.mark.parametrize(
        ("family", "sort"), [("olmo2", "decoder"), ("bloom", "decoder"), ("mamba", "decoder")]
    )
    def test_the_sweep_says_what_comes_out(self, family, sort):
        """Three families of the long table, tried again."""
        found = coverage.tried(family, sort)
        (line,) = [line for line in self.PAGE.splitlines() if f" {family}," in line]
        assert found.outcome == ("hooked" if ", hooked (" in line else "refused")
        assert found.outcome == "hooked" or f"refused: {coverage.reason(found.reason)} (" in line

    def test_the_counts_add_up(self):
        total, hooked, refused, not_tried = map(
            int,
            re.search(
                r"(\d+) families, .*: (\d+) hooked .*, (\d+) refused, (\d+) not tried", self.PAGE
            ).groups(),
        )
        assert total == hooked + refused + not_tried
        listed = re.findall(r"^\| ([^|]*)\((\d+)\) \| (.*) \|$", self.PAGE, re.MULTILINE)
        assert sum(int(count) for _, count, _ in listed) == total
        for _, count, names in listed:
            assert len(names.split(", ")) == int(count)


def test_the_first_page_says_what_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_snippets(DOCS / "index.md")
    assert str(names["head"]) in names["atlas"]
    assert names["figure"].data
    assert (tmp_path / "explorer.html").stat().st_size > 10_000
    assert "causal" in names["atlas"].tables


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
        ],
    )
    def test_what_loads_nothing_is_not(self, of_site, page):
        assert of_site("offline_check").outside_resources(page) == []


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
