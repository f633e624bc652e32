from types import SimpleNamespace

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
    assert figure.layout.xaxis.ticktext == ("0", "1", "2")
    assert {trace.name for trace in figure.data if trace.showlegend} == {"K", "Q"}
    assert any(text.startswith("L0H1 → L2H3 through Q<br>z 5") for text in told(figure))


def test_edges_are_as_wide_as_they_are_strong():
    def widths(figure):
        edges = [t for t in figure.data if t.mode == "lines" and t.hoverinfo == "skip"]
        return sorted(trace.line.width for trace in edges)

    assert widths(plot_composition(FOUND)) == [1, 3.5, 6]
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
        (pairs(("L1H0", "L1H1", "K", 1.0, 1.0)), {}, "a source stands in an earlier layer"),
        (pairs(("L1", "L2H1", "K", 1.0, 1.0)), {}, "a head is written L18H6"),
        (pairs((None, "L2H1", "K", 1.0, 1.0)), {}, "a head is written L18H6"),
        (pairs(("L0H0", "L2H1", "K", float("nan"), 1.0)), {}, "no pair has a finite z"),
        (pairs(("L0H0", "L2H1", "K", "much", 1.0)), {}, "no pair has a finite z"),
        (FOUND, {"kind": "V"}, "no pair"),
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
