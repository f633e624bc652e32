"""Word-level sums against patterns read off cell by cell."""

import numpy as np
import pytest

from headatlas.circuits.words import batch as batch_module
from headatlas.circuits.words.instances import find_instances
from headatlas.circuits.words.kind import WordKind
from headatlas.circuits.words.prompts import WordPrompts, word_prompts
from headatlas.circuits.words.score import score_words
from headatlas.interp.attach import attach
from headatlas.interp.errors import InputError
from headatlas.interp.grammar import Grammar
from headatlas.interp.parsed import from_grammar

from ...interp.checkpoints import byte_level, word_piece
from ..by_hand import eager_patterns
from .by_hand import scores
from .made import none, one_token_words, planted, sentence


def documents(n=20):
    source = Grammar(3)
    return [from_grammar(source.document(n_sentences=1)) for _ in range(n)]


def both_ways(document):
    """A kind with links on either side, several to a query, for encoders and decoders."""
    return [(w, [w - 2, w - 1, w + 1]) for w in range(2, len(document.spans) - 1, 3)]


AROUND = WordKind("around", "Neighbours.", both_ways)


@pytest.fixture(params=["decoder", "decoder without BOS", "encoder"])
def case(request, tiny):
    if request.param == "encoder":
        prompts = word_prompts(word_piece(), documents(), causal=False)
        return tiny("bert"), prompts
    bos = request.param == "decoder"
    prompts = word_prompts(byte_level(bos=bos), documents(), prepend_bos=bos, seq_len=100)
    return tiny("llama", vocab_size=300), prompts


def expected(model, prompts, kind):
    patterns = eager_patterns(model, prompts.ids, prompts.mask)
    links = []
    for sequence, document in enumerate(prompts.documents):
        seen = []
        for query, keys in kind.linked(document):
            kept = [k for k in keys if prompts.visible(sequence, query, k)]
            if kept:
                seen.append((query, kept))
        links.append(seen)
    return scores(patterns, prompts, links)


def assert_same(sums, kind, wanted):
    column = sums.mass.index(kind.name)
    assert sums.mass.rows[:, column].sum() == wanted["n"]
    assert sums.chosen.rows[:, column].sum() == wanted["linked"]
    np.testing.assert_allclose(sums.mass.mass[:, :, column].sum(0), wanted["mass"], atol=1e-4)
    np.testing.assert_array_equal(sums.hits.mass[:, :, column].sum(0), wanted["hits"])
    np.testing.assert_array_equal(sums.chosen.mass[:, :, column].sum(0), wanted["chosen"])


def test_sums_are_those_of_the_whole_pattern(case):
    model, prompts = case
    sums = score_words(model, prompts, [AROUND], batch_tokens=256)
    wanted = expected(model, prompts, AROUND)
    assert wanted["n"] > 30
    assert wanted["hits"].max() > wanted["hits"].min()
    assert_same(sums, AROUND, wanted)


def test_few_words_at_a_time_change_nothing(case, monkeypatch):
    model, prompts = case
    whole = score_words(model, prompts, [AROUND])
    monkeypatch.setattr(batch_module, "_WEIGHTS_AT_ONCE", 1)
    parts = score_words(model, prompts, [AROUND], batch_tokens=300)
    for name in ("mass", "hits", "chosen"):
        one, other = getattr(whole, name).mass, getattr(parts, name).mass
        np.testing.assert_allclose(one, other, atol=1e-5)
    np.testing.assert_allclose(whole.mass.profile, parts.mass.profile, atol=1e-5)
    np.testing.assert_array_equal(whole.mass.profile_pairs, parts.mass.profile_pairs)


def test_padding_on_the_left_changes_nothing(case):
    model, prompts = case
    moved = {}
    for name in ("ids", "mask", "word_of"):
        values = np.full_like(getattr(prompts, name), {"word_of": -1}.get(name, 0))
        for row, length in enumerate(prompts.mask.sum(1)):
            values[row, values.shape[1] - length :] = getattr(prompts, name)[row, :length]
        moved[name] = values
    left = WordPrompts(
        prompts.documents, moved["ids"], moved["mask"], moved["word_of"], prompts.unit,
        prompts.bos, prompts.causal,
    )  # fmt: skip
    one, other = score_words(model, prompts, [AROUND]), score_words(model, left, [AROUND])
    np.testing.assert_allclose(one.mass.mass, other.mass.mass, atol=1e-4)
    np.testing.assert_array_equal(one.hits.mass, other.hits.mass)
    np.testing.assert_array_equal(one.chosen.mass, other.chosen.mass)


def test_the_profile_is_the_mean_weight_of_word_pairs(case):
    """Summed over cells, it is all weight between different visible words."""
    model, prompts = case
    sums = score_words(model, prompts, [AROUND])
    patterns = eager_patterns(model, prompts.ids, prompts.mask)
    everything = WordKind(
        "all", "All.", lambda d: [(q, range(len(d.spans))) for q in range(len(d.spans))]
    )
    found = find_instances(prompts, [everything])
    if prompts.bos or not prompts.causal:  # else links to the first position are not visible
        links = [[] for _ in prompts.documents]
        for one in found.by_column[0]:
            links[one.sequence].append((one.query, one.keys))
        wanted = scores(patterns, prompts, links)["mass"]
        np.testing.assert_allclose(sums.mass.profile.sum((0, 2)), wanted, rtol=1e-4)
        assert sums.mass.profile_pairs.sum() == len(found.pairs.query)


def test_an_excluded_key_is_never_chosen_but_keeps_its_mass(tiny):
    """The query rests on the BOS, on the first word and on itself; .1 is left for the link."""
    many = [sentence(["a", "b", "zz", "c"], [(2, 1)]) for _ in range(16)]

    def rests(document, tokens):
        last, own = int(tokens[2][-1]), int(tokens[2][0])
        return [(last, 0, 0.3), (last, own, 0.6), (last, int(tokens[1][0]), 0.1)]

    prompts = word_prompts(one_token_words(), many)
    model = tiny("llama", num_hidden_layers=1)
    with attach(model, edits=[planted(prompts, [rests, none, none, none])]):
        sums = score_words(model, prompts, "syntactic.obj.to_head")
    assert sums.mass.mean("syntactic.obj.to_head")[0] == pytest.approx(0.1)
    assert sums.hits.mean("syntactic.obj.to_head")[:2].tolist() == [1.0, 0.0]


def test_what_a_word_chooses_and_who_chooses_it_differ(tiny):
    """c looks most at its head b, but d looks at b even more: A finds the link, Aᵀ does not."""
    many = [sentence(["a", "b", "c", "d"], [(2, 1)]) for _ in range(16)]
    own = [(2, 1, 0.4), (2, 0, 0.2), (3, 1, 0.5), (3, 0, 0.4)]

    def plant(document, tokens):
        return [(int(tokens[q][0]), int(tokens[k][0]), w) for q, k, w in own]

    def turned(document, tokens):  # a is looked at more than b, but only c looks at b
        cells = [(2, 1, 0.2), (2, 0, 0.4), (3, 0, 0.5)]
        return [(int(tokens[q][0]), int(tokens[k][0]), w) for q, k, w in cells]

    prompts = word_prompts(one_token_words(), many)
    model = tiny("llama", num_hidden_layers=1)
    with attach(model, edits=[planted(prompts, [plant, turned, none, none])]):
        sums = score_words(model, prompts, "syntactic.obj.to_head")
    assert sums.hits.mean("syntactic.obj.to_head").tolist() == [1, 0, 0, 0]
    assert sums.chosen.mean("syntactic.obj.to_head").tolist() == [0, 1, 0, 0]


def test_tokens_of_a_word_count_together(tiny):
    """.5 over the two tokens of zz is more than .4 on b."""
    many = [sentence(["b", "zz", "c"], [(2, 1)]) for _ in range(16)]

    def plant(document, tokens):
        row = int(tokens[2][0])
        return [(row, int(t), 0.25) for t in tokens[1]] + [(row, int(tokens[0][0]), 0.4)]

    prompts = word_prompts(one_token_words(), many)
    model = tiny("llama", num_hidden_layers=1)
    with attach(model, edits=[planted(prompts, [plant, none, none, none])]):
        sums = score_words(model, prompts, "syntactic.obj.to_head")
    assert sums.hits.mean("syntactic.obj.to_head")[0] == 1
    assert sums.mass.mean("syntactic.obj.to_head")[0] == pytest.approx(0.5)


def test_refusals(tiny, as_users_call):
    model, few = tiny("llama"), [sentence(["a", "b"], [(1, 0)])] * 3
    prompts = word_prompts(one_token_words(), few)
    with pytest.raises(InputError, match=r"at least 16; got 3.*by_sentence"):
        score_words(model, prompts)
    enough = word_prompts(one_token_words(), few * 6)
    with pytest.raises(InputError, match="hold no visible link; a decoder sees earlier words only"):
        score_words(model, enough, "syntactic.obj.to_dependent")
    with pytest.raises(InputError, match=r"unknown kind 'syntax'; known: .*coreference"):
        score_words(model, enough, "syntax")
    with pytest.raises(InputError, match="prompts are a WordPrompts; got list"):
        score_words(model, few)
    with pytest.raises(InputError, match=r"causal=True; make them with causal=False"):
        score_words(tiny("bert"), enough)


def test_attention_that_is_not_finite_is_refused(tiny):
    many = word_prompts(one_token_words(), [sentence(["a", "b"], [(1, 0)])] * 16)

    def plant(document, tokens):
        return [(2, 1, float("nan"))]

    model = tiny("llama", num_hidden_layers=1)
    with (
        attach(model, edits=[planted(many, [none, plant, none, none])]),
        pytest.raises(InputError, match="L0H1 is not finite"),
    ):
        score_words(model, many, "syntactic.obj.to_head")


def test_progress_counts_sequences(tiny):
    prompts = word_prompts(one_token_words(), [sentence(["a", "b"], [(1, 0)])] * 16)
    seen = []
    score_words(tiny("llama"), prompts, batch_tokens=12, progress=seen.append)
    assert seen == [4, 8, 12, 16]
