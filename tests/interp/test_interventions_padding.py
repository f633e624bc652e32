"""Values of another run meet this run's padding; edits and in-place changes meet the cache."""

import pytest
import torch

import headatlas as ha
from headatlas.interp.errors import InputError
from headatlas.interp.interventions import freeze, mean, patch, resample, zero

TEXTS = ["the cat sat on the mat and the cat sat", "a dog ran"]


@pytest.fixture(scope="module")
def tiny_model():
    return ha.load("tiny")


@pytest.mark.parametrize("make", [patch, lambda model, _h, *, tokens: freeze(model, tokens=tokens)])
def test_another_padding_side_is_refused(tiny_model, make):
    model, tokenizer = tiny_model
    right = ha.tokenize(tokenizer, TEXTS)
    left = ha.tokenize(tokenizer, TEXTS, padding_side="left")
    other = make(model, "L1H2", tokens=right)
    with pytest.raises(InputError, match="padding where sequence 1"):
        ha.run(model, left, other)
    plain = ha.run(model, right).logits
    torch.testing.assert_close(
        ha.run(model, right, other).logits[right.mask], plain[right.mask], rtol=1e-4, atol=1e-4
    )


def test_shorter_sources_are_refused_where_tokens_stand(tiny_model):
    model, tokenizer = tiny_model
    tokens = ha.tokenize(tokenizer, TEXTS)
    swapped = ha.tokenize(tokenizer, TEXTS[::-1])
    with pytest.raises(InputError, match="padding where sequence 0"):
        ha.run(model, tokens, patch(model, "L1H2", tokens=swapped))
    ha.run(model, tokens, patch(model, "L1H2", tokens=swapped, positions=[1]))


def test_means_per_position_need_sequences_that_begin_together(tiny_model):
    model, tokenizer = tiny_model
    right = ha.tokenize(tokenizer, TEXTS)
    left = ha.tokenize(tokenizer, TEXTS, padding_side="left")
    with pytest.raises(InputError, match="begin at column 0"):
        mean(model, left, "L1H2", per_position=True)
    average = mean(model, right, "L1H2", per_position=True)
    with pytest.raises(InputError, match="begin at another column"):
        ha.run(model, left, average)
    ha.run(model, right, average)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("sites", [frozenset({2}), frozenset(), "L2"])
def test_edits_that_would_act_nowhere_are_refused(tiny_model, sites):
    model, _ = tiny_model
    edit = ha.Edit("z", lambda _call, z: z * 0, sites=sites)
    with pytest.raises(InputError, match="sites are a set"), ha.attach(model, edits=[edit]):
        pass


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"edits": [zero("L0H0")]}, "applied by run"),
        ({"observers": print}, "must be a list"),
        ({"observers": [3]}, "functions of an AttentionCall"),
    ],
)
def test_what_is_no_edit_or_observer_is_refused_at_once(tiny_model, options, message):
    model, _ = tiny_model
    with pytest.raises(InputError, match=message), ha.attach(model, **options):
        pass


@pytest.mark.parametrize("target", ["k", "v"])
def test_an_edit_in_place_leaves_the_cache_alone(tiny_model, target):
    model, _ = tiny_model
    ids = torch.tensor([[0, 300, 301, 302, 300]])
    with torch.no_grad():
        own = model(ids, use_cache=True).past_key_values
        first = own.layers[0]
        keys, values = first.keys.clone(), first.values.clone()
        with ha.attach(model, edits=[ha.Edit(target, lambda _call, x: x.zero_())]):
            kept = model(ids, use_cache=True).past_key_values.layers[0]
    assert torch.equal(kept.keys, keys)
    assert torch.equal(kept.values, values)


def test_resampling_follows_the_sequences_that_generate_repeats(tiny_model):
    model, _ = tiny_model
    ids = torch.arange(300, 312).reshape(2, 6)
    swap = resample(model, ids, "L1H2", seed=0)
    with torch.no_grad(), ha.intervene(model, swap):
        once = model(ids).logits
        repeated = model(ids.repeat_interleave(2, 0)).logits
    torch.testing.assert_close(repeated, once.repeat_interleave(2, 0), rtol=1e-4, atol=1e-4)
    with pytest.raises(InputError, match="holds 2 sequences; this run has 3"):
        ha.run(model, torch.arange(300, 318).reshape(3, 6), swap)
