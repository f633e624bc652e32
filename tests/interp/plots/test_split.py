import numpy as np
import pytest
import torch

from headatlas.interp.errors import InputError
from headatlas.interp.plots import plot_split


def test_the_whole_and_its_slices():
    vectors = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    figure = plot_split(vectors, n_heads=4, tokens=["a", "a", "Ġb"], what="k")
    whole, *heads = figure.data
    np.testing.assert_allclose(whole.z, vectors.double().numpy())
    assert len(heads) == 4
    for number, trace in enumerate(heads):
        np.testing.assert_allclose(trace.z, vectors[:, 3 * number : 3 * number + 3].double())
    assert figure.layout.title.text == "k: 3 tokens × 12 → 3 tokens × 4 heads × 3"
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
        (torch.ones(2, 2), {"n_heads": 0}, "n_heads is a whole number from 1"),
    ],
)
def test_what_cannot_be_split_is_refused(vectors, options, part):
    with pytest.raises(InputError, match=part):
        plot_split(vectors, **options)
