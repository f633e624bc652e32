"""Configs of absurdly many parts are refused before anything is built of them."""

import pytest
from transformers import LlamaConfig

from headatlas.circuits.cost.report import cost
from headatlas.interp import config_only
from headatlas.interp.errors import InputError


@pytest.mark.parametrize("n", [100_000, 10**5000], ids=["many", "huge"])
@pytest.mark.usefixtures("as_users_call")
def test_layers(monkeypatch, n):
    monkeypatch.setattr(config_only, "reading", None)  # what building a model begins with
    config = LlamaConfig(num_hidden_layers=2)
    config.num_hidden_layers = n
    with pytest.raises(InputError, match=r"layers in 'num_hidden_layers'; at most 1000"):
        cost(config)
