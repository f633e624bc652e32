from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from headatlas.interp.errors import InputError
from headatlas.interp.plots import plot_head_map


def table(**columns):
    return pd.DataFrame({"layer": [0, 0, 1, 1], "head": [0, 1, 0, 1], **columns})


def test_an_array_is_drawn_layer_by_layer_from_the_top():
    values = torch.tensor([[0.1, 0.2, 0.3], [0.4, float("nan"), 0.6]])
    figure = plot_head_map(values, value="sink")
    np.testing.assert_allclose(figure.data[0].z, values.double().numpy())
    assert figure.layout.yaxis.range == (1.5, -0.5)
    assert figure.layout.xaxis.title.text == "head"
    assert figure.layout.yaxis.title.text == "layer"
    assert figure.data[0].hovertemplate.startswith("L%{y}H%{x}<br>sink")
    assert figure.layout.coloraxis.cmin == 0
    assert figure.layout.coloraxis.cmax == pytest.approx(0.6)


def test_signed_numbers_have_zero_in_the_middle():
    scale = plot_head_map(np.array([[-0.2, 0.1]])).layout.coloraxis
    assert (scale.cmin, scale.cmax) == (-0.2, 0.2)


def test_one_kind_of_an_atlas():
    rows = pd.concat([
        table(kind="induction", score=[0.1, 0.2, 0.3, 0.4], grade="none"),
        table(kind="offset", score=[0.5, 0.6, 0.7, 0.8], grade="none"),
    ])  # fmt: skip
    figure = plot_head_map(SimpleNamespace(rows=rows), kind="offset")
    assert figure.data[0].z.tolist() == [[0.5, 0.6], [0.7, 0.8]]
    assert figure.layout.title.text == "offset: score"
    with pytest.raises(InputError, match="no rows of kind 'sink'; it has induction, offset"):
        plot_head_map(rows, kind="sink")
    with pytest.raises(InputError, match="several rows for L0H0"):
        plot_head_map(rows, value="score")


def test_the_best_kind_of_each_head():
    """By grade first, then by excess; heads without a label stay blank."""
    rows = pd.concat([
        table(kind="a", grade=["strong", "weak", "none", "insufficient"], excess=[2, 1, 9, 10]),
        table(kind="b", grade=["weak", "weak", "ambiguous", "none"], excess=[9, 3, 9, 1]),
    ])  # fmt: skip
    figure = plot_head_map(rows)
    trace, bar = figure.data[0], figure.layout.coloraxis.colorbar
    assert trace.customdata.tolist() == [["a", "b"], ["", ""]]
    assert bar.ticktext == ("B b (1)", "A a (1)")
    assert [list(row) for row in trace.text] == [["A", "B"], ["", ""]]
    assert np.isnan(trace.z[1]).all()


def test_words_have_a_colour_each_and_the_most_frequent_comes_first():
    figure = plot_head_map(table(does=["x", "y", "y", None]), value="does")
    trace, scale = figure.data[0], figure.layout.coloraxis
    assert scale.colorbar.ticktext == ("B x (1)", "A y (2)")
    assert scale.colorbar.tickvals == (0, 1)
    assert trace.z.tolist()[0] == [0, 1]
    assert np.isnan(trace.z[1, 1])
    steps = dict.fromkeys(colour for _, colour in scale.colorscale)
    assert len(steps) == 2
    many = pd.DataFrame({"layer": 0, "head": range(60), "does": [f"w{i}" for i in range(60)]})
    with pytest.raises(InputError, match="60 different words"):
        plot_head_map(many, value="does")
    twenty = plot_head_map(many[:20], value="does")
    bar = twenty.layout.coloraxis.colorbar
    assert bar.len <= twenty.layout.height - twenty.layout.margin.t - twenty.layout.margin.b


def test_stacks_stand_beside_one_another_with_one_scale():
    rows = pd.DataFrame({
        "site": ["dec", "enc", "cross"], "layer": [0, 0, 1], "head": [0, 1, 0], "v": [1.0, 2.0, 4.0]
    })  # fmt: skip
    figure = plot_head_map(rows)
    assert [note.text for note in figure.layout.annotations] == [
        "encoder", "decoder", "cross-attention"
    ]  # fmt: skip
    assert [trace.hovertemplate[:4] for trace in figure.data] == ["enc.", "dec.", "cros"]
    assert {figure.layout[trace.coloraxis].cmax for trace in figure.data} == {4.0}


def test_the_interval_is_told_of_the_column_it_is_of():
    rows = table(score=[0.1] * 4, excess=[0.0] * 4, low=[-0.1] * 4, high=[0.2] * 4)
    assert plot_head_map(rows).data[0].customdata is None  # that of the excess
    excess = plot_head_map(rows, value="excess").data[0]
    assert excess.customdata[0, 0].tolist() == [-0.1, 0.2]
    assert "customdata" in excess.hovertemplate


@pytest.mark.parametrize(
    ("values", "options", "part"),
    [
        (np.ones(3), {}, r"got the shape \(3,\)"),
        (np.full((2, 2), np.nan), {}, "no head has a value"),
        (np.array([[np.inf]]), {}, "infinite"),
        (np.array([["a"]]), {}, "real numbers"),
        (np.ones((2, 2)), {"kind": "x"}, "no kinds"),
        ([[1.0]], {}, "got list"),
        (pd.DataFrame({"head": [0]}), {}, "no column layer; it has head"),
        (table(score=1.0), {"value": "x"}, "no column 'x'; it has layer, head, score"),
        (table(a=1.0, b=2.0), {}, "Pass value=, one of layer, head, a, b"),
        (table(score=1.0).assign(layer=[0, 0, -1, 1]), {}, "whole numbers from 0"),
        (table(score=1.0).assign(head=[0.5, 0, 1, 1]), {}, "whole numbers from 0"),
        (table(score=1.0).assign(head="a"), {}, "whole numbers"),
        (table(score=1.0)[:0], {}, "no rows"),
        (table(score=1.0), {"kind": "x"}, "no column kind"),
        (table(kind="a", grade="none"), {}, "no head is labelled .* Pass kind= .* of a"),
        (table(score=1.0), {"theme": "sepia"}, "'light' or 'dark'; got 'sepia'"),
    ],
)
def test_what_is_no_head_map_is_refused(values, options, part):
    with pytest.raises(InputError, match=part):
        plot_head_map(values, **options)


def test_numbers_in_a_column_of_objects_are_numbers():
    column = pd.Series([0.5, None, np.float32(0.75), 1], dtype=object)
    figure = plot_head_map(table(v=column))
    np.testing.assert_array_equal(figure.data[0].z, [[0.5, np.nan], [0.75, 1]])
    assert figure.data[0].text is None


@pytest.mark.parametrize("none", [None, float("nan"), np.float32("nan"), pd.NA, pd.NaT])
def test_no_word_is_a_blank(none):
    figure = plot_head_map(table(v=pd.Series(["a", "b", none, "a"], dtype=object)))
    assert figure.layout.coloraxis.colorbar.ticktext == ("B b (1)", "A a (2)")
    assert np.isnan(figure.data[0].z[1, 0])


def test_a_name_that_is_no_text_is_refused(as_users_call):
    for values in (np.ones((2, 2)), table(score=1.0)):
        with pytest.raises(InputError, match="value is a text; got 5"):
            plot_head_map(values, value=5)
    numbered = table().assign(x=1.0).rename(columns={"x": 5})
    assert plot_head_map(numbered).data[0].z.tolist() == [[1, 1], [1, 1]]


def test_letters_have_room_however_many_heads_there_are():
    layer, head = np.indices((80, 64)).reshape(2, -1)
    words = [f"kind {i % 12}" for i in range(layer.size)]
    figure = plot_head_map(pd.DataFrame({"layer": layer, "head": head, "does": words}))
    assert figure.data[0].texttemplate == "%{text}"
    assert len({text for row in figure.data[0].text for text in row}) == 12
    margin = figure.layout.margin
    assert (figure.layout.width - margin.l - margin.r) / 64 >= 13
    assert (figure.layout.height - margin.t - margin.b) / 80 >= 13
