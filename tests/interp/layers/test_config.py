"""What a layer's description may hold: a config that runs, or one clear error."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headatlas.interp.errors import InputError, shown
from headatlas.interp.layers.attention import HookedAttention
from headatlas.interp.layers.config import AttentionConfig, Latent, QKNorm, Traits
from headatlas.interp.layers.rope import Rope

pytestmark = pytest.mark.usefixtures("as_users_call")  # wrong kinds are for the package to refuse

WIDTHS = {"d_latent": 4, "d_rope": 2, "d_nope": 3, "d_value": 3}
NO_COUNT = [0, -1, True, 2.0, math.nan, math.inf, "4", [4], torch.tensor(4), 2**31, 10**400]
NO_NUMBER = [-1.0, -math.inf, math.nan, math.inf, True, "1", [1.0], 1j, torch.tensor(1.0), 10**400]
NO_POSITIVE = [0, 0.0, 1e-50, *NO_NUMBER]
NO_FLAG = [0, 1, "yes", None, torch.tensor(True)]
NO_PART = [0, True, "rope", {}, object]
BAD = [
    *((Latent, WIDTHS, name, [*NO_COUNT, None]) for name in WIDTHS),
    (Latent, WIDTHS, "q_rank", NO_COUNT),
    (Latent, WIDTHS, "norm_eps", NO_NUMBER),
    (QKNorm, {}, "eps", NO_NUMBER),
    (QKNorm, {}, "unit_offset", NO_FLAG),
    (Rope, {}, "theta", [*NO_POSITIVE, 1e-30, None]),
    (Rope, {}, "d_rotary", [*NO_COUNT, 3]),
    (Rope, {}, "interleaved", NO_FLAG),
    (Rope, {}, "inv_freq", [1.0, [1.0], "12", torch.ones(2), *((n,) for n in NO_NUMBER), (1e30,)]),
    (Rope, {}, "attention_factor", [*NO_POSITIVE, None]),
    (Traits, {}, "causal", NO_FLAG),
    (Traits, {}, "window", NO_COUNT),
    (Traits, {}, "scale", [n for n in NO_NUMBER if n != -1.0]),
    (Traits, {}, "softcap", NO_POSITIVE),
    (Traits, {}, "sinks", NO_FLAG),
    (Traits, {}, "bias", ["some", True, None, ["all"], torch.ones(2)]),
    (Traits, {}, "qk_norm", [*NO_PART, Traits()]),
    *((AttentionConfig, {"d_model": 8, "n_heads": 2}, name, NO_COUNT) for name in
      ("d_model", "n_heads", "n_kv_heads", "d_head")),
    *((AttentionConfig, {"d_model": 8, "n_heads": 2}, name, [*NO_PART, Traits]) for name in
      ("latent", "rope", "traits")),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "others", "name", "values"), BAD)
def test_bad_values_are_named(kind, others, name, values):
    for value in values:
        with pytest.raises(InputError) as caught:
            kind(**{**others, name: value})
        given = value[0] if name == "inv_freq" and isinstance(value, tuple) else value
        assert str(caught.value).startswith(name)
        assert f"got {shown(given)}." in str(caught.value)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Traits(window=0), "window must be a whole number, at least 1.*got 0"),
        (lambda: Traits(softcap=-1.0), r"softcap must be positive, a number from .*got -1\.0"),
        (lambda: QKNorm(eps=-1.0), "eps must be 0 or positive, a number from 0 to"),
        (lambda: Traits(scale=math.nan), "scale must be finite, a number from -3.4e"),
        (lambda: Latent(4, 3, 4, 4), "d_rope must be even, RoPE turns pairs; got 3"),
        (lambda: Rope(d_rotary=3), "d_rotary must be even, RoPE turns pairs; got 3"),
        (lambda: Rope(inv_freq=[1.0]), "inv_freq must be a tuple of numbers or None"),
        (lambda: Traits(qk_norm=True), "qk_norm must be a QKNorm or None; got True"),
        (lambda: AttentionConfig(8, 2, traits=None), "traits must be a Traits; got None"),
        (lambda: HookedAttention({"d_model": 8}), "config must be a AttentionConfig; got"),
    ],
)
def test_errors_say_what_would_do(build, words):
    with pytest.raises(InputError, match=words):
        build()


@pytest.mark.parametrize("window", [5, 2**31 - 1])
@pytest.mark.parametrize("causal", [True, False])
def test_the_widest_window_hides_nothing(window, causal):
    x = torch.randn(1, 5, 8)
    whole = HookedAttention(AttentionConfig(8, 2, traits=Traits(causal=causal)))(x)
    config = AttentionConfig(8, 2, traits=Traits(causal=causal, window=window))
    torch.testing.assert_close(HookedAttention(config)(x), whole)


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 9),
    st.sampled_from([2**31, 2**63, -(2**63), 10**400]),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.floats(), max_size=2),
    st.tuples(st.floats(), st.floats()),
    st.just(Traits()),
)


def mostly(good):
    """Eleven of twelve values are `good` ones."""
    return st.integers(0, 11).flatmap(lambda n: good if n else anything)


width, flag = mostly(st.integers(1, 8)), mostly(st.booleans())
number = mostly(st.floats(1e-6, 1e6))
ARGUMENTS = {
    Latent: {**dict.fromkeys(WIDTHS, width), "d_rope": mostly(st.sampled_from([2, 4])),
             "q_rank": width, "norm_eps": number},
    QKNorm: {"eps": number, "unit_offset": flag},
    Rope: {"theta": number, "d_rotary": mostly(st.sampled_from([None, None, 2, 4])),
           "interleaved": flag, "attention_factor": number,
           "inv_freq": mostly(st.none() | st.tuples(st.floats(0), st.floats(0)))},
    Traits: {"causal": flag, "window": width, "scale": number, "softcap": number,
             "sinks": flag, "bias": mostly(st.sampled_from(["none", "qkv", "all"]))},
    AttentionConfig: {"d_model": mostly(st.sampled_from([8, 16])),
                      "n_heads": mostly(st.sampled_from([1, 2, 4])),
                      "n_kv_heads": mostly(st.sampled_from([None, 1, 2])),
                      "d_head": mostly(st.sampled_from([None, 4, 6]))},
}  # fmt: skip


@st.composite
def descriptions(draw):
    """Arguments of every part, of which any may be wrong; None leaves a part out."""
    given_ = {kind: draw(st.fixed_dictionaries(options)) for kind, options in ARGUMENTS.items()}
    latent = draw(st.booleans())
    for kind, present in ((Latent, latent), (QKNorm, not latent and draw(st.booleans()))):
        given_[kind] = given_[kind] if present else None
    if latent:
        given_[AttentionConfig] |= {"n_kv_heads": None, "d_head": None}
        given_[Rope]["d_rotary"] = None
    return given_


def build(given_):
    latent = None if given_[Latent] is None else Latent(**given_[Latent])
    norm = None if given_[QKNorm] is None else QKNorm(**given_[QKNorm])
    traits = Traits(**given_[Traits], qk_norm=norm)
    return AttentionConfig(
        **given_[AttentionConfig], latent=latent, rope=Rope(**given_[Rope]), traits=traits
    )


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(given_=descriptions())
def test_a_description_runs_or_is_refused(given_):
    try:
        config = build(given_)
    except InputError:
        return
    x = torch.randn(2, 3, config.d_model, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        out = HookedAttention(config)(x)
    assert out.shape == x.shape
    if abs(config.scale) * config.rope.attention_factor**2 < 1e30:  # scores that float32 holds
        assert out.isfinite().all()
