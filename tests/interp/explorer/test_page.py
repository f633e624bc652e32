import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headatlas.interp.errors import InputError
from headatlas.interp.explorer.explorer import Explorer, make_explorer
from headatlas.interp.explorer.facts import Card, Facts, HeadMap
from headatlas.interp.explorer.page import page_parts
from headatlas.interp.explorer.read import HeadData, Patterns
from headatlas.interp.heads import HeadId

from .unpacked import page_data

HEAD = HeadId("", 0, 0)
HOSTILE = ["</script><img src=x onerror=alert(1)>", "<!--<script>", "]]>", "@@SCRIPT@@", "\u2028"]


def page_of(texts, n=1):
    """A page whose every text is one of the given."""
    facts = Facts(
        title=texts[0],
        lines=tuple(texts),
        maps=(HeadMap(texts[0], texts[-1], {HEAD: texts[0]}, grades={HEAD: texts[-1]}),),
        cards={HEAD: Card(tuple(texts), " ".join(texts), (tuple(texts),))},
        columns=tuple(texts),
    )
    data = HeadData(HEAD, 0, ("eJwDAAAAAAE=",) * 3, (), (0.0, float("nan"), 1.0))
    return facts, Patterns(tuple(texts * n), 1, (data,), (((0,), (1,)),))


class Tags(HTMLParser):
    """Tags and their attributes, as a browser would find them."""

    def __init__(self, source):
        super().__init__(convert_charrefs=True)
        self.found, self.texts = [], []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, tuple(sorted(attrs))))

    def handle_data(self, data):
        self.texts.append(data)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=20) | st.sampled_from(HOSTILE), min_size=1, max_size=4))
def test_no_text_changes_the_markup(texts):
    source = "".join(page_parts(*page_of(texts), (HEAD,)))
    plain = "".join(page_parts(*page_of(["a"] * len(texts)), (HEAD,)))
    given_tags, plain_tags = Tags(source).found, Tags(plain).found
    assert given_tags == plain_tags
    data, _ = page_data(source)
    assert data["title"] == texts[0]
    assert data["tokens"] == data["columns"] == texts
    assert data["heads"][0]["rows"] == [texts]


def test_hostile_texts_are_escaped_in_the_data():
    source = "".join(page_parts(*page_of(HOSTILE), (HEAD,)))
    inside = re.search(r'id="data">(.*?)</script>', source, re.S)[1]
    assert not set(inside) & set("<>&")
    assert json.loads(inside)["tokens"] == HOSTILE


def test_the_policy_allows_this_script_and_no_network():
    source = "".join(page_parts(*page_of(["a"]), (HEAD,)))
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', source)[1])
    parts = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert parts["default-src"] == "'none'"
    for tag, name in (("script", "script-src"), ("style", "style-src")):
        text = re.search(rf"<{tag}>(.*?)</{tag}>", source, re.S)[1]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert parts[name] == f"'sha256-{digest}'"
    assert not re.search(r"https?://", source)


def test_the_script_never_reads_html():
    source = "".join(page_parts(*page_of(["a"]), (HEAD,)))
    for name in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
    ):
        assert name not in source


def test_values_that_are_no_numbers_are_blank():
    source = "".join(page_parts(*page_of(["a"]), (HEAD,)))
    maps = {own["name"]: own["values"] for own in page_data(source)[0]["maps"]}
    assert maps[":first_position"] == [None]
    assert maps[":previous_token"] == [1.0]


def test_sizes_are_those_of_the_file(tmp_path):
    page = make_explorer(*page_of(["é", "·"]), (HEAD,))
    path = page.save(tmp_path / "page.html")
    assert path.stat().st_size == page.size_bytes == len(page.html.encode())


def test_a_page_over_the_limit_is_refused():
    facts, patterns = page_of(["x" * 2**20] * 2)
    with pytest.raises(InputError, match=r"would be .* MiB, over max_mib = 1\. Name fewer heads"):
        make_explorer(facts, patterns, (HEAD,), max_mib=1)


def test_a_page_is_html_and_replaced_only_when_complete(tmp_path):
    page = make_explorer(*page_of(["a"]), (HEAD,))
    with pytest.raises(InputError, match=r"one \.html page"):
        page.save(tmp_path / "page.htm")
    (tmp_path / "page.html").write_text("before")
    broken = Explorer((*page.parts, "\ud800"), 1, 1, 1, True)
    with pytest.raises(UnicodeEncodeError):
        broken.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_notebook_shows_a_frame_without_rights_or_says_why_not():
    page = make_explorer(*page_of(["<b>"]), (HEAD,))
    tags = Tags(page._repr_html_()).found
    assert [tag for tag, _ in tags] == ["iframe"]
    frame = dict(tags[0][1])
    assert frame["sandbox"] == "allow-scripts"
    assert frame["srcdoc"] == page.html
    large = Explorer(("x" * 13 * 2**20,), 1, 1, 1, True)
    assert "13.0 MiB" in large._repr_html_()
    assert "iframe" not in large._repr_html_()


def contrast(one, other):
    def light(hex_colour):
        shares = [int(hex_colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [s / 12.92 if s <= 0.03928 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    lights = sorted((light(one), light(other)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def test_texts_contrast_with_what_is_behind_them():
    """WCAG 2.2: 4.5 for text, 3 for what is no text."""
    source = "".join(page_parts(*page_of(["a"]), (HEAD,)))
    themes = re.findall(r':root(?:\[data-theme="dark"\])? \{(.*?)\}', source, re.S)
    assert len(themes) == 2
    for theme in themes:
        colours = dict(re.findall(r"--(\w+): (#\w{6})", theme))
        for back in ("back", "panel", "chip"):
            assert contrast(colours["text"], colours[back]) >= 4.5
        for back in ("back", "panel"):
            assert contrast(colours["quiet"], colours[back]) >= 4.5
        for mark in ("focus", "mark", "quiet"):
            assert contrast(colours[mark], colours["back"]) >= 3
