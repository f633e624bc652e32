"""Means over rows, against patterns written out in float64."""

import numpy as np
import pytest
import torch

from headatlas.interp.capture import capture
from headatlas.interp.errors import InputError
from headatlas.interp.load import load
from headatlas.interp.statistics import head_statistics

N = 24  # several windows of the models that have one
IDS = torch.stack([torch.arange(N) % 17 + 5, torch.arange(N) * 3 % 23 + 5])
LEFT, RIGHT = (torch.ones(2, N, dtype=torch.int64) for _ in range(2))
LEFT[1, :9] = 0
RIGHT[1, -9:] = 0


def by_hand(cache, names, mask):
    """The numbers from patterns written out; what rows lack to 1 is a learned sink's."""
    rows = []
    for name in names:
        pattern = cache[name].double()
        first = mask.int().argmax(1)
        rest = (1 - pattern.sum(-1, keepdim=True)).clamp_min(0)
        parts = torch.cat([pattern, torch.where(rest > 1e-4, rest, 0.0)], -1)
        entropy = -(parts * parts.clamp_min(1e-300).log()).sum(-1)
        sink = torch.stack([pattern[b, :, :, first[b]] for b in range(len(pattern))])
        live = (mask.bool()[:, None] & (pattern.sum(-1) > 0)).expand(entropy.shape)
        for head in range(pattern.shape[1]):
            own = live[:, head]
            rows.append([
                entropy[:, head][own].mean(), sink[:, head][own].mean(),
                pattern.amax(-1)[:, head][own].mean(),
            ])  # fmt: skip
    return np.array(rows)


@pytest.mark.parametrize("mask", [LEFT, RIGHT], ids=["left", "right"])
@pytest.mark.parametrize("family", ["llama", "bert", "gemma2", "gpt_oss"])
def test_means_of_padded_rows(tiny, family, mask):
    model = tiny(family, attn="eager")
    inputs = {"input_ids": IDS, "attention_mask": mask}
    found = head_statistics(model, None, inputs)
    cache = capture(model, None, inputs, names_filter="pattern")
    expected = by_hand(cache, list(cache), mask)
    numbers = found[["entropy_nats", "sink", "top_weight"]].to_numpy()
    np.testing.assert_allclose(numbers, expected, atol=1e-5)
    assert found["sink_logit"].isna().all() == (family != "gpt_oss")
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
    model = tiny("t5")
    found = head_statistics(model, None, IDS)
    cache = capture(model, None, IDS, names_filter="pattern")
    assert list(dict.fromkeys(found["site"])) == ["enc", "dec", "cross"]
    for site, own in found.groupby("site"):
        names = [name for name in cache if name.startswith(f"{site}.")]
        expected = by_hand(cache, names, torch.ones_like(IDS))
        assert len(expected) == len(own)
        numbers = own[["entropy_nats", "sink", "top_weight"]].to_numpy()
        np.testing.assert_allclose(numbers, expected, atol=1e-5)


def test_means_in_bfloat16(tiny):
    """The statistics of a bfloat16 model are close to those of its captured, rounded patterns."""
    model = tiny("llama", attn="eager").bfloat16()
    inputs = {"input_ids": IDS, "attention_mask": LEFT}
    numbers = head_statistics(model, None, inputs)[["entropy_nats", "sink", "top_weight"]]
    cache = capture(model, None, inputs, names_filter="pattern")
    np.testing.assert_allclose(numbers, by_hand(cache, list(cache), LEFT), atol=2e-2)


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
