import base64
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headatlas.interp.errors import InputError
from headatlas.interp.plots import plot_pattern, write_figure
from tests.interp.plots.made import causal

HOSTILE = ["</script><script>alert(1)</script>", "<b>", "<s>", "a & b"]


def test_cells_are_the_weights_and_the_future_is_blank():
    pattern = causal(5, 5)
    figure = plot_pattern(pattern)
    assert len(figure.data) == 1
    z = torch.tensor(figure.data[0].z)
    lower = torch.ones(5, 5).tril().bool()
    torch.testing.assert_close(z[lower], pattern[lower].double())
    assert z[~lower].isnan().all()


def test_queries_run_down_and_keys_across():
    figure = plot_pattern(causal(2, 4), tokens=["a", "b"], keys=list("wxyz"))
    top, bottom = figure.layout.yaxis.range[::-1]
    assert (top, bottom) == (-0.5, 1.5)
    assert figure.layout.xaxis.range == (-0.5, 3.5)
    assert figure.layout.yaxis.ticktext == ("a", "b")
    assert figure.layout.xaxis.ticktext == ("w", "x", "y", "z")
    assert "query" in figure.layout.yaxis.title.text
    assert "key" in figure.layout.xaxis.title.text
    blank = np.isnan(figure.data[0].z)  # the last query stands on the last key
    assert blank.tolist() == [[False, False, False, True], [False] * 4]


def test_repeated_tokens_keep_their_own_rows():
    figure = plot_pattern(causal(3, 3), tokens=["a", "a", "a"])
    assert figure.layout.yaxis.tickvals == (0, 1, 2)
    assert figure.layout.yaxis.ticktext == ("a", "a", "a")
    assert figure.data[0].z.shape == (3, 3)
    assert figure.data[0].y is None


def test_a_bidirectional_pattern_has_no_blanks_and_a_dead_query_is_blank():
    pattern = torch.rand(4, 4).softmax(-1)
    assert not np.isnan(plot_pattern(pattern).data[0].z).any()
    pattern[2] = 0
    assert np.isnan(plot_pattern(pattern).data[0].z).all(axis=1).tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("shape", [(3, 4, 4), (1, 3, 4, 4)])
def test_one_panel_per_head_in_order(shape):
    pattern = causal(*shape)
    figure = plot_pattern(pattern, heads=["L0H0", "L0H<b>", "L0H2"])
    assert [trace.name for trace in figure.data] == ["L0H0", "L0H&lt;b&gt;", "L0H2"]
    titles = [note.text for note in figure.layout.annotations][:3]
    assert titles == ["L0H0", "L0H&lt;b&gt;", "L0H2"]
    for trace, weights in zip(figure.data, pattern.reshape(3, 4, 4), strict=True):
        torch.testing.assert_close(torch.tensor(np.nan_to_num(trace.z)), weights.double())


@pytest.mark.parametrize("count", [4, 100])
def test_hostile_tokens_stay_text(tmp_path, count):
    tokens = (HOSTILE * count)[:count]
    figure = plot_pattern(
        causal(count, count), tokens=tokens, heads=["<i>h</i>"], title="<a href='x'>t</a>"
    )
    texts = [figure.layout.title.text, *(n.text for n in figure.layout.annotations)]
    texts += [*figure.layout.xaxis.ticktext, *figure.layout.yaxis.ticktext, figure.data[0].name]
    assert not [text for text in texts if re.search("[<>]", text)]
    assert figure.layout.xaxis.ticktext[1:3] == ("&lt;b&gt;", "&lt;s&gt;")
    # plotly's own line breaks and the box beside the hover are the only tags
    template = figure.data[0].hovertemplate
    assert set(re.findall("<[^>]*>", template)) == {"<br>", "<extra>", "</extra>"}
    write_figure(figure, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "alert(1)<" not in page
    assert "<script>alert" not in page


def test_tokens_are_made_visible_and_shortened():
    figure = plot_pattern(causal(3, 3), tokens=["Ġthe", "Ċ", "x" * 50])
    assert figure.layout.xaxis.ticktext == ("·the", "⏎", "x" * 15 + "…")


def test_a_long_pattern_keeps_every_token_for_hover_and_labels_some():
    figure = plot_pattern(causal(300, 300), tokens=[f"t{i}" for i in range(300)])
    assert len(figure.layout.xaxis.ticktext) == 300
    assert figure.layout.xaxis.showticklabels is False
    labels = [note.text for note in figure.layout.annotations if note.text.startswith("t")]
    assert 2 * 30 <= len(labels) <= 2 * 40
    assert labels[:2] == ["t0", "t8"]


def test_a_long_pattern_is_exact_to_four_decimals_and_covers_the_future():
    pattern = causal(300, 300)
    pattern[7] = 0
    figure = plot_pattern(pattern)
    z = figure.data[0].z
    assert z.dtype == np.uint16
    assert np.abs(z / 10_000 - pattern.numpy()).max() <= 0.5001e-4
    assert figure.layout.coloraxis.cmax == 10_000
    covered = np.zeros((300, 300), bool)
    for shape in figure.layout.shapes:
        corners = np.array([[float(n) for n in p.split(",")] for p in shape.path[1:-1].split("L")])
        for row in range(300):
            inside = (corners[:, 1] == row - 0.5) | (corners[:, 1] == row + 0.5)
            both = corners[inside]
            if {row - 0.5, row + 0.5} <= set(both[:, 1]):
                upper = both[both[:, 1] == row + 0.5][:, 0]
                lower = both[both[:, 1] == row - 0.5][:, 0]
                left = min(x for x in upper if x in lower)
                covered[row, int(left + 0.5) :] = True
    expected = np.triu(np.ones((300, 300), bool), 1)
    expected[7] = True
    assert (covered == expected).all()


def test_the_page_of_1024_tokens_stays_small_and_needs_no_network(tmp_path):
    write_figure(plot_pattern(causal(1024, 1024)), tmp_path / "big.html")
    page = (tmp_path / "big.html").read_text()
    assert len(page) < 8_000_000  # 4.8 MB of it are plotly.js
    assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="?http', page)


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        (torch.tensor([[[0.5, 0.5], [0.3, 0.43]]]), r"row \(head, query\) \(0, 1\) sums to 0.73"),
        (torch.tensor([[2.0, 3.0], [0.5, 0.5]]), "post-softmax weights, not scores"),
        (torch.tensor([[1.5, -0.5], [0.5, 0.5]]), r"negative; \(head, query, key\) \(0, 0, 1\)"),
        (torch.tensor([[1.0, 0.0], [float("nan"), 1.0]]), r"finite; .* \(0, 1, 0\)"),
        (torch.ones(3), r"got the shape \(3,\)"),
        (torch.ones(0, 0), "got the shape"),
        (torch.ones(2, 1, 1, 1), "one sequence at a time"),
        (torch.ones(65, 1, 1), "at most 64"),
    ],
)
def test_what_is_no_pattern_is_refused(pattern, part):
    with pytest.raises(InputError, match=part):
        plot_pattern(pattern)


def test_sinks_allow_rows_below_one_but_never_above():
    plot_pattern(torch.tensor([[0.2, 0.1]]), sinks=True)
    with pytest.raises(InputError, match="sinks=True"):
        plot_pattern(torch.tensor([[0.2, 0.1]]))
    with pytest.raises(InputError, match=r"sums to 1\.3"):
        plot_pattern(torch.tensor([[1.2, 0.1]]), sinks=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_patterns_are_patterns(dtype):
    pattern = causal(200, 200).to(dtype)
    z = plot_pattern(pattern).data[0].z
    torch.testing.assert_close(torch.tensor(np.nan_to_num(z)), pattern.double())


def test_a_pattern_with_gradients_and_an_array_are_accepted():
    pattern = causal(3, 3).requires_grad_()
    plot_pattern(pattern)
    assert pattern.requires_grad
    plot_pattern(causal(3, 3).numpy())


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"tokens": ["a"]}, "3 queries and tokens= has 1"),
        ({"tokens": "abc"}, "one string per position"),
        ({"keys": ["a"]}, "3 keys and keys= has 1"),
        ({"heads": ["a", "b"]}, "1 heads and heads= names 2"),
        ({"max_weight": 0.0}, "max_weight"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, part):
    with pytest.raises(InputError, match=part):
        plot_pattern(causal(3, 3), **options)


def test_max_weight_is_the_darkest_colour():
    assert plot_pattern(causal(3, 3), max_weight=0.5).layout.coloraxis.cmax == 0.5


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text(max_size=10), min_size=1, max_size=5))
def test_any_tokens_give_valid_json_without_tags(tokens):
    n = len(tokens)
    figure = plot_pattern(causal(n, n), tokens=tokens)
    assert json.loads(figure.to_json())["data"]
    assert not any(re.search("[<>]", text) for text in figure.layout.xaxis.ticktext)


def test_json_holds_the_weights(tmp_path):
    write_figure(plot_pattern(torch.tensor([[1.0]])), tmp_path / "one.JSON")
    z = json.loads((tmp_path / "one.JSON").read_text())["data"][0]["z"]
    assert np.frombuffer(base64.b64decode(z["bdata"]), z["dtype"]).tolist() == [1.0]


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"\.html or \.json"):
        write_figure(plot_pattern(torch.tensor([[1.0]])), tmp_path / "one.gif")
    assert not list(tmp_path.iterdir())


def test_plotly_is_imported_only_for_a_figure():
    code = "import headatlas, headatlas.interp.plots, sys; sys.exit('plotly' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_more_cells_take_a_byte_each():
    pattern = causal(1, 1500, 1500)
    figure = plot_pattern(pattern)
    z = figure.data[0].z
    assert z.dtype == np.uint8
    assert np.abs(z / 250 - pattern.numpy()).max() <= 0.00201
    assert "weight %{z}/250 (±0.002)" in figure.data[0].hovertemplate
    assert figure.layout.coloraxis.cmax == 250


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_themes_differ_in_colours_alone(theme):
    figure = plot_pattern(causal(2, 3, 3), theme=theme)
    other = plot_pattern(causal(2, 3, 3), theme="light")
    np.testing.assert_array_equal(figure.data[0].z, other.data[0].z)
    assert (figure.layout.paper_bgcolor == other.layout.paper_bgcolor) == (theme == "light")
    blank, zero = figure.layout.plot_bgcolor, figure.layout.coloraxis.colorscale[0][1]
    assert blank != zero
    with pytest.raises(InputError, match="'light' or 'dark'; got 'sepia'"):
        plot_pattern(causal(3, 3), theme="sepia")


def test_a_last_row_that_is_not_full_has_no_empty_panel():
    figure = plot_pattern(causal(5, 3, 3))
    assert len(figure.data) == 5
    assert "xaxis6" not in figure.layout
    below = [figure.layout[f"xaxis{n}"].title.text for n in (3, 4, 5)]
    assert below == ["key (source)"] * 3


def test_rows_are_blank_after_their_own_keys():
    """As `capture(rows=…)` keeps them, in any order; without rows= they would end the text."""
    whole = causal(64, 64)
    rows = [23, 20, 29]
    figure = plot_pattern(whole[rows], rows=rows, tokens=[f"t{i}" for i in range(64)])
    assert np.isnan(figure.data[0].z).sum(axis=1).tolist() == [40, 43, 34]
    assert figure.layout.yaxis.ticktext == ("23 t23", "20 t20", "29 t29")
    assert figure.layout.xaxis.ticktext[:2] == ("t0", "t1")
    assert figure.data[0].hovertemplate.startswith("query %{y}<br>")
    bare = plot_pattern(whole[rows], rows=rows)
    assert bare.layout.yaxis.ticktext == ("23", "20", "29")
    own = plot_pattern(whole[rows], rows=rows, tokens=list("abc"), keys=["k"] * 64)
    assert own.layout.yaxis.ticktext == ("23 a", "20 b", "29 c")


def test_rows_of_a_long_pattern_are_covered_after_their_own_keys():
    rows = [900, 200]
    figure = plot_pattern(causal(1000, 1000)[rows].repeat(1, 40, 1).reshape(40, 2, 1000), rows=rows)
    (path, *_) = (shape.path for shape in figure.layout.shapes)
    assert path == "M999.5,-0.5L900.5,-0.5L900.5,0.5L200.5,0.5L200.5,1.5L999.5,1.5Z"


@pytest.mark.parametrize(
    "rows", [[0], [0, 1, 2, 3], [0, 1, -1], [0, 1, 1.5], "012", 3, [0, 1, None]]
)
def test_rows_that_do_not_fit_are_refused(rows, as_users_call):
    with pytest.raises(InputError, match="rows= names the position of each of the 3 queries"):
        plot_pattern(causal(3, 3), rows=rows)


def test_a_long_pattern_is_as_fine_as_its_colours():
    pattern = torch.full((1500, 1500), 1 / 1500)
    pattern[7] = 0
    pattern[7, 3] = 1
    figure = plot_pattern(pattern, max_weight=0.01)
    z, scale = figure.data[0].z, figure.layout.coloraxis
    assert scale.cmax == 250
    assert z[0, 0] == round(250 / 15)
    assert z[7, 3] == 250
    assert "/25000 (±2e-05)<br>250 stands for 0.01 and more" in figure.data[0].hovertemplate


def test_pages_stay_small_however_the_cells_are_shared_out():
    figure = plot_pattern(causal(40, 256, 256))
    assert {trace.z.dtype for trace in figure.data} == {np.dtype(np.uint8)}
    assert len(figure.to_json()) < 1.6 * 40 * 256**2
    long = plot_pattern(torch.full((1, 10, 3000), 1 / 3000))  # few cells stay as they are
    assert long.data[0].z.dtype == np.float64


def test_hover_says_which_cells_hold_no_weight():
    assert "where grey: no weight" in plot_pattern(causal(300, 300)).data[0].hovertemplate
    full = torch.full((300, 300), 1 / 300)
    assert "grey" not in plot_pattern(full).data[0].hovertemplate


def test_weights_that_were_rounded_on_the_way_are_weights():
    """A bfloat16 model's pattern in float32: its rows miss 1 by what rounding took."""
    pattern = causal(200, 200).bfloat16().float()
    assert (pattern.sum(-1) - 1).abs().max() > 2e-4
    plot_pattern(pattern)
    with pytest.raises(InputError, match=r"sums to 0\.99[67]"):
        plot_pattern(torch.tensor([[0.4, 0.597]]))
