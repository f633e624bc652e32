"""Natural text as documents: distinct windows, and what is refused."""

import re

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import headatlas as ha
from headatlas.interp import probes
from headatlas.interp.errors import InputError
from headatlas.interp.probes import natural_prompts

WORDS = [f"w{n}" for n in range(5000)]


@pytest.fixture(scope="module")
def tokenizer():
    """One token per word that it knows, and <unk> for all others."""
    vocab = {word: n for n, word in enumerate(["<unk>", *WORDS])}
    own = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    own.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=own, unk_token="<unk>")


def test_windows_are_drawn_until_enough_of_them_say_something_new(tokenizer):
    """Repeats at the beginning do not hide the text behind them."""
    text = " ".join(["w0"] * 4000 + WORDS)
    prompts = natural_prompts(tokenizer, 20, 32, text=text)
    assert prompts.ids.shape == (20, 32)
    assert len(np.unique(prompts.ids, axis=0)) == 20
    assert (prompts.ids[0] == prompts.ids[0, 0]).all()
    assert prompts.ids[1].tolist() == list(range(1, 33))


def test_a_text_without_repeats_is_encoded_as_far_as_needed(tokenizer, monkeypatch):
    limits = []

    def windows(*arguments, limit, **options):
        limits.append(limit)
        return original(*arguments, limit=limit, **options)

    original = probes.windows
    monkeypatch.setattr(probes, "windows", windows)
    natural_prompts(tokenizer, 20, 32, text=" ".join(WORDS))
    assert limits == [40]


def test_generated_text_that_the_tokenizer_does_not_know_is_refused(tokenizer):
    message = r"generated English text gives 1 distinct window of 32 tokens; .* need 16"
    with pytest.raises(InputError, match=message):
        natural_prompts(tokenizer, 64, 32)


@pytest.mark.parametrize(
    ("words", "seq_len", "found", "shorter"),
    [
        (["w0"] * 4000, 32, 1, None),  # no length helps
        (WORDS[:600], 64, 9, 36),
        (WORDS[:200], 64, 3, None),  # too little for any length
        (["w0", "w1"] * 400 + WORDS[:100], 32, 4, None),
    ],
)
def test_a_refusal_suggests_a_shorter_length_only_where_that_helps(
    tokenizer, words, seq_len, found, shorter
):
    with pytest.raises(InputError, match=rf"gives {found} distinct window") as refused:
        natural_prompts(tokenizer, 64, seq_len, text=" ".join(words))
    suggested = re.search(r"sequence length of (\d+) or less", str(refused.value))
    assert (suggested and int(suggested[1])) == shorter
    if shorter is not None:
        prompts = natural_prompts(tokenizer, 64, shorter, text=" ".join(words))
        assert len(prompts) >= 16


def test_a_classification_in_an_unknown_script_is_refused(tokenizer):
    model, _ = ha.load("tiny")
    with pytest.raises(InputError, match="Pass a text in a language that the tokenizer knows"):
        ha.classify(model, tokenizer, kinds="delimiter", prompts=16, seq_len=32)
