"""Means over rows, against patterns written out in float64."""

import numpy as np
import pytest
import torch

from headatlas.interp.capture import capture
from headatlas.interp.errors import InputError
from headatlas.interp.load import load
from headatlas.interp.statistics import head_statistics

IDS = torch.tensor([[5, 6, 7, 8, 9, 5], [11, 12, 13, 14, 15, 16]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])


def by_hand(cache, names, mask):
    rows = []
    for name in names:
        pattern = cache[name].double()
        first = mask.int().argmax(1)
        entropy = -(pattern * pattern.clamp_min(1e-300).log()).sum(-1)
        sink = torch.stack([pattern[b, :, :, first[b]] for b in range(len(pattern))])
        live = (mask.bool()[:, None] & (pattern.sum(-1) > 0)).expand(entropy.shape)
        for head in range(pattern.shape[1]):
            own = live[:, head]
            rows.append([
                entropy[:, head][own].mean(), sink[:, head][own].mean(),
                pattern.amax(-1)[:, head][own].mean(),
            ])  # fmt: skip
    return np.array(rows)


@pytest.mark.parametrize("family", ["llama", "bert", "gemma2"])
def test_means_of_padded_rows(tiny, family):
    model = tiny(family, attn="eager")
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    found = head_statistics(model, None, inputs)
    cache = capture(model, None, inputs, names_filter="pattern")
    expected = by_hand(cache, list(cache), MASK)
    numbers = found[["entropy_nats", "sink", "top_weight"]].to_numpy()
    np.testing.assert_allclose(numbers, expected, atol=1e-5)
    assert found["sink_logit"].isna().all()
    assert found[["layer", "head"]].to_numpy().tolist() == [
        [i, j] for i in (0, 1) for j in range(4)
    ]


def test_learned_sinks_have_a_mass(tiny):
    model = tiny("gpt_oss", attn="eager")
    found = head_statistics(model, None, IDS)
    pattern = torch.stack([*capture(model, None, IDS, names_filter="pattern").values()])
    missing = (1 - pattern.double().sum(-1)).mean((1, 3)).ravel()
    np.testing.assert_allclose(found["sink_logit"], missing, atol=1e-5)
    assert (found["sink_logit"] > 0).all()


def test_every_stack_has_its_rows(tiny):
    found = head_statistics(tiny("t5"), None, IDS)
    assert list(dict.fromkeys(found["site"])) == ["enc", "dec", "cross"]
    assert np.isfinite(found[["entropy_nats", "sink", "top_weight"]].to_numpy()).all()


def test_texts_and_their_beginning():
    model, tokenizer = load("tiny")
    text = "The cat sat on the mat."
    with_bos = head_statistics(model, tokenizer, text, prepend_bos=True)
    without = head_statistics(model, tokenizer, text, prepend_bos=False)
    assert with_bos["sink"].mean() > without["sink"].mean()  # heads rest on the BOS
    twice = head_statistics(model, tokenizer, [text, text], prepend_bos=True)
    np.testing.assert_allclose(twice["entropy_nats"], with_bos["entropy_nats"], atol=1e-6)


def test_what_is_no_text_is_refused(tiny):
    model = tiny("llama")
    with pytest.raises(InputError, match="needs a tokenizer"):
        head_statistics(model, None, "a text")
    with pytest.raises(InputError, match="prepend_bos applies to texts"):
        head_statistics(model, None, IDS, prepend_bos=True)
    with pytest.raises(InputError, match="must lie in"):
        head_statistics(model, None, IDS + 1000)
