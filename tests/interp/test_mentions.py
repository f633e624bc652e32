"""Coreference from JSON and from templates: words, mentions, bad files."""

import json
import string
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headatlas.interp.errors import InputError
from headatlas.interp.grammar import Mention
from headatlas.interp.mentions import read_mentions
from headatlas.interp.plain_words import split_sentences, split_words
from headatlas.interp.winogender import read_winogender, winogender

FUZZ = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
TEXT = "The old king slept. He snored."


def read(tmp_path, value):
    path = tmp_path / "texts.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return read_mentions(path)


def test_mentions_by_their_words(tmp_path):
    [document] = read(tmp_path, [{"text": TEXT, "clusters": [[[20, 22], [0, 12]]], "name": "a"}])
    words = [document.word(w) for w in range(len(document.spans))]
    assert words == ["The", "old", "king", "slept", ".", "He", "snored", "."]
    assert document.sentences == (0, 0, 0, 0, 0, 1, 1, 1)
    assert document.clusters == ((Mention(0, 0, 3, 2), Mention(1, 0, 1, 0)),)
    assert document.name == "a"


def test_a_marked_head_and_given_sentences(tmp_path):
    value = {"text": TEXT, "sentences": [0, 9], "clusters": [
        [{"start": 0, "end": 7, "head": [4, 7]}, [9, 12]]]}  # fmt: skip
    [document] = read(tmp_path, {"documents": [value]})
    assert document.clusters == ((Mention(0, 0, 2, 1), Mention(1, 0, 1, 0)),)


def test_mentions_cut_words(tmp_path):
    [document] = read(tmp_path, [{"text": "grandmother", "clusters": [[[0, 5], [5, 11]]]}])
    assert [document.word(w) for w in (0, 1)] == ["grand", "mother"]


def test_the_head_is_the_last_word_that_is_no_mark(tmp_path):
    [document] = read(tmp_path, [{"text": 'Henry V, "I"', "clusters": [[[0, 8], [9, 12]]]}])
    assert [m.head for m in document.clusters[0]] == [1, 4]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ([], "holds no documents"),
        ({"texts": []}, "holds no documents"),
        ([3], "document 0: expected an object"),
        ([{"text": "a", "cluster": []}], "document 0: expected an object"),
        ([{"text": " "}], "a string with a word"),
        ([{"text": "a", "name": 1}], "document 0: name is a int, not a string"),
        ([{"text": 1}], "document 0: text is a int, not a string"),
        ([{"text": "a"}, {"text": "\ud800 b"}], r"texts\.json, document 1: text holds a lone surr"),
        ([{"text": "a", "name": "\udfff"}], "document 0: name holds a lone surrogate"),
        ([{"text": "a", "clusters": {}}], "list of lists"),
        ([{"text": "a", "clusters": [[[0, 2]]]}], "within the 1 characters"),
        ([{"text": "a b", "clusters": [[[1, 2]]]}], "holds no word"),
        ([{"text": "a", "clusters": [[[True, 1]]]}], "within the 1 characters"),
        ([{"text": "a", "clusters": [[{"start": 0}]]}], "has start, end"),
        ([{"text": "a b", "clusters": [[{"start": 0, "end": 1, "head": [2, 3]}]]}], "lies outside"),
        ([{"text": "a b", "sentences": [1]}], "rising from 0"),
        ([{"text": "a b", "sentences": [0, 9]}], "rising from 0"),
        ([{"text": "a b c", "sentences": [0, 2], "clusters": [[[0, 5]]]}], "over the end"),
    ],
)
def test_what_is_no_file_of_mentions(tmp_path, value, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 40) | st.text(max_size=12) | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["text", "clusters", "sentences", "name", "start", "end", "head"]),
            inner,
        )
    ),
    max_leaves=12,
)
documents = st.fixed_dictionaries(
    {"text": st.text(max_size=30)},
    optional={"clusters": json_values, "sentences": json_values, "name": json_values},
)
spans = st.tuples(st.integers(0, 20), st.integers(1, 8)).map(lambda s: [s[0], s[0] + s[1]])
near = st.fixed_dictionaries(
    {"text": st.text(string.ascii_letters + " .?\n'", min_size=1, max_size=30)},
    optional={
        "clusters": st.lists(st.lists(spans, max_size=3), max_size=3),
        "sentences": st.lists(st.integers(0, 25), max_size=3),
    },
)


@FUZZ
@given(st.lists(documents, max_size=2) | st.lists(near, min_size=1, max_size=2) | json_values)
def test_any_json_is_read_or_refused(tmp_path, value):
    try:
        found = read(tmp_path, value)
    except InputError:
        return
    for document in found:
        for cluster in document.clusters:
            assert all(m.start <= m.head < m.end for m in cluster)


@given(st.text(max_size=40), st.sets(st.integers(0, 40), max_size=5))
def test_words_cover_the_letters_and_end_at_cuts(text, cuts):
    found = split_words(text, cuts=cuts)
    covered = [i for start, end in found for i in range(start, end)]
    assert covered == sorted(covered)
    assert [i for i, char in enumerate(text) if not char.isspace()] == covered
    assert not any(start < cut < end for start, end in found for cut in cuts)
    starts = split_sentences(text, kept=[(0, 5)])
    assert starts[0] == 0
    assert not any(0 < start < 5 for start in starts)


HEADER = "occupation(0)\tother-participant(1)\tanswer\tsentence\n"
TEMPLATE = "The $PARTICIPANT thanked the $OCCUPATION because $NOM_PRONOUN was kind."


def read_templates(tmp_path, *lines):
    path = tmp_path / "templates.tsv"
    path.write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    return read_winogender(path)


def test_six_sentences_of_a_template(tmp_path):
    found = read_templates(tmp_path, f"nurse\tpatient\t0\t{TEMPLATE}", "")
    assert [document.text for document in found] == [
        "The patient thanked the nurse because he was kind.",
        "The patient thanked the nurse because she was kind.",
        "The patient thanked the nurse because they were kind.",
        "Someone thanked the nurse because he was kind.",
        "Someone thanked the nurse because she was kind.",
        "Someone thanked the nurse because they were kind.",
    ]
    assert [document.name for document in found][2:4] == [
        "nurse.patient.0.neutral",
        "nurse.someone.0.male",
    ]
    for document in found:
        (answer, pronoun), (other,) = document.clusters
        assert document.word(answer.head) == "nurse"
        assert document.word(pronoun.head) in ("he", "she", "they")
        assert document.word(other.head) in ("patient", "Someone")


def test_the_answer_may_be_the_participant_and_the_pronoun_anywhere():
    sentence = "When $POSS_PRONOUN is called, the $OCCUPATION sees an $PARTICIPANT."
    *_, last = winogender("vet", "old owner", 1, sentence)
    assert last.text == "When their is called, the vet sees someone."
    first = winogender("vet", "old owner", 1, sentence)[0]
    (pronoun, answer), _ = first.clusters
    assert (first.word(pronoun.head), first.word(answer.head)) == ("his", "owner")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nurse\tpatient\t0", "line 2: expected 4 columns"),
        (f"nurse\tpatient\t2\t{TEMPLATE}", "line 2: the answer is 0"),
        (f"nur3se\tpatient\t0\t{TEMPLATE}", "line 2: a person is"),
        ("nurse\tpatient\t0\tThe $OCCUPATION left.", "line 2: the sentence needs"),
        (f"nurse\tpatient\t0\t{TEMPLATE} $OTHER", "line 2: the sentence needs"),
        ("", "holds no templates"),
    ],
)
def test_what_is_no_template(tmp_path, line, message):
    with pytest.raises(InputError, match=message):
        read_templates(tmp_path, line)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([f"nurse\tpatient\t0\t{TEMPLATE}"], "line 1: expected a header of the columns occup"),
        (["", f"nurse\tpatient\t0\t{TEMPLATE}"], "line 2: expected a header"),
        (["occupation\tparticipant\tanswer"], "line 1: expected a header"),
        (["participant\toccupation\tanswer\tsentence"], "line 1: expected a header"),
        (["occupation\tparticipant\tanswer\tsentence"], "holds no templates below"),
    ],
)
def test_a_file_without_its_header_is_refused(tmp_path, lines, message):
    path = tmp_path / "templates.tsv"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_winogender(path)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"answer": 1.0}, r"row 7: the answer is the number 0 or 1; got 1\.0"),
        ({"answer": True}, "the number 0 or 1; got True"),
        ({"answer": "1"}, "the number 0 or 1; got '1'"),
        ({"answer": 2}, "the number 0 or 1; got 2"),
        ({"answer": 10**5000}, "got an integer of more"),
        ({"occupation": 3}, "row 7: a person is a int, not a string"),
        ({"sentence": None}, "row 7: the sentence is a NoneType, not a string"),
        ({"sentence": f"{TEMPLATE} \ud800"}, "row 7: the sentence holds a lone surrogate"),
    ],
)
def test_parts_of_a_template_of_other_sorts(parts, message, as_users_call):
    whole = {"occupation": "vet", "participant": "owner", "answer": 1, "sentence": TEMPLATE}
    with pytest.raises(InputError, match=message):
        winogender(**{**whole, **parts}, where="row 7")


def test_the_answer_is_any_whole_number(as_users_call):
    answer: Any = np.int64(1)
    assert winogender("vet", "owner", answer, TEMPLATE) == winogender("vet", "owner", 1, TEMPLATE)


def test_unprintable_names_of_files(tmp_path):
    path = tmp_path / "a\udcff.json"
    path.write_text('[{"text": "a"}]', encoding="utf-8")
    assert read_mentions(path)[0].name == "a�.json, document 0"
    path.write_text("x", encoding="utf-8")
    with pytest.raises(InputError, match=r"a�\.json, line 1: expected a header"):
        read_winogender(path)


@pytest.mark.parametrize(
    "again",
    [
        f"nurse\tpatient\t0\t{TEMPLATE}",
        f"nurse\tpatient\t1\t{TEMPLATE}",
        f"Nurse \tpatient\t0\t{TEMPLATE.replace(' ', '  ')}",
    ],
)
def test_a_template_that_stands_twice_is_refused(tmp_path, again):
    other = TEMPLATE.replace("kind", "fast")
    lines = [f"nurse\tpatient\t0\t{TEMPLATE}", f"nurse\tpatient\t1\t{other}", "", again]
    assert len(read_templates(tmp_path, *lines[:2])) == 12
    with pytest.raises(
        InputError, match=r"line 5: .* in templates\.tsv, line 2 already; leave one"
    ):
        read_templates(tmp_path, *lines)


SLOTS = ["$OCCUPATION", "$PARTICIPANT", "$NOM_PRONOUN", "$ACC_PRONOUN", "$POSS_PRONOUN", "$"]
pieces = st.lists(st.sampled_from([*SLOTS, "The ", "the", " ", "was", ".", "a "]), max_size=10)


@FUZZ
@given(
    st.lists(st.one_of(st.text(max_size=20), pieces.map("".join)), min_size=1, max_size=6),
    st.sampled_from(["0", "1", "2", ""]),
    st.permutations(SLOTS[:3]),
    st.tuples(*[st.sampled_from([" ", " the ", "", " was ", ". The "])] * 4),
)
def test_any_template_is_read_or_refused(tmp_path, cells, answer, slots, between):
    sentence = "".join(a + b for a, b in zip(between, [*slots, ""], strict=True))
    for line in ("\t".join(cells), f"clerk\tguest\t{answer}\t{sentence}"):
        try:
            found = read_templates(tmp_path, line)
        except InputError:
            continue
        assert len(found) % 6 == 0
        assert all(len(document.clusters) == 2 for document in found)
