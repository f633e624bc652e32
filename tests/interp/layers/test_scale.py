import math
import re

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headatlas.interp.errors import InputError
from headatlas.interp.layers.attention import HookedAttention
from headatlas.interp.layers.config import AttentionConfig
from headatlas.interp.layers.scale import ScaleDiagnostic, diagnose_scales, scale_diagnostic
from headatlas.kernels.api import Mask, Scores

from .variants import VARIANTS, inputs, layer_of, paddings


def by_autograd(row):
    """Frobenius norm and trace of the softmax's Jacobian at one row of scores."""
    jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), row)
    return float(jacobian.norm()), float(jacobian.trace())


@settings(max_examples=15, deadline=None)
@given(d_key=st.integers(1, 20), seed=st.integers(0, 99), scale=st.floats(0.01, 2.0))
@example(d_key=11, seed=11, scale=2.0)  # one weight is 1 − 3e-9
def test_every_figure_by_hand(d_key, seed, scale):
    torch.manual_seed(seed)
    q, k = torch.randn(2, 1, 1, 3, d_key, dtype=torch.float64)
    found = scale_diagnostic(q, k, mask=Mask(), scores=Scores(scale=scale))
    dots = (q @ k.transpose(2, 3))[0, 0]
    visible = dots[torch.ones(3, 3).tril().bool()]
    for factor, seen in ((1.0, found.unscaled), (scale, found.scaled)):
        rows = [factor * dots[1, :2], factor * dots[2]]  # row 0 has one key
        weights = [row.softmax(-1) for row in rows]
        shares = [torch.special.entr(a).sum() / math.log(len(a)) for a in weights]
        norms, traces = zip(*(by_autograd(row) for row in rows), strict=True)
        assert seen.logit_variance == pytest.approx(
            float((factor * visible).var(correction=0)), rel=1e-9, abs=1e-12
        )
        assert seen.max_weight == pytest.approx(sum(float(a.max()) for a in weights) / 2)
        assert seen.entropy_share == pytest.approx(float(sum(shares)) / 2)
        assert seen.gradient_norm == pytest.approx(sum(norms) / 2, rel=1e-6, abs=1e-9)
        assert seen.gradient_trace == pytest.approx(sum(traces) / 2, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("d_key", [16, 64, 256])
def test_variance_is_d_key_and_the_scale_makes_it_one(d_key):
    torch.manual_seed(0)
    q, k = torch.randn(2, 2, 8, 64, d_key)
    found = scale_diagnostic(q, k, mask=Mask(causal=False))
    # 16 heads' sums of 64² products; one head's variance has relative spread ~ √(4/64), correlated
    assert found.unscaled.logit_variance == pytest.approx(d_key, rel=0.15)
    assert found.scaled.logit_variance == pytest.approx(1.0, rel=0.15)
    assert found.unscaled.max_weight > 2 * found.scaled.max_weight
    assert found.unscaled.entropy_share < found.scaled.entropy_share
    assert found.unscaled.gradient_trace < 0.75 * found.scaled.gradient_trace


def test_equal_scores():
    """n equal weights: entropy share 1, largest weight 1/n, trace 1 − 1/n."""
    x = torch.zeros(1, 1, 4, 2)
    seen = scale_diagnostic(x, x, mask=Mask(causal=False)).scaled
    assert seen.logit_variance == 0
    assert seen.max_weight == pytest.approx(0.25)
    assert seen.entropy_share == pytest.approx(1.0)
    assert seen.gradient_trace == pytest.approx(0.75)
    assert seen.gradient_norm == pytest.approx(math.sqrt(3) / 4)


def test_a_sink_is_an_outcome():
    x = torch.zeros(1, 1, 2, 2)
    seen = scale_diagnostic(x, x, scores=Scores(sinks=torch.zeros(1))).scaled
    assert seen.max_weight == pytest.approx((1 / 2 + 1 / 3) / 2)


def test_padding_counts_nowhere():
    layer, x, padding = layer_of(VARIANTS["gqa"]), inputs(2, 9), paddings(2, 9)["gap"]
    noisy = torch.where(padding[..., None], x, x + 100)
    gap = int((~padding[0]).nonzero())
    keys = [i for i in range(9) if i != gap]
    trace = layer.trace(noisy[:1], padding=padding[:1])
    visible = trace.attn_scores[0][:, keys][:, :, keys]
    finite = [head[head.isfinite()].var(correction=0) for head in visible]
    [noisy_seen] = diagnose_scales(layer, noisy[:1], padding[:1]).values()
    expected = float(torch.stack(finite).detach().mean())
    assert noisy_seen.scaled.logit_variance == pytest.approx(expected)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "deepseek_v3"])
def test_on_a_model(tiny, family):
    model = tiny(family, attn="eager")
    ids = torch.arange(12)[None] * 5 % 89 + 3
    found = diagnose_scales(model, ids)
    assert [site.layer for site in found] == [0, 1]
    for site, seen in found.items():
        assert isinstance(seen, ScaleDiagnostic)
        assert seen.d_key == site.d_head
        ratio = seen.scaled.logit_variance / seen.unscaled.logit_variance
        assert ratio == pytest.approx(seen.scale**2)


def test_on_several_layers_of_our_own():
    stack = torch.nn.Sequential(*(HookedAttention(AttentionConfig(64, 2)) for _ in range(2)))
    found = diagnose_scales(stack, inputs(1, 8, 64, dtype=torch.float32))
    assert [site.module for site in found] == ["0", "1"]
    assert "d_key = 32" in repr(next(iter(found.values())))


def test_several_layers_print_as_a_table():
    stack = torch.nn.Sequential(layer_of(VARIANTS["gqa"]), layer_of(VARIANTS["mla"]))
    found = diagnose_scales(stack, inputs(1, 8))
    head, *rows = repr(found).splitlines()
    assert head.split()[:5] == ["layer", "d_key", "scale", "logit", "variance"]
    assert len({len(line) for line in (head, *rows)}) == 1
    for number, (row, seen) in enumerate(zip(rows, found.values(), strict=True)):
        cells = re.split(r"\s{2,}", row.strip())
        assert cells[:3] == [f"L{number}", str(seen.d_key), f"{seen.scale:.4g}"]
        assert cells[3] == (
            f"{seen.unscaled.logit_variance:.3g} → {seen.scaled.logit_variance:.3g}"
        )
        assert len(cells) == 8


def test_nothing_to_look_at():
    x = torch.zeros(1, 1, 1, 2)
    with pytest.raises(InputError, match="no query sees two keys"):
        scale_diagnostic(x, x)
