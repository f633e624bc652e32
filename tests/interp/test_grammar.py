"""The generated text: trees, agreement, coreference, text and its spans."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headatlas.interp.errors import InputError
from headatlas.interp.grammar import TOPICS, Document, Grammar, Mention, Sentence, natural_text
from headatlas.interp.grammar.lexicon import BOYS, GIRLS
from headatlas.interp.grammar.morphology import Verb, article, plural_of, verb_group
from headatlas.interp.grammar.tree import PRONOUNS

SEEDS = st.integers(min_value=-(2**40), max_value=2**40)
CLASS_OF = {form: gender for gender, forms in PRONOUNS.items() for form in forms}
RELATIONS = frozenset(
    [
        "root",
        "nsubj",
        "nsubj:pass",
        "obj",
        "iobj",
        "obl",
        "obl:agent",
        "det",
        "amod",
        "case",
        "advmod",
        "aux",
        "aux:pass",
        "mark",
        "conj",
        "cc",
        "nmod",
        "nmod:poss",
        "compound",
        "compound:prt",
        "flat",
        "appos",
        "xcomp",
        "ccomp",
        "advcl",
        "acl:relcl",
        "cop",
        "nummod",
        "expl",
        "punct",
    ]
)


@pytest.fixture(scope="module")
def documents() -> tuple[Document, ...]:
    return tuple(Grammar(5).documents(300))


def words_of(document: Document, mention: Mention) -> tuple[str, ...]:
    return document.sentences[mention.sentence].words[mention.start : mention.end]


def pronoun_class(document: Document, mention: Mention) -> str | None:
    words = words_of(document, mention)
    return CLASS_OF.get(words[0].lower()) if len(words) == 1 else None


def check_tree(sentence: Sentence) -> None:
    n = len(sentence.words)
    assert len(sentence.heads) == len(sentence.relations) == n
    assert [i for i in range(n) if sentence.heads[i] == -1] == [sentence.relations.index("root")]
    assert sentence.relations.count("root") == 1
    for word in range(n):
        seen, at = set(), word
        while at != -1:
            assert at not in seen
            seen.add(at)
            at = sentence.heads[at]
    arcs = [tuple(sorted((i, h))) for i, h in enumerate(sentence.heads) if h >= 0]
    for (a, b), (c, d) in itertools.combinations(arcs, 2):
        crossing = a < c < b < d or c < a < d < b
        assert not crossing, "the tree is not projective"


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, n_sentences=st.integers(1, 12))
def test_every_sentence_is_a_projective_tree(seed: int, n_sentences: int) -> None:
    document = Grammar(seed).document(n_sentences)
    assert len(document.sentences) == n_sentences
    for sentence in document.sentences:
        check_tree(sentence)
        assert set(sentence.relations) <= RELATIONS
        assert all(sentence.words)


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS)
def test_word_spans_cut_the_words_out_of_the_text(seed: int) -> None:
    document = Grammar(seed).document()
    text, covered = document.text, 0
    for sentence, spans in zip(document.sentences, document.word_spans, strict=True):
        assert sentence.text == text[spans[0][0] : spans[-1][1]]
        for word, (start, end) in zip(sentence.words, spans, strict=True):
            assert text[start:end] == word
            assert text[covered:start] in ("", " ", "\n")
            covered = end
    assert covered == len(text)
    assert text.count("\n") == len(document.paragraphs) - 1


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS)
def test_clusters_are_coherent(seed: int) -> None:
    document = Grammar(seed).document()
    everything = [mention for cluster in document.clusters for mention in cluster]
    assert len(set(everything)) == len(everything)
    for cluster in document.clusters:
        assert len(cluster) > 1
        assert list(cluster) == sorted(cluster, key=lambda m: (m.sentence, m.start))
        classes = {pronoun_class(document, mention) for mention in cluster} - {None}
        assert len(classes) <= 1, "one entity, one kind of pronoun"
        assert pronoun_class(document, cluster[0]) is None, "a pronoun needs an antecedent"
        for mention in cluster:
            assert mention.start <= mention.head < mention.end
            sentence = document.sentences[mention.sentence]
            inside = range(mention.start, mention.end)
            leaving = [i for i in inside if sentence.heads[i] not in inside]
            assert leaving == [mention.head], "a mention is one subtree"


def test_pronouns_resolve_to_the_last_rival(documents: tuple[Document, ...]) -> None:
    """Among entities that take the same pronoun, the one mentioned last is meant."""
    resolved = 0
    for document in documents:
        kind_of: dict[int, str] = {}
        flat: list[tuple[Mention, int]] = []
        for index, cluster in enumerate(document.clusters):
            flat += [(mention, index) for mention in cluster]
            for mention in cluster:
                gender = pronoun_class(document, mention)
                if gender:
                    kind_of[index] = gender
        # Head order is the order in which the phrases were completed.
        flat.sort(key=lambda pair: (pair[0].sentence, pair[0].head))
        last: dict[str, int] = {}
        for mention, index in flat:
            gender = pronoun_class(document, mention)
            if gender:
                assert last[gender] == index
                resolved += 1
            if index in kind_of:
                last[kind_of[index]] = index
    assert resolved > 500


def test_names_agree_with_pronouns(documents: tuple[Document, ...]) -> None:
    checked = Counter()
    for document in documents:
        for cluster in document.clusters:
            first = document.sentences[cluster[0].sentence].words[cluster[0].head]
            expected = "f" if first in GIRLS else "m" if first in BOYS else None
            for mention in cluster:
                found = pronoun_class(document, mention)
                if expected and found:
                    assert found == expected
                    checked[expected] += 1
    assert min(checked["f"], checked["m"]) > 100


def test_verbs_agree_with_their_subjects(documents: tuple[Document, ...]) -> None:
    singular, plural = {"is", "was", "has", "does"}, {"are", "were", "have", "do"}
    checked = Counter()
    for sentence in (sentence for document in documents for sentence in document.sentences):
        for subject, (head, relation) in enumerate(
            zip(sentence.heads, sentence.relations, strict=True)
        ):
            if relation not in ("nsubj", "nsubj:pass"):
                continue
            word = sentence.words[subject].lower()
            verbs = [
                sentence.words[i].lower()
                for i, h in enumerate(sentence.heads)
                if h == head and sentence.relations[i] in ("aux", "aux:pass", "cop")
            ][:1]
            if word in ("he", "she", "it"):
                assert not plural & set(verbs), sentence.text
            elif word == "they":
                assert not singular & set(verbs), sentence.text
            checked[word] += bool((singular | plural) & set(verbs))
    assert all(checked[word] > 20 for word in ("he", "she", "it", "they"))


def test_seeded_and_independent_of_what_came_before() -> None:
    ahead, fresh = Grammar(3), Grammar(3)
    ahead.document(9)
    fresh.document()
    assert ahead.document() == fresh.document()
    assert Grammar(3).document() != Grammar(4).document()


def test_text_is_varied(documents: tuple[Document, ...]) -> None:
    sentences = [sentence for document in documents for sentence in document.sentences]
    words = [word.lower() for sentence in sentences for word in sentence.words]
    assert len(TOPICS) >= 8
    assert {document.topic for document in documents} == {topic.name for topic in TOPICS}
    assert len(set(words)) > 1500
    assert len({sentence.text for sentence in sentences}) > 0.98 * len(sentences)
    found = Counter(relation for sentence in sentences for relation in sentence.relations)
    assert set(found) == RELATIONS
    assert min(found.values()) >= 20
    longest = sum(len(word) >= 12 for word in words)
    assert 0.005 < longest / len(words) < 0.1
    marks = Counter(word for word in words if word in ',.?!;:"')
    assert all(marks[mark] for mark in ',.?!;:"')


def test_documents_keep_to_their_topic(documents: tuple[Document, ...]) -> None:
    things = {topic.name: set(topic.things) for topic in TOPICS}
    for topic in TOPICS:
        counts: Counter[str] = Counter()
        for document in (document for document in documents if document.topic == topic.name):
            words = {word.lower() for sentence in document.sentences for word in sentence.words}
            counts.update({name: len(words & nouns) for name, nouns in things.items()})
        assert counts.most_common(1)[0][0] == topic.name


@settings(max_examples=12, deadline=None)
@given(n_words=st.integers(1, 300), seed=SEEDS)
def test_natural_text_has_the_length_asked_for(n_words: int, seed: int) -> None:
    text = natural_text(n_words, seed=seed)
    assert len(text.split()) == n_words
    assert text == natural_text(n_words, seed=seed)
    assert text.startswith(text.strip())


def test_natural_text_mixes_topics() -> None:
    text = natural_text(3000, seed=0)
    present = [t.name for t in TOPICS if sum(f" {noun}" in text for noun in t.things) >= 3]
    assert len(present) >= 8
    assert text.count("\n\n") > 15


@pytest.mark.parametrize("bad", [0, -3])
def test_lengths_below_one_are_refused(bad: int) -> None:
    with pytest.raises(InputError, match=f"at least one sentence; got n_sentences={bad}"):
        Grammar(0).document(bad)
    with pytest.raises(InputError, match=f"at least one word; got n_words={bad}"):
        natural_text(bad, seed=0)


def test_quotes_and_clitics_are_set_as_in_print() -> None:
    words = ("Then", "he", "said", ":", '"', "Anna", "'s", "net", ",", '"', "twice", ".")
    sentence = Sentence(words, (2, 2, -1, 2, 7, 7, 5, 2, 7, 7, 2, 2), ("dep",) * 12)
    assert sentence.text == 'Then he said: "Anna\'s net," twice.'
    assert [sentence.text[a:b] for a, b in sentence.word_spans] == list(words)


@pytest.mark.parametrize(
    ("entry", "forms"),
    [
        ("paint", ("paints", "painted", "painted", "painting")),
        ("bake", ("bakes", "baked", "baked", "baking")),
        ("stop/stopped/stopped", ("stops", "stopped", "stopped", "stopping")),
        ("dig/dug/dug", ("digs", "dug", "dug", "digging")),
        ("carry", ("carries", "carried", "carried", "carrying")),
        ("echo", ("echoes", "echoed", "echoed", "echoing")),
        ("lie/lied/lied", ("lies", "lied", "lied", "lying")),
        ("write/wrote/written", ("writes", "wrote", "written", "writing")),
        ("play", ("plays", "played", "played", "playing")),
    ],
)
def test_verb_forms(entry: str, forms: tuple[str, ...]) -> None:
    verb = Verb.read(entry)
    assert (verb.third, verb.past, verb.participle, verb.gerund) == forms


def test_verb_groups() -> None:
    verb = Verb.read("write/wrote/written")

    def said(*operators: str, plural: bool = False, negated: bool = False) -> str:
        group = verb_group(verb, operators, tense="present", plural=plural, negated=negated)
        return " ".join(word for _, word in group)

    assert said() == "writes"
    assert said(plural=True) == "write"
    assert said("do", negated=True) == "does not write"
    assert said("must", "perfect") == "must have written"
    assert said("progressive", plural=True) == "are writing"
    assert said("perfect", "passive") == "has been written"


def test_nouns_and_articles() -> None:
    assert [plural_of(noun) for noun in ("loaf", "torch", "battery", "piano", "key")] == [
        "loaves",
        "torches",
        "batteries",
        "pianos",
        "keys",
    ]
    assert [article(word) for word in ("rope", "oven", "hour", "unit", "useful")] == [
        "a",
        "an",
        "an",
        "a",
        "a",
    ]
