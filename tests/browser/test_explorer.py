"""What the explorer's page shows is what the tensors hold."""

import re
from dataclasses import replace
from urllib.parse import parse_qs

import numpy as np
import pytest
import torch
from playwright.sync_api import expect

import headatlas as ha

TEXT = "the cat sat on the mat and the dog sat on the mat and the cat"
BYTE = 0.5 / 255 + 0.0006  # the page's weights are that exact, and shown to three decimals
MEAN = 1 / 255 + 0.0006  # those of means are not sharpened by the strongest keys


@pytest.fixture(scope="session")
def tiny_page(tmp_path_factory):
    """A page of the built-in model with all labels, the patterns it shows, and the atlas."""
    model, tokenizer = ha.load("tiny")
    atlas = ha.classify(model, tokenizer, prompts=16, seq_len=64)
    cache = ha.capture(model, tokenizer, TEXT, names_filter="pattern")
    path = tmp_path_factory.mktemp("page") / "tiny.html"
    ha.explore(model, tokenizer, TEXT, atlas=atlas).save(path)
    pattern = torch.stack([cache["pattern", layer][0] for layer in range(4)]).numpy()
    return path, pattern, atlas, cache.tokens[0]


@pytest.fixture(scope="session")
def long_page(tmp_path_factory):
    """A page of a random model on 700 tokens, pooled, with two windows."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=700)
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn(weight.shape))
    ids = torch.randint(50, (1, 700))
    cache = ha.capture(model, None, ids, names_filter="pattern")
    path = tmp_path_factory.mktemp("page") / "long.html"
    windows = ["L1H0@600:660,100:180", "all@0:64"]
    ha.explore(model, None, ids, windows=windows).save(path)
    return path, torch.stack([cache["pattern", layer][0] for layer in range(2)]).numpy()


def cell_centre(page, q, k, panel=0):
    """Where a cell of the pattern is on the screen, by the page's own scale."""
    box = page.evaluate(  # in one step: a canvas is made anew whenever its size or head changes
        """(panel) => {
            const canvas = document.querySelectorAll("#canvases canvas")[panel];
            canvas.scrollIntoView({ block: "nearest", behavior: "instant" });
            return canvas.getBoundingClientRect().toJSON();
        }""",
        panel,
    )
    n = page.locator("#strip span").count()
    room, scale = layout(page, panel)
    assert room + n * scale <= box["width"] + 1
    return box["x"] + room + (k + 0.5) * scale, box["y"] + room + (q + 0.5) * scale


def layout(page, panel=0):
    """Margin and pixels per cell, read off the drawing: its frame is the first line."""
    width, n = page.evaluate(
        """(panel) => [document.querySelectorAll("#canvases canvas")[panel].clientWidth,
                       document.querySelectorAll("#strip span").length]""",
        panel,
    )
    longest = max(len(text) for text in page.locator("#strip span").all_text_contents())
    room = min(104, 12 + 7 * max(2, longest))
    return room, (width - room - 2) / n


def address(page):
    """What the page's address keeps."""
    return {name: words[0] for name, words in parse_qs(page.url.partition("#")[2]).items()}


def told(page, q, k):
    """The numbers of the readout of a cell, by what they are of."""
    expect(page.locator("#readout")).to_contain_text(re.compile(f"^query {q} .* key {k} .*", re.S))
    lines = page.locator("#readout").inner_text().split("\n")[1:]
    found = (re.fullmatch(r"(.*?)(?:, the .*)?: ([+-]?[\d.]+)", line) for line in lines)
    return {match[1]: float(match[2]) for match in found if match}


def coloured(page, expected):
    """Whether these tokens have a colour, and no others."""
    spans = """() => [...document.querySelectorAll("#strip span")]
        .filter((span) => span.style.backgroundColor).map((span) => +span.dataset.place)"""
    for _ in range(50):
        found = page.evaluate(spans)
        if found == expected:
            break
        page.wait_for_timeout(50)
    return found


def test_the_map_leads_to_the_card_and_the_pattern(visit, tiny_page):
    path, _, atlas, _ = tiny_page
    page = visit(path)
    heads = page.locator("#heads button[data-index]")
    assert heads.count() == len(atlas) == 32
    head = atlas.heads("induction")[0]
    page.locator(f'#heads button[aria-label^="{head}:"]').click()
    assert page.locator("#card h2").inner_text() == str(head)
    assert page.locator("#card p").inner_text() == " ".join(str(atlas[head]).split())
    cells = page.locator("#card tbody tr").nth(0).locator("td").all_inner_texts()
    row = atlas[head]["previous_token"]
    assert cells[:3] == ["previous_token", f"{row['score']:.3f}", f"{row['expected']:.3f}"]
    expect(page.locator("figcaption")).to_have_text(re.compile(f"^{head}[.]"))
    assert address(page) == {"head": str(head)}


def test_the_map_colours_by_score(visit, tiny_page):
    path, _, atlas, _ = tiny_page
    page = visit(path)
    page.select_option("#map", label="score: previous_token")
    best = atlas.heads("previous_token")[0]

    def lightness(head):
        button = page.locator(f'#heads button[aria-label^="{head}:"]')
        colour = button.evaluate("(button) => getComputedStyle(button).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)))

    assert lightness(best) < 300 < lightness("L3H0")
    label = page.locator(f'#heads button[aria-label^="{best}:"]').get_attribute("aria-label")
    assert f"{atlas[best]['previous_token']['score']:.3f} (strong)" in label


def test_hovering_reads_the_weights(visit, tiny_page):
    path, pattern, _, tokens = tiny_page
    page = visit(path, "head=L2H2")
    rng = np.random.default_rng(0)
    n = len(tokens)
    for q, k in rng.integers(0, n, (25, 2)).tolist():
        page.mouse.move(*cell_centre(page, q, k))
        first = page.locator("#readout").inner_text().split("\n")[0]
        assert first == f"query {q} “{tokens[q]}” → key {k} “{tokens[k]}”"
        if k > q:
            assert "masked" in page.locator("#readout").inner_text()
        else:
            assert abs(told(page, q, k)["L2H2"] - pattern[2, 2, q, k]) <= BYTE


def test_a_click_locks_and_another_unlocks(visit, tiny_page):
    path, _, _, _ = tiny_page
    page = visit(path, "head=L2H2")
    page.mouse.click(*cell_centre(page, 9, 4))
    locked = page.locator("#readout").inner_text()
    assert locked.startswith("query 9")
    assert "(locked)" in locked
    page.mouse.move(*cell_centre(page, 12, 1))
    assert page.locator("#readout").inner_text() == locked
    assert (address(page)["q"], address(page)["k"], address(page)["lock"]) == ("9", "4", "1")
    page.mouse.click(*cell_centre(page, 9, 4))
    page.mouse.move(*cell_centre(page, 12, 1))
    assert page.locator("#readout").inner_text().startswith("query 12")
    page.mouse.click(*cell_centre(page, 12, 1))
    page.keyboard.press("Escape")
    assert "(locked)" not in page.locator("#readout").inner_text()
    assert not page.locator("#unlock").is_visible()


def test_a_token_shows_where_it_looks_and_who_looks_at_it(visit, tiny_page):
    path, pattern, _, _tokens = tiny_page
    page = visit(path, "head=L2H2")
    page.locator("#t14").click()
    strongest = np.argsort(-pattern[2, 2, 14])[:4]
    expect(page.locator("#lists strong").first).to_contain_text("14 ")
    lines = page.locator("#lists > div").nth(0).locator("li").all_inner_texts()
    shown = {int(line.split()[1]): float(line.split()[0]) for line in lines}
    assert set(shown) == set(strongest.tolist())
    for key, weight in shown.items():
        assert abs(weight - pattern[2, 2, 14, key]) <= 1e-4
    seen = np.flatnonzero(np.round(np.sqrt(pattern[2, 2, 14]) * 255)).tolist()
    assert coloured(page, seen) == seen
    page.locator("#t3").hover()
    expect(page.locator("#readout")).to_contain_text("key 3 ")
    last = float(page.locator("#readout").inner_text().split(": ")[-1].split()[0])
    assert abs(last - pattern[2, 2, 14, 3]) <= BYTE
    page.locator("#t16").hover()
    expect(page.locator("#readout")).to_contain_text("masked")
    page.keyboard.press("Escape")
    page.get_by_label("who looks at it").check()
    page.locator("#t4").click()
    seen = np.flatnonzero(np.round(np.sqrt(pattern[2, 2, :, 4]) * 255)).tolist()
    assert coloured(page, seen) == seen


def test_search_finds_words_across_tokens(visit, tiny_page):
    path, _, _, tokens = tiny_page
    page = visit(path)
    page.keyboard.press("/")
    page.keyboard.type("Cat")
    starts, whole = [], "".join(tokens)
    for match in re.finditer("cat", whole):
        lengths = np.cumsum([0, *map(len, tokens)])
        starts.append(int(np.searchsorted(lengths, match.start(), side="right") - 1))
    assert len(starts) == 2
    assert page.locator("#found").inner_text() == "2 found"
    for number, start in enumerate([*starts, starts[0]]):
        page.keyboard.press("Enter")
        expect(page.locator("#strip .here")).to_have_attribute("data-place", str(start))
        expect(page.locator("#found")).to_have_text(f"{number % 2 + 1} of 2 found")
    page.locator("#find").fill("zebra")
    assert page.locator("#found").inner_text() == "0 found"
    assert page.locator("#next").is_disabled()


def test_a_link_brings_the_same_view(visit, tiny_page):
    path, pattern, _, _ = tiny_page
    link = "head=L1H1&compare=L2H2&map=induction&q=9&k=4&lock=1&find=cat&theme=dark&top=0.5"
    page = visit(path, link)
    expect(page.locator("#canvases canvas")).to_have_count(3)
    shown = told(page, 9, 4)
    assert abs(shown["L1H1"] - pattern[1, 1, 9, 4]) <= BYTE
    assert abs(shown["L2H2"] - pattern[2, 2, 9, 4]) <= BYTE
    apart = pattern[1, 1, 9, 4] - pattern[2, 2, 9, 4]
    assert abs(shown["L1H1 minus L2H2"] - apart) <= 2 * BYTE
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.locator("#map").input_value() != "0"
    page.reload()
    assert told(page, 9, 4) == shown


STRANGE = ["head=L99H0", "q=1e9&k=-7", "view=3", "%ZZ=%E0", "top=7", "x=<b>"] + [
    f"{name}={word}"
    for name in ("top", "mean", "map", "head", "view", "q", "direction", "theme")
    for word in ("constructor", "__proto__")
]


@pytest.mark.parametrize("link", STRANGE)
def test_a_link_to_what_is_not_there_is_told(visit, tiny_page, link):
    path, _, _, _ = tiny_page
    page = visit(path, link)
    expect(page.locator("#canvases canvas")).to_have_count(1)
    expect(page.locator("#status")).to_contain_text("does not have")
    assert page.locator("#status b").count() == 0


def test_means_over_heads(visit, tiny_page):
    path, pattern, _, _ = tiny_page
    page = visit(path, "head=L2H2&mean=layer&q=9&k=4&lock=1")
    expect(page.locator("figcaption")).to_contain_text("mean of 8 heads of layer 2")
    shown = told(page, 9, 4)
    assert abs(shown["mean of 8 heads of layer 2"] - pattern[2, :, 9, 4].mean()) <= MEAN
    page.select_option("#mean", "all")
    expect(page.locator("figcaption")).to_contain_text("mean of 32 heads")
    assert abs(told(page, 9, 4)["mean of 32 heads"] - pattern[:, :, 9, 4].mean()) <= MEAN
    page.locator("#compare").fill("L1H1")  # which of one head makes sense alone
    page.locator("#compare").press("Tab")
    expect(page.locator("#canvases canvas")).to_have_count(3)
    assert page.locator("#mean").input_value() == "head"


def test_the_keyboard_reaches_everything(visit, tiny_page):
    path, pattern, _, _ = tiny_page
    page = visit(path)
    page.locator("#map").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.index") == "0"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert page.locator("#card h2").inner_text() == "L2H2"
    page.locator("#canvases canvas").focus()
    page.keyboard.press("ArrowDown")
    for key in ["ArrowDown"] * 9 + ["ArrowRight"] * 4:
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    assert abs(told(page, 9, 4)["L2H2"] - pattern[2, 2, 9, 4]) <= BYTE
    assert "(locked)" in page.locator("#readout").inner_text()
    page.keyboard.press("]")
    expect(page.locator("figcaption")).to_contain_text("L2H3")
    assert page.evaluate("document.activeElement.tagName") == "CANVAS"
    assert address(page)["head"] == "L2H3"
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#help").is_visible()
    page.keyboard.press("?")
    page.locator("#shortcuts").uncheck()
    page.keyboard.press("]")
    assert address(page)["head"] == "L2H3"


def test_a_wrong_head_in_the_box_is_refused(visit, tiny_page):
    path, _, _, _ = tiny_page
    page = visit(path)
    page.locator("#head").fill("<img src=x onerror=alert(1)>")
    page.locator("#head").press("Tab")
    assert "is no head of this page" in page.locator("#status").inner_text()
    assert page.locator("#head").input_value() == "L0H0"
    page.locator("#compare").fill("l1h1")
    page.locator("#compare").press("Tab")
    expect(page.locator("#canvases canvas")).to_have_count(3)
    expect(page.locator("#status")).to_have_text("")
    expect(page.locator("figcaption").last).to_contain_text("Orange: more; blue: less.")
    assert page.locator("#compare").input_value() == "L1H1"


def test_what_somebody_writes_stays_while_the_pointer_moves(visit, tiny_page):
    path, _, _, _ = tiny_page
    page = visit(path, "head=L2H2")
    expect(page.locator("#canvases canvas")).to_have_count(1)
    page.locator("#head").fill("L1")
    page.mouse.move(*cell_centre(page, 9, 4))
    expect(page.locator("#readout")).to_contain_text("query 9")
    assert page.locator("#head").input_value() == "L1"


def test_a_locked_cell_keeps_its_query_when_the_direction_turns(visit, tiny_page):
    path, pattern, _, _ = tiny_page
    page = visit(path, "head=L2H2&q=9&k=4&lock=1")
    expect(page.locator("#strip .here")).to_have_attribute("data-place", "9")
    page.keyboard.press("d")
    expect(page.locator("#strip .here")).to_have_attribute("data-place", "4")
    assert abs(told(page, 9, 4)["L2H2"] - pattern[2, 2, 9, 4]) <= BYTE


def test_another_head_while_a_token_is_locked_tells_its_own_weight(visit, tiny_page):
    path, pattern, _, _ = tiny_page
    page = visit(path, "head=L2H2")
    page.locator("#t9").click()
    page.locator("#t4").hover()
    for head in ("L2H3", "L2H4"):
        page.keyboard.press("]")
        expect(page.locator("#readout")).to_contain_text(f"{head}: query 9 ")
        last = float(page.locator("#readout").inner_text().split(": ")[-1].split()[0])
        assert abs(last - pattern[2, int(head[3]), 9, 4]) <= BYTE


def test_a_narrow_window_and_a_dense_screen(visit, tiny_page):
    path, pattern, _, _ = tiny_page
    page = visit(path, "head=L2H2", device_scale_factor=1.5)
    canvas = page.locator("#canvases canvas")
    wide = canvas.get_attribute("width")
    page.set_viewport_size({"width": 320, "height": 800})
    expect(canvas).not_to_have_attribute("width", wide)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    page.set_viewport_size({"width": 1300, "height": 1000})
    expect(canvas).to_have_attribute("width", wide)
    page.mouse.move(*cell_centre(page, 9, 4))
    assert abs(told(page, 9, 4)["L2H2"] - pattern[2, 2, 9, 4]) <= BYTE


def test_keys_outside_of_a_window_are_masked(visit, tiny, tmp_path):
    model, ids = tiny("mistral"), torch.arange(30)[None] % 90
    ha.explore(model, None, ids).save(tmp_path / "window.html")
    page = visit(tmp_path / "window.html", "q=20&k=12&lock=1")
    expect(page.locator("#readout")).to_contain_text("masked")
    true = ha.capture(model, None, ids, names_filter="pattern")["pattern", 0][0, 0, 20, 13]
    page = visit(tmp_path / "window.html", "q=20&k=13&lock=1")
    assert abs(told(page, 20, 13)["L0H0"] - true) <= BYTE


def test_words_are_found_in_pieces_of_words(visit, tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    from headatlas.interp.explorer.explorer import make_explorer
    from headatlas.interp.explorer.facts import Facts
    from headatlas.interp.explorer.read import read_patterns

    model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=1)).eval()
    found = read_patterns(model, None, torch.tensor([[1, 2, 3, 4]]))
    tokens = replace(found, tokens=("the", "cat", "##s", "sat"))
    heads = tuple(data.head for data in found.heads)
    in_bytes = replace(found, tokens=("·caf", "<0xC3>", "<0xA9>s", "·x"))
    page = visit(make_explorer(Facts("bytes"), in_bytes, heads).save(tmp_path / "bytes.html"))
    for text, count in (("cafés x", 1), ("É", 1), ("e", 0)):
        page.locator("#find").fill(text)
        expect(page.locator("#found")).to_have_text(f"{count} found")
    page = visit(make_explorer(Facts("pieces"), tokens, heads).save(tmp_path / "pieces.html"))
    for text, count in (("the cats", 1), ("cats", 1), ("cats at", 0), ("s sat", 1), ("cat s", 0)):
        page.locator("#find").fill(text)
        expect(page.locator("#found")).to_have_text(f"{count} found")


def test_a_long_text_shows_the_largest_weights(visit, long_page):
    path, pattern = long_page
    page = visit(path, "head=L1H0&compare=L1H1&q=500&k=100&lock=1")
    expect(page.locator("#canvases canvas")).to_have_count(3)
    cell = 6  # 700 tokens in at most 128 cells
    rows, keys = (slice(at // cell * cell, at // cell * cell + cell) for at in (500, 100))
    shown = told(page, 500, 100)
    largest = pattern[1, :, rows, keys].max(axis=(1, 2))
    assert abs(shown["L1H0"] - largest[0]) <= BYTE
    assert abs(shown["L1H0 minus L1H1"] - (largest[0] - largest[1])) <= 2 * BYTE
    assert "difference of the largest weight" in page.locator("#readout").inner_text()
    page = visit(path, "head=L1H0")
    page.locator("#t500").click()
    expect(page.locator("#lists strong").first).to_contain_text("500 ")
    lines = page.locator("#lists > div").nth(0).locator("li").all_inner_texts()
    shown = {int(line.split()[1]): float(line.split()[0]) for line in lines}
    assert set(shown) == set(np.argsort(-pattern[1, 0, 500])[:4].tolist())
    inverse = page.locator("#lists > div").nth(1).locator("li").all_inner_texts()
    strongest = np.argsort(-pattern[1, 0], axis=1, kind="stable")[:, :4]
    queries = [q for q in range(700) if 500 in strongest[q] and q >= 500]
    queries.sort(key=lambda q: -pattern[1, 0, q, 500])
    assert [int(line.split()[1]) for line in inverse] == queries[:8]
    title = page.locator("#lists strong").nth(1).inner_text()
    assert (f"of {len(queries)} queries, the strongest 8 of them" in title) == (len(queries) > 8)


def test_a_window_has_all_weights(visit, long_page):
    path, pattern = long_page
    page = visit(path, "head=L1H0&view=0&q=610&k=105&lock=1")
    shown = told(page, 610, 105)
    assert abs(shown["L1H0, all weights"] - pattern[1, 0, 610, 105]) <= BYTE
    page.locator("#t150").hover()
    expect(page.locator("#readout")).to_contain_text("key 150 ")
    last = float(page.locator("#readout").inner_text().split(": ")[-1].split()[0])
    assert abs(last - pattern[1, 0, 610, 150]) <= BYTE
    options = page.locator("#view option").all_inner_texts()
    assert options == ["overview", "queries 600:660, keys 100:180", "queries 0:64, keys 0:64"]
    page.select_option("#view", "-1")
    expect(page.locator("figcaption")).to_contain_text("cell")
    page.locator('#heads button[aria-label^="L0H1:"]').click()
    expect(page.locator("#view option")).to_have_count(2)


def test_a_page_of_an_atlas_alone(visit, tiny_page, tmp_path):
    _, _, atlas, _ = tiny_page
    page = visit(atlas.explore().save(tmp_path / "atlas.html"))
    assert not page.locator("#patterns").is_visible()
    page.locator('#heads button[aria-label^="L1H1:"]').click()
    assert page.locator("#card h2").inner_text() == "L1H1"


def test_the_frame_of_a_notebook(visit, tiny_page, tmp_path):
    model, tokenizer = ha.load("tiny")
    frame = ha.explore(model, tokenizer, "the cat sat", heads="L1H1")._repr_html_()
    (tmp_path / "notebook.html").write_text(f"<!DOCTYPE html><p>above</p>{frame}", "utf-8")
    page = visit(tmp_path / "notebook.html")
    inside = page.frame_locator("iframe")
    inside.locator("#t3").click()
    expect(inside.locator("#lists strong").first).to_contain_text("3 ")
    assert inside.locator("#lists li").count() > 0
    assert page.locator("p").first.inner_text() == "above"


def test_dark_readers_and_slow_eyes(visit, tiny_page):
    path, _, _, _ = tiny_page
    page = visit(path, color_scheme="dark", reduced_motion="reduce")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.locator("#theme-button").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    moving = page.evaluate(
        """() => [...document.querySelectorAll("*")].filter((element) => {
              const style = getComputedStyle(element);
              return style.animationName !== "none" || style.transitionDuration !== "0s";
           }).length"""
    )
    assert moving == 0
