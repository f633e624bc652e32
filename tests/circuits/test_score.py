"""Scores against whole eager patterns, on documents of mixed lengths with both paddings."""

import numpy as np
import pytest
import torch

import headatlas as ha
from headatlas.circuits.batch import permute_labels
from headatlas.circuits.kinds import KINDS, Kind
from headatlas.circuits.label_vectors import Labels
from headatlas.circuits.score import score
from headatlas.interp.errors import InputError
from headatlas.interp.probes import (
    Prompts,
    delimiters,
    natural_prompts,
    random_prompts,
    token_pool,
)

from .by_hand import eager_patterns, scores_by_hand


def mixed_documents(tokenizer, vocab, lengths, *, side, seed=0):
    """Natural and random documents of the given lengths, side by side in one padded batch."""
    longest = max(lengths)
    bos = tokenizer.bos_token_id
    natural = natural_prompts(tokenizer, len(lengths), longest, prepend_bos=True, seed=seed)
    random = random_prompts(
        token_pool(vocab, tokenizer), len(lengths), longest, bos_id=bos, seed=seed
    )
    ids = np.full((len(lengths), longest), tokenizer.pad_token_id or 0)
    mask = np.zeros(ids.shape, bool)
    for row, length in enumerate(lengths):
        source = (natural if row % 2 else random).ids[row, :length]
        columns = slice(0, length) if side == "right" else slice(longest - length, longest)
        ids[row, columns], mask[row, columns] = source, True
    return Prompts("natural", ids, mask, True, delimiters(tokenizer, ids) & mask)


def assert_agrees_with_eager(model, prompts, tolerance, **options):
    sums = score(model, prompts, **options)
    hand = scores_by_hand(
        eager_patterns(model, prompts.ids, prompts.mask), prompts.ids, prompts.mask,
        bos=prompts.bos, delimiter=prompts.delimiter,
    )  # fmt: skip
    names = {str(statistic) for statistic in sums.statistics}
    assert names == set(hand)
    for statistic in sums.statistics:
        got = sums.mean(statistic.kind, statistic.variant)
        worst = np.abs(got - hand[str(statistic)].reshape(-1)).max()
        assert worst < tolerance, f"{statistic}: {worst}"
    return sums


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("batch_tokens", [1, 400])
def test_every_kind_agrees_with_eager_on_tiny(side, batch_tokens):
    model, tokenizer = ha.load("tiny")
    prompts = mixed_documents(
        tokenizer, model.config.vocab_size, (70, 33, 64, 9, 50, 18), side=side
    )
    sums = assert_agrees_with_eager(model, prompts, 1e-5, batch_tokens=batch_tokens)
    assert sums.mass.shape == (6, 32, len(sums.statistics))


@pytest.mark.real
@pytest.mark.parametrize("side", ["right", "left"])
def test_every_kind_of_all_270_heads_agrees_with_eager(side):
    model, tokenizer = ha.load("smollm2-135m")
    prompts = mixed_documents(
        tokenizer, model.config.vocab_size, (160, 75, 128, 31, 100, 57), side=side
    )
    sums = assert_agrees_with_eager(model, prompts, 1e-4, batch_tokens=500)
    assert len(sums.heads) == 270


def test_batches_do_not_matter():
    model, tokenizer = ha.load("tiny")
    prompts = mixed_documents(tokenizer, model.config.vocab_size, (40, 30, 20), side="right")
    one, many = (score(model, prompts, batch_tokens=size, null_draws=2) for size in (1, 10_000))
    assert np.allclose(one.mass, many.mass, atol=1e-4)
    assert (one.rows == many.rows).all()
    assert np.allclose(one.uniform, many.uniform)
    assert np.allclose(one.pairs, many.pairs)
    # what is drawn depends on the seed and the document, not on the batch it falls in
    assert np.allclose(one.profile, many.profile, atol=1e-4)
    assert np.allclose(one.null_mass, many.null_mass, atol=1e-4)


def test_a_model_run_by_progress_is_not_counted():
    model, tokenizer = ha.load("tiny")
    prompts = mixed_documents(tokenizer, model.config.vocab_size, (40, 30, 20), side="right")
    other = torch.from_numpy(prompts.ids[:, :7])
    plain = score(model, prompts, "induction", batch_tokens=1)
    busy = score(model, prompts, "induction", batch_tokens=1, progress=lambda _: model(other))
    assert (plain.mass == busy.mass).all()


def test_uniform_expectation_of_a_window_counts_visible_keys():
    """In a sliding-window layer a row spreads evenly over the window, not over all before it."""
    from transformers import MistralConfig, MistralModel

    torch.manual_seed(0)
    model = MistralModel(
        MistralConfig(
            vocab_size=100,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            sliding_window=4,
        )
    ).eval()
    prompts = random_prompts(np.arange(1, 100), 2, 20, seed=0)
    sums = score(model, prompts, "previous_token,first_position")
    visible = np.minimum(np.arange(1, 20) + 1, 4)
    assert np.allclose(sums.uniform[:, 0, 0], (1 / visible).sum())
    first = [1 / min(i + 1, 4) for i in range(1, 20) if i < 4]
    assert np.allclose(sums.uniform[:, 0, 1], sum(first))


def test_profile_sums_are_the_weights_of_the_sampled_rows():
    model, tokenizer = ha.load("tiny")
    prompts = random_prompts(token_pool(model.config.vocab_size, tokenizer), 3, 40, bos_id=0)
    sums = score(model, prompts, "induction", profile_rows=8)
    # each sampled row's weights sum to 1, and each sees as many keys as its position allows
    assert np.allclose(sums.profile.sum(-1), 8, atol=1e-4)
    assert (sums.profile_pairs.sum(-1) <= 8 * 40).all()
    assert np.allclose(sums.largest_rows.max(1), 8)


def test_permuted_labels_keep_rows_and_counts():
    prompts = random_prompts(np.arange(500), 3, 80, bos_id=500, seed=2)
    labels = KINDS["induction"].labels(prompts)[""][0]
    shuffled = permute_labels(labels, prompts, [np.random.default_rng(n) for n in range(3)])
    assert ((shuffled.q >= 0) == (labels.q >= 0)).all()
    assert (np.sort(shuffled.q, 1) == np.sort(labels.q, 1)).all()
    assert (np.sort(shuffled.k, 1) == np.sort(labels.k, 1)).all()
    assert (shuffled.k[:, 0] == labels.k[:, 0]).all()  # the BOS never takes a label
    assert (shuffled.k != labels.k).any()


def test_user_kinds_are_scored_like_built_in_ones():
    def two_back(prompts):
        place = prompts.position
        q = np.where(prompts.mask & (place >= 2), place - 2, -1)
        return {"": (Labels(q, np.where(prompts.mask, place, -2)),)}

    model, tokenizer = ha.load("tiny")
    prompts = random_prompts(np.arange(100, 900), 2, 40, bos_id=tokenizer.bos_token_id)
    sums = score(model, prompts, [Kind("two_back", "Weight two back.", two_back), KINDS["offset"]])
    assert np.allclose(sums.mean("two_back"), sums.mean("offset", "-2"), atol=1e-6)


def test_nan_weights_are_named():
    model, _ = ha.load("tiny")
    with torch.no_grad():
        model.model.layers[2].self_attn.q_proj.weight[0, 0] = float("nan")
    prompts = random_prompts(np.arange(100, 900), 2, 40)
    with pytest.raises(InputError, match=r"layers\.2\.self_attn\.q_proj\.weight .* not finite"):
        score(model, prompts, "previous_token")


def test_the_model_is_left_as_it_was():
    model, tokenizer = ha.load("tiny")
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    implementation = model.config._attn_implementation
    prompts = random_prompts(np.arange(100, 900), 2, 40, bos_id=tokenizer.bos_token_id)
    score(model, prompts, "previous_token")
    assert model.training
    assert model.config._attn_implementation == implementation
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
