"""Links, baselines by brute force, shuffled links, kinds by name and of one's own."""

import pytest

import headatlas as ha
from headatlas.circuits.words.coreference import COREFERENCE
from headatlas.circuits.words.instances import Shuffled, find_instances
from headatlas.circuits.words.kind import WordKind
from headatlas.circuits.words.kinds import WORD_KINDS, choose_word_kinds, register_words
from headatlas.circuits.words.prompts import word_prompts
from headatlas.circuits.words.syntax import syntactic_kind, syntactic_kinds
from headatlas.interp.errors import InputError
from headatlas.interp.grammar import Grammar, Mention
from headatlas.interp.parsed import from_grammar

from .made import one_token_words, sentence


@pytest.fixture(scope="module", params=[True, False])
def grammar(request):
    source = Grammar(5)
    documents = [from_grammar(source.document()) for _ in range(16)]
    return word_prompts(ha.load("tiny")[1], documents, prepend_bos=True, causal=request.param)


def links_of(prompts, relation, direction):
    """By brute force: {(sequence, query): keys} of all visible links."""
    found = {}
    for sequence, document in enumerate(prompts.documents):
        for word, (head, label) in enumerate(zip(document.heads, document.relations, strict=True)):
            if head < 0 or label.split(":")[0] != relation:
                continue
            query, key = (word, head) if direction == "to_head" else (head, word)
            alone = prompts.usable[sequence, query] and prompts.usable[sequence, key]
            if alone and (key < query or not prompts.causal):
                found.setdefault((sequence, query), set()).add(key)
    return found


@pytest.mark.parametrize("direction", ["to_head", "to_dependent"])
@pytest.mark.parametrize("relation", ["nsubj", "det", "obj"])
def test_links_and_the_best_offset(grammar, relation, direction):
    wanted = links_of(grammar, relation, direction)
    kind = syntactic_kind(relation, direction)
    if not wanted:  # English determiners stand before their heads
        with pytest.raises(InputError, match="hold no visible link"):
            find_instances(grammar, [kind])
        return
    found = find_instances(grammar, [kind])
    assert {(i.sequence, i.query): set(i.keys) for i in found.by_column[0]} == wanted
    assert found.rows.sum() == len(wanted)
    hits = {
        offset: sum(query + offset in keys for (_, query), keys in wanted.items())
        for offset in range(-32, 33)
    }
    right = dict(zip(found.baselines, found.guesses[:, 0].sum(0), strict=True))
    for name, count in right.items():
        assert count == hits[int(name)]
    assert max(right.values()) == max(hits.values())


def test_subtypes_count_with_their_relation():
    document = sentence(["a", "b"], [(0, 1)], relation="nsubj:pass")
    assert [kind.name for kind in syntactic_kinds([document])] == [
        "syntactic.nsubj.to_head",
        "syntactic.nsubj.to_dependent",
    ]
    assert [*syntactic_kind("nsubj", "to_head").linked(document)] == [(0, (1,))]


def mentioned(*clusters):
    """A document `a b a c b d e` with clusters of one-word mentions."""
    made = [[Mention(0, w, w + 1, w) for w in words] for words in clusters]
    return sentence([*"abacbde"], clusters=[tuple(cluster) for cluster in made])


def test_coreference_links_and_its_baselines():
    """Clusters {0, 2, 5} and {1, 3, 6}; 2 repeats the letter of 0, nothing else repeats in them."""
    document = mentioned([0, 2, 5], [1, 3, 6])
    nearest, match = (COREFERENCE.guesses[n] for n in ("nearest_mention", "head_match"))
    assert nearest(document, True) == {1: 0, 2: 1, 3: 2, 5: 3, 6: 5}
    assert match(document, True) == {1: 0, 2: 0, 3: 2, 5: 3, 6: 5}
    assert nearest(document, False) == {0: 1, 1: 0, 2: 1, 3: 2, 5: 6, 6: 5}
    prompts = word_prompts(one_token_words(), [document])
    found = find_instances(prompts, [COREFERENCE])
    every = [(one.query, one.keys) for one in found.by_column[0]]
    assert sorted(every) == [(2, (0,)), (3, (1,)), (5, (0, 2)), (6, (1, 3))]
    right = dict(zip(found.baselines, found.guesses[0, 0], strict=True))
    assert (right["nearest_mention"], right["head_match"]) == (0, 1)
    assert right["-2"] == 2  # 2 → 0 and 3 → 1
    assert right["-3"] == 2  # 5 → 2 and 6 → 3


def test_an_encoder_may_look_ahead():
    prompts = word_prompts(one_token_words(), [mentioned([0, 2])], causal=False)
    found = find_instances(prompts, [COREFERENCE])
    assert sorted((one.query, one.keys) for one in found.by_column[0]) == [(0, (2,)), (2, (0,))]


def test_a_single_mention_is_a_distractor_only():
    prompts = word_prompts(one_token_words(), [mentioned([0, 5], [3])])
    found = find_instances(prompts, [COREFERENCE])
    assert found.rows.sum() == 2  # the own statistic and that of the group
    assert found.guesses[0, 0, found.baselines.index("nearest_mention")] == 0


def test_groups_are_statistics_of_their_own():
    document = sentence(
        ["x", "y", "x", "y"],
        clusters=[(Mention(0, 0, 1, 0), Mention(0, 2, 3, 2)), (Mention(0, 1, 2, 1),
            Mention(0, 3, 4, 3))],
        upos=["PROPN", "NOUN", "PRON", "NOUN"],
    )  # fmt: skip
    found = find_instances(word_prompts(one_token_words(), [document]), [COREFERENCE])
    assert [(s.variant, len(i)) for s, i in zip(found.columns, found.by_column, strict=True)] == [
        ("", 2),
        ("pronoun", 1),
        ("nominal", 1),
    ]


def test_shuffled_links_keep_offsets_and_can_be_seen(grammar):
    found = find_instances(grammar, [syntactic_kind("nsubj", "to_dependent")])
    true = found.by_column[0]
    moved = {}
    for draw, slot, instances in Shuffled(found, [0], 3, seed=1):
        assert slot == 0
        moved[draw] = instances
        for one, other in zip(true, instances, strict=True):
            assert [k - one.query for k in one.keys] == [k - other.query for k in other.keys]
            assert all(grammar.visible(other.sequence, other.query, k) for k in other.keys)
    pairs = [*zip(true, moved[0], strict=True)]
    assert all(one.sequence != other.sequence for one, other in pairs)
    assert len({other.sequence for _, other in pairs}) > len(grammar) / 2
    assert moved[0] != moved[1]
    again = {d: i for d, _, i in Shuffled(found, [0], 3, seed=1)}
    assert again == moved


def test_kinds_of_ones_own():
    kind = WordKind("second", "The word two before.", lambda d: [(2, [0])])
    document = sentence([*"abc"])
    try:
        register_words(kind)
        assert choose_word_kinds(None, [document])[-1] is kind
        assert choose_word_kinds("second", [])[0] is kind
        with pytest.raises(InputError, match="a kind named 'second' exists"):
            register_words(kind)
    finally:
        del WORD_KINDS["second"]
    found = find_instances(word_prompts(one_token_words(), [document]), [kind])
    assert found.by_column[0][0].keys == (0,)


@pytest.mark.parametrize(
    "links", [[(0, [7])], [(9, [0])], [0], [(0, 1)], [("a", [0])], [(0, [-1])]]
)
def test_links_that_are_none(links):
    kind = WordKind("wrong", "Wrong.", lambda document: links)
    with pytest.raises(InputError, match="kind wrong: links gives pairs of a word and a list"):
        [*kind.linked(sentence([*"abc"]))]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Bad", "", len), "lower-case identifiers"),
        (("a", 1, len), "definition is a sentence"),
        (("a", "", 1), "links is a function"),
        (("a", "", len, {"x y": len}), "guesses are functions by name"),
        (("a", "", len, {}, 1), "groups is a function"),
    ],
)
def test_kinds_that_are_none(arguments, message, as_users_call):
    with pytest.raises(InputError, match=message):
        WordKind(*arguments)


def test_kinds_by_name(as_users_call):
    with pytest.raises(InputError, match="two kinds have the same name"):
        choose_word_kinds("coreference,coreference", [])
    with pytest.raises(InputError, match="no kind is named"):
        choose_word_kinds(" ", [])
    with pytest.raises(InputError, match="a direction is one of"):
        choose_word_kinds("syntactic.obj.sideways", [])
    with pytest.raises(InputError, match="got int"):
        choose_word_kinds(3, [])
    with pytest.raises(InputError, match=r"unknown kind 'syntactic\.a\.b\.c'"):
        choose_word_kinds("syntactic.a.b.c", [])
    with pytest.raises(InputError, match="hold no visible link of any kind"):
        find_instances(word_prompts(one_token_words(), [sentence(["a"])]), [], empty="drop")


@pytest.mark.parametrize("name", ["syntactic.det", "syntactic.det.to_head", "syntactic.DET:x"])
def test_a_relation_that_no_document_has_is_named(name):
    documents = [sentence([*"abc"], [(0, 1)]), sentence([*"ab"], [(0, 1)], relation="nsubj:pass")]
    message = "linked under 'det', so syntactic.* has nothing to score; .* are nsubj, obj"
    with pytest.raises(InputError, match=message):
        choose_word_kinds(["syntactic.obj", name], documents)
    assert len(choose_word_kinds("syntactic.nsubj:pass, syntactic.obj.to_head", documents)) == 3
    assert len(choose_word_kinds(name, [])) == 1 + (name.count(".") == 1)  # nothing to compare


@pytest.mark.parametrize("name", ["syntactic", "syntactic.obj"])
def test_documents_without_trees_are_named(name):
    with pytest.raises(InputError, match=f"{name} names links of dependency trees, .* not have"):
        choose_word_kinds(name, [sentence([*"abc"])])
