"""Wrong calls fail early and say what to do; a named backend never becomes another one."""

import inspect
import re

import pytest
import torch

from headatlas.kernels import api
from headatlas.kernels.api import Mask, Match, Scores, Weights

# Without the type checks that the tests switch on: users do not have them
probe = inspect.unwrap(api.attention_probe)

X = torch.zeros(2, 4, 6, 8)
KV = torch.zeros(2, 2, 6, 8)
HERE = torch.arange(6).expand(2, 6)


def swapped(value, **fields):
    """A value object that holds what its own checks would refuse."""
    for name, content in fields.items():
        object.__setattr__(value, name, content)
    return value


WRONG = {
    "k has batch 1 but q has 2": lambda: probe(X, KV[:1], KV),
    "q has d_key 8 but k has 7": lambda: probe(X, KV[..., :7], KV),
    "q has 4 heads, not a multiple of k's 3": lambda: probe(X, X[:, :3], X[:, :3]),
    "v must have k's heads and keys [2, 6]; got [2, 5]": lambda: probe(X, KV, KV[:, :, :5]),
    "v is None and no lse was given": lambda: probe(X, KV, None),
    "lse must have shape [batch, head, query] = [2, 4, 6]": lambda: probe(X, KV, KV, lse=X[0]),
    "window must be at least 1; got 0": lambda: probe(X, KV, KV, mask=Mask(window=0)),
    "mask.k_range must have shape": lambda: probe(X, KV, KV, mask=swapped(Mask(), k_range=HERE)),
    "mask.q_pos must have shape": lambda: probe(X, KV, KV, mask=Mask(q_pos=HERE[:, :5])),
    "softcap must be positive and finite; got 0.0": lambda: probe(
        X, KV, KV, scores=Scores(softcap=0.0)
    ),
    "softcap must be positive and finite; got inf": lambda: probe(
        X, KV, KV, scores=Scores(softcap=float("inf"))
    ),
    "softcap must be positive and finite; got nan": lambda: probe(
        X, KV, KV, scores=Scores(softcap=float("nan"))
    ),
    "scale must be finite; got nan": lambda: probe(X, KV, KV, scores=Scores(scale=float("nan"))),
    "scale must be finite; got -inf": lambda: probe(X, KV, KV, scores=Scores(scale=-float("inf"))),
    "scores.sinks must have shape [head] = [4]": lambda: probe(
        X, KV, KV, scores=Scores(sinks=torch.zeros(2))
    ),
    "scores.bias must broadcast to": lambda: probe(
        X, KV, KV, scores=Scores(bias=torch.zeros(1, 3, 6, 6))
    ),
    "full key axis; got [1, 1, 6, 1]": lambda: probe(
        X, KV, KV, scores=Scores(bias=torch.zeros(1, 1, 6, 1))
    ),
    "matches[1].k_label must have shape [batch, key] = [2, 6]; got [2, 5]": lambda: probe(
        X, KV, KV, matches=[Match(HERE, HERE), Match(HERE, HERE[:, :5])]
    ),
    "weights.heads must lie in 0..3; got [4, -1]": lambda: probe(
        X, KV, KV, weights=Weights(heads=(0, 4, -1))
    ),
    "weights.rows must lie in -1..5": lambda: probe(
        X, KV, KV, weights=Weights(rows=torch.tensor([[0], [6]]))
    ),
    "weights.rows must have shape [batch, rows]": lambda: probe(
        X, KV, KV, weights=Weights(rows=HERE[:1])
    ),
    "weights.pool must hold at least 1 row and 1 key per cell; got (4, 0)": lambda: probe(
        X, KV, KV, weights=Weights(pool=(4, 0))
    ),
    "weights.rows and weights.pool were both given": lambda: probe(
        X, KV, KV, weights=Weights(rows=HERE, pool=(2, 2))
    ),
    "weights.reduce must be 'mean' or 'max'; got 'sum'": lambda: probe(
        X, KV, KV, weights=swapped(Weights(pool=(2, 2)), reduce="sum")
    ),
    "weights.reduce is 'max' but there is no weights.pool": lambda: probe(
        X, KV, KV, weights=Weights(reduce="max")
    ),
    "unknown backend 'cuda'; choose from": lambda: probe(X, KV, KV, backend="cuda"),
    "q must be [batch, head, position, width]; got [4, 6, 8]": lambda: probe(X[0], KV, KV),
}

WRONG_KIND = {
    "k is torch.float64": lambda: probe(X, KV.double(), KV),
    "q must be a floating-point tensor; got torch.int64": lambda: probe(
        X.long(), KV.long(), KV.long()
    ),
    "must hold integers; got torch.float32": lambda: probe(
        X, KV, KV, matches=[swapped(Match(HERE, HERE), q_label=HERE.float())]
    ),
    "must hold integers; got torch.bool": lambda: probe(
        X, KV, KV, weights=swapped(Weights(), rows=HERE > 0)
    ),
    "must be floating point; got torch.bool": lambda: probe(
        X, KV, KV, scores=swapped(Scores(), bias=torch.ones(1, 1, 6, 6).bool())
    ),
    "mask must be a Mask; got NoneType": lambda: probe(X, KV, KV, mask=None),
    "scores must be a Scores; got NoneType": lambda: probe(X, KV, KV, scores=None),
    "weights must be a Weights or None; got tuple": lambda: probe(X, KV, KV, weights=(0, 1)),
    "got a single Match. Write matches=[match]": lambda: probe(
        X, KV, KV, matches=Match(HERE, HERE)
    ),
    "matches must be a sequence of Match; got NoneType": lambda: probe(X, KV, KV, matches=None),
    "matches[1] must be a Match; got Tensor": lambda: probe(
        X, KV, KV, matches=[Match(HERE, HERE), HERE]
    ),
    "matches[0].k_label must be a tensor of integers; got list": lambda: probe(
        X, KV, KV, matches=[swapped(Match(HERE, HERE), k_label=[0, 1])]
    ),
    "window must be a whole number of keys or None; got True": lambda: probe(
        X, KV, KV, mask=Mask(window=True)
    ),
    "window must be a whole number of keys or None; got 2.5": lambda: probe(
        X, KV, KV, mask=swapped(Mask(), window=2.5)
    ),
    "weights.pool must be a tuple of two whole numbers, query rows and keys per cell; got 8": (
        lambda: probe(X, KV, KV, weights=swapped(Weights(), pool=8))
    ),
    "whole numbers, query rows and keys per cell; got (8,)": lambda: probe(
        X, KV, KV, weights=swapped(Weights(), pool=(8,))
    ),
    "whole numbers, query rows and keys per cell; got (2.0, 8)": lambda: probe(
        X, KV, KV, weights=swapped(Weights(), pool=(2.0, 8))
    ),
    "whole numbers, query rows and keys per cell; got (True, 8)": lambda: probe(
        X, KV, KV, weights=swapped(Weights(), pool=(True, 8))
    ),
    "weights.dtype must be floating point": lambda: probe(
        X, KV, KV, weights=Weights(dtype=torch.int32)
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_values_that_do_not_fit(message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        WRONG[message]()


@pytest.mark.parametrize("message", WRONG_KIND)
def test_tensors_of_the_wrong_kind(message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        WRONG_KIND[message]()


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_a_named_backend_never_falls_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_):
        raise RuntimeError("this backend is broken")

    monkeypatch.setattr(f"headatlas.kernels.{name}.probe", broken)
    with pytest.raises(RuntimeError, match="this backend is broken"):
        probe(X, KV, KV, backend=name)


def test_auto_is_the_cpu_backend_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def ran(*_):
        raise RuntimeError("on torch operators")

    monkeypatch.setattr("headatlas.kernels.cpu.probe", ran)
    with pytest.raises(RuntimeError, match="on torch operators"):
        probe(X, KV, KV)


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_auto_means_what_it_is_told_to(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ran(*_):
        raise RuntimeError(f"on {name}")

    monkeypatch.setattr(f"headatlas.kernels.{name}.probe", ran)
    with api.use_backend(name), pytest.raises(RuntimeError, match=f"on {name}"):
        probe(X, KV, KV)
    monkeypatch.undo()
    assert probe(X, KV, KV).out is not None


def test_auto_cannot_mean_an_unknown_backend() -> None:
    with (
        pytest.raises(ValueError, match="unknown backend 'auto'; choose from"),
        api.use_backend("auto"),
    ):
        pass


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize(("n_query", "n_key", "grid"), [(0, 6, (0, 2)), (6, 0, (2, 0))])
def test_empty_inputs_receive_nothing(
    n_query: int, n_key: int, grid: tuple[int, int], backend: str
) -> None:
    q, kv = X[:, :, :n_query], KV[:, :, :n_key]
    pooled = Weights(pool=(4, 5))
    got = api.attention_probe(q, kv, kv, weights=pooled, received=True, top=True, backend=backend)
    assert got.received is not None
    assert got.received.shape == (2, 4, n_key)
    assert torch.all(got.received == 0)
    assert got.weights is not None
    assert got.weights.shape == (2, 4, *grid)


def test_empty_inputs_give_empty_or_dead_outputs() -> None:
    got = api.attention_probe(X[:, :, :0], KV, KV, entropy=True, matches=[Match(HERE[:, :0], HERE)])
    assert got.out is not None
    assert got.mass is not None
    assert got.out.shape == (2, 4, 0, 8)
    assert got.mass.shape == (2, 4, 0, 1)
    got = api.attention_probe(X, KV[:, :, :0], KV[:, :, :0], matches=[Match(HERE, HERE[:, :0])])
    assert got.mass is not None
    assert torch.all(got.lse == -torch.inf)
    assert torch.all(got.mass == 0)
