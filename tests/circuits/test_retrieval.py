"""Needles, where they lie, and heads that copy them."""

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

import headatlas as ha
from headatlas.circuits.retrieval import make_haystacks, retrieval_scores
from headatlas.interp.attach import Edit, attach
from headatlas.interp.errors import InputError


@pytest.mark.parametrize("bos", [True, False])
def test_haystacks_hide_the_needle_and_repeat_it(bos):
    tokenizer = ha.load("tiny")[1]
    made = make_haystacks(tokenizer, 24, 200, prepend_bos=bos, seed=1)
    for haystack in made:
        assert len(haystack.ids) == 200
        assert (haystack.ids[0] == tokenizer.bos_token_id) == bos
        span = np.arange(haystack.n_needle)
        needle, copied = haystack.ids[haystack.needle + span], haystack.ids[haystack.copy + span]
        assert (needle == copied).all()
        assert haystack.needle + haystack.n_needle <= haystack.copy
        assert haystack.rows[-1] == 198
        assert len(haystack.rows) == haystack.n_needle - haystack.n_cue
    depths = [haystack.needle for haystack in made]
    assert min(depths) < 50
    assert max(depths) > 100


def test_haystacks_of_a_seed_do_not_depend_on_how_many_are_made():
    tokenizer = ha.load("tiny")[1]
    few, many = (make_haystacks(tokenizer, n, 128, seed=4) for n in (3, 6))
    assert all((a.ids == b.ids).all() for a, b in zip(few, many, strict=False))
    other = make_haystacks(tokenizer, 3, 128, seed=5)
    assert any((a.ids != b.ids).any() for a, b in zip(few, other, strict=True))


def planted(tokenizer, made, *shifts):
    """A model whose head h looks, at the row before token m of the copy, at m + shifts[h]."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=128, n_embd=512, n_layer=1, n_head=len(shifts)
    )
    queue = iter(made)

    def change(_, pattern):
        haystack = next(queue)
        pattern[:] = 0
        pattern[..., 0] = 1
        for head, shift in enumerate(shifts):
            for number, row in enumerate(haystack.rows.tolist()):
                place = (haystack.n_cue + number + shift) % haystack.n_needle
                pattern[0, head, row] = 0
                pattern[0, head, row, haystack.needle + place] = 1
        return pattern

    return GPT2LMHeadModel(config).eval(), Edit("pattern", change)


def test_a_head_on_the_next_token_is_found_and_one_beside_it_is_not():
    tokenizer = ha.load("tiny")[1]
    made = make_haystacks(tokenizer, 16, 128, seed=0)
    model, edit = planted(tokenizer, made, 0, 1, -1, 2)
    with attach(model):  # surveyed before the edit is there
        pass
    with attach(model, edits=[edit]):
        found = retrieval_scores(model, tokenizer, haystacks=16, seq_len=128, seed=0)
    rows = found.rows
    assert rows["score"][0] == 1.0
    assert rows["grade"].tolist() == ["strong", "none", "none", "none"]
    assert rows["legacy"][0]
    # beside the next token there is a copy of it now and then, as expected of any other place
    beside = rows[rows["head"] > 0]
    assert (beside["excess"].abs() < 0.1).all()
    assert [str(head) for head in found.heads()] == ["L0H0"]
    assert "1 strong, 0 weak" in repr(found)


def test_the_built_in_model_has_retrieval_heads_among_its_induction_heads():
    model, tokenizer = ha.load("tiny")
    found = retrieval_scores(model, tokenizer, haystacks=24, seq_len=128)
    best = found.rows.sort_values("score", ascending=False).head(3)
    assert set(best["layer"]) == {2}  # where its induction heads are
    assert found.recalled > 0.3
    again = retrieval_scores(model, tokenizer, haystacks=24, seq_len=128)
    assert again.rows.equals(found.rows)


def test_refusals():
    model, tokenizer = ha.load("tiny")
    for options, message in (
        ({"haystacks": 3}, "haystacks is a whole number of at least 16"),
        ({"seq_len": 20}, "seq_len is a whole number of at least 64"),
        ({"seq_len": 4096}, "longer than the model's context of 1024"),
    ):
        with pytest.raises(InputError, match=message):
            retrieval_scores(model, tokenizer, **options)
    config = BertConfig(
        vocab_size=300, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64,
    )  # fmt: skip
    with pytest.raises(InputError, match="queries see both sides"):
        retrieval_scores(BertModel(config).eval(), tokenizer, seq_len=64)
    found = retrieval_scores(model, tokenizer, haystacks=16, seq_len=64)
    with pytest.raises(InputError, match="a grade is one of"):
        found.heads("good")
