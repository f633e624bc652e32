"""Numbers as keys, of any type: those that stand for none are refused, never raised from inside."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headatlas.interp.capture import capture
from headatlas.interp.errors import InputError, shown
from headatlas.interp.heads import HeadId, parse_head
from headatlas.interp.hook_names import whole_numbers
from headatlas.interp.plain_numbers import as_index
from headatlas.interp.weights import head_weights

from .edits import IDS

HUGE = 10**5000
NUMBERS = (3, np.int64(3), np.array(3), torch.tensor(3))
NONE = (
    *(1.5, True, None, "3", [3], np.bool_(True), torch.tensor(1.5), torch.tensor(True)),
    *(np.array([3]), np.array([1, 2]), torch.tensor([3]), torch.tensor([1, 2]), np.array(1.5)),
)


def test_what_stands_for_a_whole_number():
    assert [as_index(value) for value in NUMBERS] == [3] * 4
    assert [as_index(value) for value in NONE] == [None] * len(NONE)


@given(st.integers())
def test_every_whole_number_stands_for_itself(number):
    assert as_index(number) == number


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("key", [*NONE, HUGE, -HUGE], ids=lambda key: type(key).__name__)
class TestKeysOfWeights:
    def test_layers(self, tiny, key):
        weights = head_weights(tiny("llama"))
        assert key not in weights
        assert weights.get(key, "none") == "none"
        with pytest.raises(InputError, match="there are no weights of"):
            weights[key]

    def test_heads(self, tiny, key):
        with pytest.raises(InputError):
            head_weights(tiny("llama"))[0].head(key)

    def test_captures(self, tiny, key):
        cache = capture(tiny("llama"), None, IDS, names_filter="z")
        assert ("z", key) not in cache
        with pytest.raises(InputError):
            cache["z", key]


@pytest.mark.usefixtures("as_users_call")
class TestMessages:
    def test_huge_numbers_are_named(self):
        assert shown(HUGE) == "an integer of more than 30 digits"
        assert shown([HUGE]) == "a list that cannot be shown"
        assert shown(2**99) == str(2**99)
        for call in (lambda: parse_head((HUGE, 1)), lambda: HeadId.parse((0, HUGE))):
            with pytest.raises(InputError, match="a tuple that cannot be shown"):
                call()
        with pytest.raises(InputError, match="cannot be shown"):
            whole_numbers([1.5, HUGE], "rows")

    @pytest.mark.parametrize("what", ["rows", "layers"])
    def test_huge_rows_and_layers(self, tiny, what):
        with pytest.raises(InputError):
            capture(tiny("llama"), None, IDS, **{what: [HUGE]})


@pytest.mark.usefixtures("as_users_call")
class TestSizes:
    def test_memory_and_file_agree(self, tiny, tmp_path):
        """Under a name, a short key, and what is none."""
        model = tiny("llama")
        kept = capture(model, None, IDS, names_filter=["z", "pattern"])
        stored = capture(model, None, IDS, names_filter=["z", "pattern"], save=tmp_path / "c")
        for name in kept:
            assert kept.n_bytes(name) == stored.n_bytes(name) == kept[name].numel() * 4
        for key in (("z", 0), ("pattern", -1)):
            assert kept.n_bytes(key) == stored.n_bytes(key) > 0
        for key in ("token_ids", "blocks.9.attn.hook_z", 3, None, ("z",), [1]):
            for cache in (kept, stored):
                with pytest.raises(InputError):
                    cache.n_bytes(key)
