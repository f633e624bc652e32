import numpy as np
import pytest
import torch

from headatlas.interp.errors import InputError
from headatlas.interp.heads import KvHeadId
from headatlas.interp.plots import plot_split
from headatlas.interp.plots.style import DARK, LIGHT
from tests.interp.plots.test_style import contrast


def test_the_whole_and_its_slices():
    vectors = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    figure = plot_split(vectors, n_heads=4, tokens=["a", "a", "Ġb"], what="k")
    whole, *heads = figure.data
    np.testing.assert_allclose(whole.z, vectors.double().numpy())
    assert len(heads) == 4
    for number, trace in enumerate(heads):
        np.testing.assert_allclose(trace.z, vectors[:, 3 * number : 3 * number + 3].double())
    assert figure.layout.title.text == "k: 3 tokens × 12 → 3 tokens × 4 key-value heads × 3"
    assert figure.layout.yaxis.ticktext == ("a", "a", "·b")
    assert figure.layout.yaxis.tickvals == (0, 1, 2)
    assert [shape.x0 for shape in figure.layout.shapes] == [2.5, 5.5, 8.5]
    assert figure.layout.coloraxis.cmin == -figure.layout.coloraxis.cmax


def test_vectors_by_head_are_the_same_picture():
    vectors = torch.arange(24.0).reshape(1, 2, 3, 4)
    one = plot_split(vectors)
    for given, n_heads in ((vectors[0], 3), (vectors.reshape(2, 12), 3), (vectors[0], None)):
        other = plot_split(given, n_heads=n_heads)
        for left, right in zip(one.data, other.data, strict=True):
            np.testing.assert_array_equal(left.z, right.z)
    batch_of_one = plot_split(vectors.reshape(1, 2, 12), n_heads=3)
    np.testing.assert_array_equal(batch_of_one.data[0].z, one.data[0].z)


def test_many_heads_stand_in_rows_about_equally_full():
    figure = plot_split(torch.ones(2, 9, 2))
    assert len(figure.data) == 10
    last = figure.layout.xaxis10.domain[1]
    assert last < figure.layout.xaxis6.domain[1]  # four under five
    assert figure.layout.xaxis6.domain[1] == pytest.approx(1)


@pytest.mark.parametrize(
    ("vectors", "options", "part"),
    [
        (torch.ones(2, 10), {"n_heads": 3}, "10 columns do not divide into 3 heads"),
        (torch.ones(2, 10), {}, r"\[pos, d\] with n_heads="),
        (torch.ones(2, 3, 4), {"n_heads": 2}, r"got the shape \(2, 3, 4\) and n_heads=2"),
        (torch.ones(2, 2, 3, 4), {}, "got the shape"),
        (torch.ones(2, 0), {"n_heads": 1}, "do not divide"),
        (torch.ones(1, 65, 1), {}, "65 heads"),
        (torch.full((2, 1, 2), float("nan")), {}, "not finite"),
        (torch.ones(2, 1, 2), {"tokens": ["a"]}, "the vectors has 2 positions"),
        (torch.ones(3000, 1, 2), {}, "3000 tokens of 1 heads make too high .* at most 991 tokens"),
        (torch.ones(2, 2, 2), {"heads": ["a"]}, "the split has 2 heads and heads= names 1"),
        (torch.ones(2, 2), {"n_heads": 0}, "n_heads is a whole number from 1"),
    ],
)
def test_what_cannot_be_split_is_refused(vectors, options, part):
    with pytest.raises(InputError, match=part):
        plot_split(vectors, **options)


def test_keys_and_values_are_of_key_value_heads():
    values = torch.ones(2, 4, 3)
    figure = plot_split(values, what="v")
    titles = [note.text for note in figure.layout.annotations][:5]
    assert titles == ["all 4 key-value heads", *(f"KV head {i}" for i in range(4))]
    assert "KV head 1 of v" in figure.data[2].hovertemplate
    queries = [note.text for note in plot_split(values).layout.annotations][:2]
    assert queries == ["all 4 heads", "head 0"]
    named = plot_split(values, what="k", heads=[KvHeadId("", 0, i) for i in range(4)])
    assert [note.text for note in named.layout.annotations][1:5] == [f"L0KV{i}" for i in range(4)]


def test_the_highest_picture_fits_a_page():
    assert plot_split(torch.ones(991, 1, 2)).layout.height < 6200


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_lines_between_heads_stand_out_from_zero(theme):
    (line,) = plot_split(torch.zeros(2, 2, 2), theme=theme.name).layout.shapes
    assert contrast(line.line.color, theme.diverging[2]) > 3
