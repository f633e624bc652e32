"""An atlas of other weights is refused; one that does not say is let pass."""

import copy

import pytest
import torch

import headatlas as ha
from headatlas.circuits.causal.effects import causal_effects
from headatlas.circuits.same_weights import check_weights, sample_weights
from headatlas.interp.errors import InputError
from tests.circuits import planted

KINDS = "previous_token,induction"


@pytest.fixture(scope="module")
def model():
    return planted.planted_model((("offset-1", 1.0), ("first", 1.0)))


@pytest.fixture(scope="module")
def atlas(model):
    return ha.classify(model, kinds=KINDS, prompts=16, seq_len=32)


def test_weights_that_were_trained_since_are_refused(model, atlas):
    check_weights(model, atlas.model)
    check_weights(copy.deepcopy(model), atlas.model)
    tuned = copy.deepcopy(model)
    with torch.no_grad():
        for weight in tuned.parameters():
            weight.add_(1e-4)
    with pytest.raises(InputError, match=r"other weights than this GPT2LMHeadModel.*Classify it"):
        causal_effects(tuned, None, atlas, prompts=16, seq_len=32)


@pytest.mark.parametrize("weights", [None, 3, ["x"], {}])
def test_an_atlas_that_does_not_say_is_let_pass(model, atlas, weights):
    check_weights(model, {**atlas.model, "weights": weights})
    check_weights(model, {key: atlas.model[key] for key in atlas.model if key != "weights"})


@pytest.mark.parametrize("change", [{"class": "GPT2Model"}, {"dtype": "bfloat16"}])
def test_another_class_or_precision_is_not_compared(model, atlas, change):
    with pytest.raises(InputError, match="other weights"):
        check_weights(model, {**atlas.model, "weights": "x"})
    check_weights(model, {**atlas.model, "weights": "x", **change})


def test_weights_that_are_not_loaded_count_with_their_shape():
    with torch.device("meta"):
        one, other = torch.nn.Linear(2, 3), torch.nn.Linear(3, 2)
    assert sample_weights(one) != sample_weights(other)


@pytest.mark.parametrize("place", [0, -1])
def test_first_and_last_values_are_in_the_sample(place):
    layer = torch.nn.Linear(5000, 1, bias=False)
    before = sample_weights(layer)
    layer.weight.data[0, place] += 1
    assert sample_weights(layer) != before
    layer.to(torch.bfloat16)
    assert sample_weights(layer) != before
