"""What a layer refuses: inputs that are no tensors of the right kind, caches of other layers."""

import pytest
import torch

from headatlas.interp.errors import InputError
from headatlas.interp.interventions import run, zero
from headatlas.interp.layers.attention import HookedAttention
from headatlas.interp.layers.config import AttentionConfig, Traits
from headatlas.interp.layers.kv_cache import KVCache, LatentCache

from .variants import VARIANTS, inputs, layer_of

pytestmark = pytest.mark.usefixtures("as_users_call")

X = inputs(2, 4)
HUGE = 10**5000
WINDOWED = AttentionConfig(16, 4, traits=Traits(window=3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m([1, 2]), r"x must be a tensor; got \[1, 2\]"),
        (lambda m: m(None), "x must be a tensor; got None"),
        (lambda m: m(X, padding=[[1] * 4] * 2), "padding must be a tensor of whole numbers"),
        (lambda m: m(X, padding=torch.full((2, 4), torch.nan)), "whole numbers; got torch.float32"),
        (lambda m: m(X, positions=[[0, 1, 2, 3]]), "positions must be a tensor of whole numbers"),
        (lambda m: m(X, positions=torch.zeros(2, 4)), "whole numbers; got torch.float32"),
        (lambda m: m.decode("x"), "x must be a tensor"),
        (lambda m: m.trace(3), "x must be a tensor; got 3"),
        (lambda m: m.decode(X, "cache"), "decodes with a KVCache; got str"),
        (lambda m: HookedAttention(m.config, seed="a"), "seed must be an integer.* got 'a'"),
        (lambda m: HookedAttention(m.config, seed=2**70), "seed must be an integer"),
        (lambda m: HookedAttention(m.config, seed=HUGE), "an integer of more than 30 digits"),
        (lambda _: AttentionConfig(HUGE, 1), "d_model must .* more than 30 digits"),
        (lambda _: AttentionConfig(8, [HUGE]), "n_heads must .* a list that cannot be shown"),
        (lambda _: Traits(bias=HUGE), "bias is 'none'.* more than 30 digits"),
        (lambda m: run(m, X, zero("L0H0", positions=HUGE)), "position an integer of more than 30"),
        (lambda m: run(m, X, zero("L0H0", positions=9)), "the layer has 4 columns"),
        (lambda m: run(m, X, zero("L0H9")), "the layer has 4 query heads"),
    ],
)
def test_refused(call, message):
    with pytest.raises(InputError, match=message):
        call(layer_of(VARIANTS["gqa"]))


class TestCaches:
    @pytest.mark.parametrize("dropped", [-5, 1.0, True, "0", HUGE], ids=lambda n: type(n).__name__)
    def test_what_was_dropped_is_counted(self, dropped):
        k = torch.zeros(1, 2, 3, 4)
        with pytest.raises(InputError, match="dropped must be a whole number, at least 0"):
            KVCache(k, k, dropped=dropped)

    def test_shapes_that_do_not_fit_together(self):
        k = torch.zeros(1, 2, 3, 4)
        with pytest.raises(InputError, match=r"k \[1, 2, 3, 4\] and v \[1, 2, 2, 4\]"):
            KVCache(k, k[:, :, 1:])
        with pytest.raises(InputError, match="LatentCache holds tensors"):
            LatentCache(k[0], k[0, :1])
        with pytest.raises(InputError, match="KVCache holds tensors"):
            KVCache([1], [1])

    def test_of_a_narrower_window(self):
        """Tokens that are gone would go unseen in silence."""
        narrow, wide = layer_of(WINDOWED), layer_of(AttentionConfig(16, 4))
        _, cache = narrow.decode(X)
        assert (cache.n_keys, cache.dropped) == (2, 2)
        with pytest.raises(InputError, match=r"dropped 2 of the 4 tokens seen.*sees all"):
            wide.decode(X, cache)
        wider = layer_of(AttentionConfig(16, 4, traits=Traits(window=5)))
        with pytest.raises(InputError, match="has a window of 5"):
            wider.decode(X, cache)

    def test_of_a_wider_window_or_none_is_enough(self):
        narrow, wide = layer_of(WINDOWED), layer_of(AttentionConfig(16, 4))
        x = inputs(2, 7, seed=1)
        _, cache = wide.decode(x[:, :5])
        rest, _ = narrow.decode(x[:, 5:], cache)
        torch.testing.assert_close(rest, narrow(x)[:, 5:])
