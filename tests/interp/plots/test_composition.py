from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from headatlas.interp.errors import InputError
from headatlas.interp.plots import plot_composition


def pairs(*rows):
    return pd.DataFrame(rows, columns=["source", "target", "kind", "z", "score"])


FOUND = pairs(
    ("L0H1", "L1H0", "K", 9.0, 0.5),
    ("L0H1", "L2H3", "Q", 5.0, 0.2),
    ("L1H0", "L2H3", "K", 1.0, 0.9),
)


def heads_of(figure):
    return [text for trace in figure.data for text in trace.text or ()]


def told(figure):
    return [text for trace in figure.data for text in trace.customdata or ()]


def test_heads_stand_in_the_column_of_their_layer():
    figure = plot_composition(FOUND)
    assert heads_of(figure) == ["L0H1", "L1H0", "L2H3"]
    (nodes,) = [trace for trace in figure.data if trace.text]
    assert nodes.x == (0, 1, 2)
    assert sorted(figure.layout.xaxis.ticktext) == ["0", "1", "2"]
    assert {trace.name for trace in figure.data if trace.showlegend} == {"K", "Q"}
    assert any(text.startswith("L0H1 → L2H3 through Q<br>z 5") for text in told(figure))


def test_edges_are_as_wide_as_they_are_strong():
    def widths(figure):
        edges = [t for t in figure.data if t.mode == "lines" and t.hoverinfo == "skip"]
        return sorted(trace.line.width for trace in edges)

    assert widths(plot_composition(FOUND)) == pytest.approx([6 / 9, 6 * 5 / 9, 6])
    near = pairs(("L0H1", "L1H0", "K", 9.0, 0), ("L0H1", "L1H1", "K", 9.1, 0))
    assert widths(plot_composition(near)) == pytest.approx([6 * 9 / 9.1, 6])
    below = pairs(("L0H1", "L1H0", "K", -9.0, 0), ("L0H1", "L1H1", "K", -0.1, 0))
    assert widths(plot_composition(below)) == [0.5, 0.5]
    strongest = plot_composition(FOUND, top=1)
    assert heads_of(strongest) == ["L0H1", "L1H0"]
    by_score = plot_composition(FOUND, top=1, value="score")
    assert heads_of(by_score) == ["L1H0", "L2H3"]


def test_one_kind_and_what_has_a_table():
    asked = []

    def table(kind, top):
        asked.append((kind, top))
        return FOUND

    figure = plot_composition(SimpleNamespace(table=table), kind="K")
    assert asked == [("K", None)]
    assert len(told(figure)) == 2


@pytest.mark.parametrize(
    ("table", "options", "part"),
    [
        (
            pairs(("L1H0", "L1H1", "K", 1.0, 1.0)),
            {},
            "L1H1 cannot read L1H0: a source stands before its target",
        ),
        (pairs(("L1", "L2H1", "K", 1.0, 1.0)), {}, "a head is written L18H6"),
        (pairs((None, "L2H1", "K", 1.0, 1.0)), {}, "a head is written L18H6"),
        (pairs(("L0H0", "L2H1", "K", float("nan"), 1.0)), {}, "no pair has a z"),
        (pairs(("L0H0", "L2H1", "K", "much", 1.0)), {}, "finite numbers, or NaN .* got 'much'"),
        (pairs(*FOUND.values, ("L0H0", "L2H1", "K", float("inf"), 1)), {}, "'z' holds .* got inf"),
        (FOUND, {"kind": "Z"}, "no pair is of kind 'Z'; there are K, Q"),
        (pairs(("enc.L0H0", "dec.L2H1", "K", 1.0, 1.0)), {}, "dec.L2H1 cannot read enc.L0H0"),
        (pairs(("cross.L0H0", "dec.L0H1", "K", 1.0, 1.0)), {}, "self-attention before cross"),
        (FOUND, {"top": 0}, "top is a whole number"),
        (FOUND, {"value": "p"}, "no column 'p'"),
        (FOUND.drop(columns="kind"), {"kind": "K"}, "no column kind"),
        (FOUND.drop(columns="source"), {}, "no column 'source'"),
        ({}, {}, "got dict"),
    ],
)
def test_what_is_no_composition_is_refused(table, options, part):
    with pytest.raises(InputError, match=part):
        plot_composition(table, **options)


def test_pairs_without_a_value_are_counted():
    table = pairs(*FOUND.values, ("L0H0", "L2H1", "K", float("nan"), 1.0))
    figure = plot_composition(table)
    assert figure.layout.title.text.endswith("3 pairs of largest z (1 without a z are left out)")
    assert len(told(figure)) == 3
    assert "left out" not in plot_composition(FOUND).layout.title.text


def test_stacks_stand_in_the_order_in_which_they_write():
    table = pairs(
        ("enc.L5H0", "cross.L0H0", "V", 3.0, 0),
        ("dec.L0H1", "cross.L0H0", "Q", 2.0, 0),
        ("cross.L0H0", "dec.L1H0", "K", 1.0, 0),
    )
    figure = plot_composition(table)
    named = dict(zip(figure.layout.xaxis.tickvals, figure.layout.xaxis.ticktext, strict=True))
    assert named == {0: "enc 5", 1: "dec 0", 2: "cross 0", 3: "dec 1"}
    (nodes,) = [trace for trace in figure.data if trace.text]
    assert dict(zip(nodes.text, nodes.x, strict=True)) == {
        "enc.L5H0": 0, "dec.L0H1": 1, "cross.L0H0": 2, "dec.L1H0": 3
    }  # fmt: skip


def test_edges_lead_around_the_heads_that_they_pass():
    rows = [(f"L{i}H{j}", f"L{i + 1}H{j}", "K", 1.0 + i + j, 0) for i in range(5) for j in range(4)]
    rows += [
        (f"L0H{j}", f"L{i}H{k}", "Q", 9.0, 0) for j in range(4) for i in (2, 4) for k in (0, 3)
    ]
    figure = plot_composition(pairs(*rows), top=100)
    (nodes,) = [trace for trace in figure.data if trace.text]
    curves = [t for t in figure.data if t.mode == "lines" and t.hoverinfo == "skip"]
    low, high = sorted(figure.layout.yaxis.range)
    for curve in curves:
        x, y = np.array(curve.x), np.array(curve.y)
        assert low < y.min() <= y.max() < high
        for across, height in zip(nodes.x, nodes.y, strict=True):
            if x[0] < across < x[-1]:
                # a head reaches to 0.3; a steep edge may touch its corner
                assert np.abs(y[np.abs(x - across) < 0.22] - height).min() > 0.27
