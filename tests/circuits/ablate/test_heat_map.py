"""Heat maps of a sweep: a panel per method and sort of documents."""

import numpy as np
import pandas as pd
import pytest

from headatlas.circuits.ablate.ablate import ablation_sweep
from headatlas.circuits.ablate.heat_map import draw
from headatlas.interp.errors import InputError
from headatlas.interp.plots import write_figure
from tests.circuits.ablate.conftest import SMALL, rows_of
from tests.circuits.causal.models import gpt2


def test_a_heat_map_of_one_method_and_sort(tmp_path, swept):
    figure = swept.plot("kl_nats", method="zero", documents="repeated", title="<b>mine")
    (trace,) = figure.data
    assert trace.z.shape == (3, 4)
    expected = rows_of(swept, method="zero", documents="repeated", layer=2, head=1)["kl_nats"][0]
    assert trace.z[2, 1] == expected
    assert figure.layout.title.text == "&lt;b&gt;mine"
    assert figure.layout.coloraxis.cmin == 0
    loss = swept.plot(method="mean", documents="text")
    scale = loss.layout.coloraxis
    assert scale.cmin == -scale.cmax
    assert loss.layout.title.text.endswith("without each head: mean ablation, text")
    ratio = swept.plot("perplexity_ratio", method="zero", documents="text").layout.coloraxis
    assert (ratio.cmin + ratio.cmax) / 2 == pytest.approx(1)
    write_figure(loss, tmp_path / "map.html")
    assert "plotly" in (tmp_path / "map.html").read_text()
    with pytest.raises(InputError, match="a heat map shows"):
        swept.plot("grade")
    with pytest.raises(InputError, match=r"a heat map shows .* on 'wiki'"):
        swept.plot(documents="wiki")
    with pytest.raises(InputError, match="removed by mean, zero; got 'resample'"):
        swept.plot(method="resample")


def test_heat_maps_show_all_methods_and_sorts_each_with_its_own_colours(swept):
    figure = swept.plot()
    panels = [(method, sort) for method in ("mean", "zero") for sort in ("text", "repeated")]
    titles = [one.text for one in figure.layout.annotations]
    assert titles == [
        "mean ablation, text", "mean ablation, second copies",
        "zero ablation, text", "zero ablation, second copies",
    ]  # fmt: skip
    for trace, (method, sort) in zip(figure.data, panels, strict=True):
        own = rows_of(swept, method=method, documents=sort)["delta_loss_nats"].to_numpy()
        assert trace.z.ravel().tolist() == own.tolist()
        scale = figure.layout[trace.coloraxis]
        assert scale.cmax == pytest.approx(np.quantile(np.abs(own), 0.98))
        told = scale.colorbar.title.text
        assert (f"last colour: {scale.cmax:.2g} or more" in told) == (own.max() > scale.cmax)
        assert (f"first colour: {scale.cmin:.2g} or less" in told) == (own.min() < scale.cmin)
    assert len({trace.coloraxis for trace in figure.data}) == 4
    assert len(swept.plot(method="zero").data) == len(swept.plot(documents="text").data) == 2


def map_rows(layers, heads, documents=("text", "repeated")):
    """Made-up rows with a head far above and one far below the others."""
    rng = np.random.default_rng(0)
    tables = []
    for method in ("mean", "zero"):
        for sort in documents:
            layer, head = np.indices((layers, heads)).reshape(2, -1)
            delta = rng.normal(0, 0.01, layers * heads)
            delta[[0, -1]] = 5, -7
            table = {"layer": layer, "head": head, "method": method, "documents": sort}
            table |= {"delta_loss_nats": delta, "delta_low": delta - 1, "delta_high": delta + 1}
            tables.append(pd.DataFrame(table))
    return pd.concat(tables)


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (4, 8), (30, 9), (80, 64), (3, 128)])
def test_heat_maps_of_any_size_stand_apart(layers, heads):
    sorts = ["text", "repeated"]
    figure = draw(map_rows(layers, heads), "delta_loss_nats", ["mean", "zero"], sorts, None)
    layout = figure.layout
    assert 300 < layout.height <= 1700
    assert 500 < layout.width <= 2700
    margin = layout.margin
    wide = layout.width - margin.l - margin.r
    high = layout.height - margin.t - margin.b
    for number, trace in enumerate(figure.data):
        across = layout[f"xaxis{number + 1 if number else ''}"]
        down = layout[f"yaxis{number + 1 if number else ''}"]
        bar = layout[trace.coloraxis].colorbar
        assert 0 < (bar.x - across.domain[1]) * wide < 12  # right of its panel
        assert bar.y == pytest.approx(sum(down.domain) / 2)
        # as high as its panel, which a narrow figure may stretch but never shrinks
        assert bar.len == pytest.approx((down.domain[1] - down.domain[0]) * high)
        assert (across.domain[1] - across.domain[0]) * wide > 7.9 * heads
        assert across.dtick == int(across.dtick)
        assert down.range[0] > down.range[1]  # the first layer on top
        if number % 2 == 0:  # room for the colour bar and what it says
            right = layout[f"xaxis{number + 2}"].domain[0]
            assert (right - bar.x) * wide > 200


def test_colours_that_end_on_both_sides_are_said():
    rows = map_rows(9, 9, ["text"])
    said = draw(rows, "delta_loss_nats", ["zero"], ["text"], None).layout.coloraxis
    assert f"last colour: {said.cmax:.2g} or more<br>first colour" in said.colorbar.title.text
    calm = rows.assign(delta_loss_nats=0.5)
    said = draw(calm, "delta_loss_nats", ["zero"], ["text"], None).layout.coloraxis
    assert said.colorbar.title.text == "Δ loss (nats/token)"
    near = rows.assign(perplexity_ratio=1 + rows["delta_loss_nats"] / 1000)
    near = near.assign(ratio_low=1, ratio_high=1)
    said = draw(near, "perplexity_ratio", ["zero"], ["text"], None).layout.coloraxis
    assert "last colour: 1.00" in said.colorbar.title.text


def test_heads_that_were_not_removed_stay_blank():
    found = ablation_sweep(gpt2(), None, heads=["L0H1", "L2H0"], **SMALL)
    for trace in found.plot().data:
        cells = np.isfinite(trace.z).tolist()
        assert cells == [[False, True], [False, False], [True, False]]


def test_a_panel_without_a_value_stays_blank():
    rows = map_rows(3, 3)
    rows.loc[rows["documents"] == "text", "delta_loss_nats"] = np.nan
    figure = draw(rows, "delta_loss_nats", ["zero"], ["text", "repeated"], None)
    assert np.isnan(figure.data[0].z).all()
    assert np.isfinite(figure.data[1].z).all()


def test_an_infinite_value_has_the_last_colour_and_is_told():
    rows = map_rows(3, 3, ["text"]).assign(ratio_low=1.0, ratio_high=np.inf)
    rows = rows.assign(perplexity_ratio=1 + rows["delta_loss_nats"].abs())
    rows.loc[0, "perplexity_ratio"] = np.inf
    figure = draw(rows, "perplexity_ratio", ["zero"], ["text"], "")
    (trace,) = figure.data
    assert trace.z[0, 0] == figure.layout.coloraxis.cmax
    assert trace.customdata[0, 0].tolist() == ["∞", "1.0000", "∞"]
    assert "or more" in figure.layout.coloraxis.colorbar.title.text
    assert figure.layout.title.text is None  # an empty title is none
