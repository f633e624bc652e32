"""The CPU backend against the float64 oracle, on random calls of every kind."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from headatlas.kernels.api import Mask, ProbeOut, Weights, attention_probe

from .cases import Case, cases

# beartype samples containers with `random` while a strategy builds its values
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")

# A score is a sum of d <= 24 products of normal numbers, scaled: |s| stays below about 40, so
# float32 rounds it by at most 40 * 2**-23 * a few, and weights, sums of weights and lse inherit
# that relative error (1e-5 leaves a factor of two). Entropy sums A ln A, |ln A| <= 80, hence 20
# times more. bfloat16 inputs are exact in the oracle as well, but the fused operator takes a
# short exp there: its lse is off by up to 5e-5, measured, and every weight by as much.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-4}
# out is rounded to bfloat16 (2**-9 relative) after P was; |v| < 5
OUT = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 0.06}
# The terms of received, and of a pooled mean, are not negative: the sum is relatively as exact as
# its worst term, whatever their number. Adding them in float32 within a tile (256 rows at most,
# by pairs) costs a few 2**-24 more; tiles are added in float64.
STATISTICS = ("lse", "mass", "top_weight", "sink_mass", "entropy", "received")

SETTINGS = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def assert_near(got: Tensor | None, wanted: Tensor | None, tolerance: float, name: str) -> None:
    if got is None or wanted is None:
        assert got is wanted, name
        return
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype), name
    assert not got.isnan().any(), name
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance, msg=name)


@given(cases())
@SETTINGS
def test_every_output_equals_the_oracle(case: Case) -> None:
    dtype = case.q.dtype
    got = attention_probe(case.q, case.k, case.v, backend="cpu", **case.options)
    wanted = attention_probe(case.q, case.k, case.v, backend="reference", **case.options)
    assert_near(got.out, wanted.out, OUT[dtype], "out")
    for name in STATISTICS:
        widen = 20 if name == "entropy" else 1
        assert_near(getattr(got, name), getattr(wanted, name), widen * TOLERANCE[dtype], name)
    exported = TOLERANCE[dtype]
    if got.weights is not None and got.weights.dtype == torch.bfloat16:
        exported = 2**-8
    assert_near(got.weights, wanted.weights, exported, "weights")
    if got.top_key is not None:
        assert_same_top(case, got, wanted)


@given(cases(dtypes=(torch.float32, torch.float64)))
@SETTINGS
def test_small_tiles_give_the_same_sums(case: Case) -> None:
    """Several tiles per call, and cells higher than a step: what only long contexts need."""
    options = {**case.options, "received": True}
    if options["weights"] is None or options["weights"].rows is not None:
        options["weights"] = Weights(pool=(20, 7))
    with pytest.MonkeyPatch.context() as patch:
        for module in ("sweep", "export", "pool"):
            patch.setattr(f"headatlas.kernels.{module}.TILE", 64)
        got = attention_probe(case.q, case.k, case.v, backend="cpu", **options)
    wanted = attention_probe(case.q, case.k, case.v, backend="reference", **options)
    tolerance = TOLERANCE[case.q.dtype]
    for name in ("received", "weights"):
        assert_near(getattr(got, name), getattr(wanted, name), tolerance, name)


@pytest.mark.parametrize("rows", [10, 100_000])
def test_received_is_as_exact_for_many_rows_as_for_few(rows: int) -> None:
    """Three equal weights: added up in float32, tile by tile, they would drift away."""
    q, k = torch.zeros(1, 1, rows, 1), torch.zeros(1, 1, 3, 1)
    got = attention_probe(q, k, k, mask=Mask(causal=False), received=True)
    assert got.received is not None
    third = torch.full((3,), rows / 3, dtype=torch.float64)
    # lse = ln 3 is rounded by 2**-24, exp and the result by half as much each
    torch.testing.assert_close(got.received[0, 0].double(), third, rtol=2**-22, atol=0.0)


def assert_same_top(case: Case, got: ProbeOut, wanted: ProbeOut) -> None:
    """Equal scores may round apart, so the chosen keys are compared by their weight."""
    assert got.top_key is not None
    assert wanted.top_key is not None
    assert torch.equal(got.top_key < 0, wanted.top_key < 0)
    options = {**case.options, "weights": Weights(dtype=torch.float64), "matches": ()}
    A = attention_probe(case.q, case.k, case.v, backend="reference", **options).weights
    assert A is not None
    chosen = A.gather(-1, got.top_key.clamp(min=0)[..., None])[..., 0]
    assert torch.all(chosen >= A.amax(-1) * (1 - 20 * TOLERANCE[case.q.dtype]) - 1e-30)


@given(cases(dtypes=(torch.float32, torch.float64)))
@SETTINGS
def test_a_known_lse_gives_the_same_statistics_without_v(case: Case) -> None:
    full = attention_probe(case.q, case.k, case.v, backend="cpu", **case.options)
    known = attention_probe(case.q, case.k, None, lse=full.lse, backend="cpu", **case.options)
    assert known.out is None
    for name in (*STATISTICS, "top_key", "weights"):
        got, wanted = getattr(known, name), getattr(full, name)
        assert (got is None) == (wanted is None)
        assert got is None or torch.equal(got, wanted), name
