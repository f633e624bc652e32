"""Texts made to break a page come out as the text they are."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

import headatlas as ha
from headatlas.interp.explorer.explorer import make_explorer
from headatlas.interp.explorer.facts import Card, Facts, HeadMap
from headatlas.interp.explorer.read import Patterns, read_patterns
from headatlas.interp.visible import visible_all

HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>alert(1)//",
    "\u202egnp.exe",
    "\u05d0\u05d1\u05d2 \u0627\u0644",
    "\U0001f469\u200d\U0001f4bb",
    "a\u200bb\ufeff",
    "",
    "\x00\x07",
    "javascript:alert(1)",
    "&lt;b&gt;",
    "e\u0301\u0301\u0301\u0301",
    "\ud83d",
]


@pytest.fixture(scope="module")
def model():
    config = GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2, n_positions=6000)
    return GPT2LMHeadModel(config).eval()


def page_of(model, tokens, path):
    """A page of these tokens, which also stand wherever else it has texts."""
    found = read_patterns(model, None, torch.arange(len(tokens))[None] % 20)
    head = found.heads[0].head
    shown = visible_all(tokens)
    facts = Facts(
        title=" ".join(shown),
        lines=tuple(shown),
        maps=(HeadMap("hostile", shown[0], {head: shown[0]}, grades={head: shown[-1]}),),
        cards={head: Card(tuple(shown), " ".join(shown), (tuple(shown),))},
        columns=tuple(shown),
    )
    heads = tuple(data.head for data in found.heads)
    make_explorer(facts, Patterns(tuple(shown), found.cell, found.heads, found.masks), heads).save(
        path
    )
    return shown


def check(page, shown):
    page.wait_for_selector("#canvases canvas")
    assert page.locator("#strip span").all_text_contents() == shown
    assert page.locator("#title").evaluate("(title) => title.textContent") == " ".join(shown)
    assert page.locator("img, iframe, script[src], b, a").count() == 0
    page.locator("#t0").click()
    page.locator("#lists strong").first.wait_for()
    first = page.locator("#lists strong").first.evaluate("(element) => element.textContent")
    assert first == f"0 “{shown[0]}” looks most at"
    assert page.locator("#card li").all_text_contents() == shown


def test_hostile_tokens_stay_text(visit, model, tmp_path):
    shown = page_of(model, HOSTILE, tmp_path / "hostile.html")
    page = visit(tmp_path / "hostile.html")
    check(page, shown)
    page.locator("#find").fill("<img")
    assert page.locator("#found").inner_text() == "1 of 1 found"  # it is token 0


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.text(max_size=12) | st.sampled_from(HOSTILE), min_size=1, max_size=6))
def test_any_tokens_stay_text(browser, model, tmp_path, tokens):
    shown = page_of(model, tokens, tmp_path / "any.html")
    context = browser.new_context(offline=True)
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.goto(f"file://{tmp_path}/any.html")
    check(page, shown)
    context.close()
    assert not wrong


def test_five_thousand_of_one_token(visit, model, tmp_path):
    ids = torch.full((1, 5000), 7)
    ha.explore(model, None, ids).save(tmp_path / "repeats.html")
    page = visit(tmp_path / "repeats.html")
    page.wait_for_selector("#canvases canvas")
    assert page.locator("#strip span").count() == 5000
    page.locator("#find").fill("7")
    assert page.locator("#found").inner_text() == "5000 found"
    page.locator("#find").press("Enter")
    page.keyboard.press("Enter")
    assert page.locator("#found").inner_text() == "2 of 5000 found"


def test_an_empty_text_is_refused_before_a_page():
    model, tokenizer = ha.load("tiny")
    with pytest.raises(ha.InputError, match="text 0 is empty"):
        ha.explore(model, tokenizer, "", prepend_bos=False)


def test_a_text_of_markup_through_the_tokenizer(visit, tmp_path):
    model, tokenizer = ha.load("tiny")
    text = "</script><img src=x onerror=alert(1)> \u202e \U0001f469\u200d\U0001f4bb <s> {{x}} ${y}"
    ha.explore(model, tokenizer, text, title=text).save(tmp_path / "text.html")
    page = visit(tmp_path / "text.html")
    page.wait_for_selector("#canvases canvas")
    strings = ha.capture(model, tokenizer, text, names_filter="pattern", heads="L0H0").tokens[0]
    assert page.locator("#strip span").all_text_contents() == strings
    assert page.locator("img").count() == 0
