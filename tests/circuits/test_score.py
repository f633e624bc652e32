"""Scores against whole eager patterns, on documents of mixed lengths with both paddings."""

import threading

import numpy as np
import pytest
import torch

import headatlas as ha
from headatlas.circuits import batch
from headatlas.circuits.batch import permute_labels
from headatlas.circuits.kinds import KINDS, Kind
from headatlas.circuits.label_vectors import Labels
from headatlas.circuits.profile import sample_rows
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


@pytest.mark.parametrize("family", ["gemma3_text", "gemma2"])
def test_uniform_expectation_where_layers_alternate(tiny, family):
    """Each layer's chance follows its own mask: a window of 8 in one, all keys in the next."""
    prompts = random_prompts(np.arange(3, 97), 2, 20, seed=0)
    sums = score(tiny(family, attn="eager"), prompts, "previous_token,first_position")
    for layer, window in enumerate((8, 20)):
        visible = np.minimum(np.arange(1, 20) + 1, window)
        assert np.allclose(sums.uniform[:, layer, 0], (1 / visible).sum())
        first = [1 / (i + 1) for i in range(1, 20) if i < window]
        assert np.allclose(sums.uniform[:, layer, 1], sum(first))


def test_profile_sums_are_the_weights_of_the_sampled_rows(monkeypatch):
    model, tokenizer = ha.load("tiny")
    prompts = random_prompts(token_pool(model.config.vocab_size, tokenizer), 3, 40, bos_id=0)
    drawn = []

    def sample(*arguments):
        drawn.append(sample_rows(*arguments))
        return drawn[-1]

    monkeypatch.setattr(batch, "sample_rows", sample)
    sums = score(model, prompts, "induction", profile_rows=8, batch_tokens=1000)
    # each sampled row's weights sum to 1, and each sees itself and all before it
    assert np.allclose(sums.profile.sum(-1), 8, atol=1e-4)
    assert (sums.profile_pairs.sum(-1) == (drawn[0] + 1).sum(1)).all()
    assert np.allclose(sums.largest_rows.max(1), 8)


def test_permuted_labels_keep_rows_and_counts():
    prompts = random_prompts(np.arange(500), 3, 80, bos_id=500, seed=2)
    labels = KINDS["induction"].labels(prompts)[""][0]
    (shuffled,) = permute_labels((labels,), prompts, [np.random.default_rng(n) for n in range(3)])
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


def test_a_kind_that_scores_no_row_is_refused():
    """Graded, it would say "none" of every head on the strength of nothing."""
    model, _ = ha.load("tiny")
    prompts = random_prompts(np.arange(100, 900), 2, 40)

    def at(offset):
        place = prompts.position
        return (Labels(np.where(place >= offset, place - offset, -1), place),)

    far = Kind("far", "x", lambda _: {"": at(40), "near": at(1)})
    with pytest.raises(
        InputError, match=r"kind far: its own statistic scores no row of the random prompts \(2 doc"
    ):
        score(model, prompts, ["induction", far])
    none = Kind("none", "x", lambda _: {"-8": at(40), "-7": at(50)}, candidates=True)
    with pytest.raises(InputError, match="kind none: any of its variants scores no row"):
        score(model, prompts, none)
    # a companion or a competing variant without rows is no reason to refuse the others
    some = Kind("some", "x", lambda _: {"-1": at(1), "-2": at(50)}, candidates=True)
    companion = Kind("companion", "x", lambda _: {"": at(1), "far": at(50)})
    sums = score(model, prompts, [some, companion])
    assert sums.rows.sum(0).tolist() == [78, 0, 78, 0]


def test_offsets_beyond_the_document_are_not_scored_and_the_others_are():
    model, _ = ha.load("tiny")
    sums = score(model, random_prompts(np.arange(100, 900), 2, 5), "offset")
    rows = {s.variant: int(n) for s, n in zip(sums.statistics, sums.rows.sum(0), strict=True)}
    assert rows == {f"-{back}": 2 * max(0, 5 - back) for back in range(1, 9)}


def test_all_kinds_means_those_that_the_prompts_can_serve():
    model, _ = ha.load("tiny")
    prompts = random_prompts(np.arange(100, 900), 2, 40)
    served = {s.kind for s in score(model, prompts).statistics}
    # random prompts do not say which tokens are delimiters, rare, of a topic, or in bigrams
    elsewhere = {"delimiter", "rare_token", "semantic", "ngram_induction"}
    elsewhere |= {name for name, kind in KINDS.items() if kind.of_signals}
    assert served == set(KINDS) - elsewhere
    once = Prompts("random", np.arange(100, 140)[None], np.ones((1, 40), bool), False)
    served = {s.kind for s in score(model, once).statistics}
    assert served == set(KINDS) - elsewhere - {"duplicate_token", "induction"}
    with pytest.raises(InputError, match="delimiter needs a tokenizer"):
        score(model, prompts, ["delimiter"])
    lone = Prompts("random", np.array([[100]]), np.ones((1, 1), bool), False)
    with pytest.raises(InputError, match="no registered kind scores a row of the random"):
        score(model, lone)


def test_names_in_a_list_are_kinds():
    model, _ = ha.load("tiny")
    prompts = random_prompts(np.arange(100, 900), 2, 40)
    sums = score(model, prompts, ["induction", KINDS["offset"]])
    assert {s.kind for s in sums.statistics} == {"induction", "offset"}
    with pytest.raises(InputError, match="unknown kind inductions"):
        score(model, prompts, ["inductions"])


def test_prompts_and_model_look_the_same_way(tiny):
    prompts = random_prompts(np.arange(3, 97), 2, 20)
    with pytest.raises(InputError, match=r"see keys on both sides, but .*causal=True; make them"):
        score(tiny("bert"), prompts, "offset")
    both = random_prompts(np.arange(3, 97), 2, 20, causal=False)
    with pytest.raises(InputError, match=r"see earlier keys only, but .*causal=False"):
        score(tiny("llama"), both, "offset")
    assert score(tiny("bert"), both, "offset").mass.shape[2] == 16
    for family in ("t5", "bart"):
        with pytest.raises(InputError, match="several stacks"):
            score(tiny(family), prompts, "offset")


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [("null_draws", -1, 0), ("profile_rows", -1, 0), ("seed", -1, 0), ("batch_tokens", 0, 1)],
)
def test_numbers_out_of_range_are_refused(name, value, least):
    model, _ = ha.load("tiny")
    prompts = random_prompts(np.arange(100, 900), 2, 40)
    with pytest.raises(InputError, match=f"{name} is a whole number of at least {least}; got"):
        score(model, prompts, "induction", **{name: value})


def test_overlapping_runs_leave_the_thread_count_alone():
    """The second run begins, in a thread of its own, while the first has torch at one thread."""
    model, _ = ha.load("tiny")
    prompts = random_prompts(np.arange(100, 900), 2, 40)
    one_in, two_in, one_out = (threading.Event() for _ in range(3))
    threads, before, counts = torch.get_num_threads, torch.get_num_threads(), {}

    def run(name, entered, wait_for, left):
        def report(_):
            counts[f"in {name}"] = threads()
            entered.set()
            wait_for.wait(60)

        score(model, prompts, "offset", progress=report)
        counts[name] = threads()
        left.set()

    try:
        torch.set_num_threads(2)
        one = threading.Thread(target=run, args=("one", one_in, two_in, one_out))
        two = threading.Thread(target=run, args=("two", two_in, one_out, threading.Event()))
        late = threading.Thread(target=lambda: counts.setdefault("late", threads()))
        one.start()
        one_in.wait(60)
        two.start()
        for thread in (one, two):
            thread.join(60)
        late.start()
        late.join(60)
        assert counts == {"in one": 1, "in two": 1, "one": 2, "two": 2, "late": 2}
        assert threads() == 2
    finally:
        torch.set_num_threads(before)


def test_attention_that_is_not_finite_is_named():
    """A weight spoilt after the model was looked at shows in the masses."""
    model, _ = ha.load("tiny")
    ha.attention_sites(model)
    with torch.no_grad():
        model.model.layers[2].self_attn.q_proj.weight[0, 0] = float("nan")
    prompts = random_prompts(np.arange(100, 900), 2, 40)
    with pytest.raises(InputError, match=r"attention of L2H0 is not finite .* on set random"):
        score(model, prompts, "previous_token")


def test_a_layer_that_does_not_run_is_named():
    model, _ = ha.load("tiny")
    ha.attention_sites(model)
    model.model.layers[2].forward = lambda hidden_states, *_, **__: hidden_states
    prompts = random_prompts(np.arange(100, 900), 2, 40)
    with pytest.raises(InputError, match=r"layer model\.layers\.2\.self_attn was not called"):
        score(model, prompts, "previous_token")


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
