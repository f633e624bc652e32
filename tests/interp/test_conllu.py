"""Treebanks in CoNLL-U: text, words, heads, multiword tokens, coreference, and bad files."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headatlas.interp.conllu import read_conllu
from headatlas.interp.errors import InputError
from headatlas.interp.grammar import Grammar
from headatlas.interp.parsed import by_sentence, from_grammar

FUZZ = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def row(number, form, head=0, relation="root", misc="_"):
    return "\t".join([str(number), form, "_", "_", "_", "_", str(head), relation, "_", misc])


def mwt(span, form, misc="_"):
    return "\t".join([span, form, *["_"] * 7, misc])


def read(tmp_path, *lines):
    path = tmp_path / "bank.conllu"
    path.write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    return read_conllu(path)


def words(document):
    return [document.word(i) for i in range(len(document.spans))]


def empty(number, misc="_", form="gone"):
    return "\t".join([number, form, *["_"] * 7, misc])


SHE = (
    row(1, "She", 2, "nsubj"),
    row(2, "slept", 0, "root", "SpaceAfter=No"),
    row(3, ".", 2, "punct"),
)


def test_text_words_and_heads(tmp_path):
    (document,) = read(tmp_path, *SHE)
    assert document.text == "She slept."
    assert words(document) == ["She", "slept", "."]
    assert document.heads == (1, -1, 1)
    assert document.relations == ("nsubj", "root", "punct")


def test_sentences_paragraphs_and_documents(tmp_path):
    lines = ["# newdoc id = a", *SHE, "", "# newpar", *SHE, "", *SHE, "", "# newdoc id = b", *SHE]
    first, second = read(tmp_path, *lines)
    assert first.text == "She slept.\nShe slept. She slept."
    assert first.sentences == (0, 0, 0, 1, 1, 1, 2, 2, 2)
    assert first.heads[3:6] == (4, -1, 4)
    assert (first.name, second.name) == ("a", "b")
    assert [s.text for s in by_sentence([first])] == ["She slept."] * 3
    assert by_sentence([first])[2].heads == (1, -1, 1)


def test_a_contraction_keeps_the_places_of_its_words(tmp_path):
    (document,) = read(
        tmp_path, mwt("1-2", "Don't"), row(1, "Do", 3, "aux"), row(2, "n't", 3, "advmod"),
        row(3, "go"),
    )  # fmt: skip
    assert document.text == "Don't go"
    assert words(document) == ["Do", "n't", "go"]


def test_words_that_a_token_does_not_spell_share_its_place(tmp_path):
    (document,) = read(
        tmp_path, mwt("1-2", "du", "SpaceAfter=No"), row(1, "de", 3, "case"),
        row(2, "le", 3, "det"), row(3, "vin"),
    )  # fmt: skip
    assert document.text == "duvin"
    assert words(document) == ["du", "du", "vin"]


def test_empty_nodes_and_comments_are_left_out(tmp_path):
    (document,) = read(tmp_path, "# text = whatever", SHE[0], empty("1.1"), *SHE[1:])
    assert words(document) == ["She", "slept", "."]


def test_a_sentence_of_empty_nodes_alone_is_no_sentence(tmp_path):
    lonely = ["0.1\t_" + "\t_" * 7 + "\tEntity=(e1)", ""]
    (document,) = read(tmp_path, *lonely, *SHE, "", *lonely, *SHE)
    assert (document.text, document.sentences) == ("She slept. She slept.", (0, 0, 0, 1, 1, 1))
    assert document.clusters == ()


def test_coreference(tmp_path):
    (document,) = read(
        tmp_path,
        "# global.Entity = eid-etype-head-other",
        row(1, "The", 3, "det", "Entity=(e1-person-3-x"),
        row(2, "old", 3, "amod"),
        row(3, "cook", 4, "nsubj", "Entity=e1)"),
        row(4, "slept"),
        "",
        row(1, "She", 2, "nsubj", "Entity=(e1-person-1-x)"),
        row(2, "left", 0, "root", "SpaceAfter=No|Entity=(e2-event-1-x)"),
        row(3, ".", 2, "punct"),
    )
    ((first, second),) = document.clusters  # e2 has one mention: no cluster
    assert (first.sentence, first.start, first.end, first.head) == (0, 0, 3, 2)
    assert (second.sentence, second.start, second.end, second.head) == (1, 0, 1, 0)


def test_nested_mentions_and_heads_from_the_tree(tmp_path):
    (document,) = read(
        tmp_path,
        row(1, "her", 2, "nmod:poss", "Entity=(a(b)"),
        row(2, "dog", 3, "nsubj", "Entity=a)"),
        row(3, "ran", 0, "root"),
        row(4, "to", 5, "case"),
        row(5, "her", 3, "obl", "Entity=(b)"),
        row(6, "it", 3, "obj", "Entity=(a)"),
    )
    spans = [[(m.start, m.end, m.head) for m in cluster] for cluster in document.clusters]
    assert spans == [[(0, 1, 0), (4, 5, 4)], [(0, 2, 1), (5, 6, 5)]]


def test_a_discontinuous_mention_counts_with_its_first_part(tmp_path):
    (document,) = read(
        tmp_path,
        row(1, "one", 0, "root", "Entity=(a[1/2])"),
        row(2, "and", 1, "cc"),
        row(3, "two", 1, "conj", "Entity=(a[2/2])"),
        row(4, "it", 1, "obj", "Entity=(a)"),
    )
    ((first, second),) = document.clusters
    assert (first.start, first.end, second.start) == (0, 1, 3)


EMPTY_NODES = {  # notes of the words 1 to 4 and of the empty node 2.1; mentions (start, end, head)
    "opened on it": (["", "", "e1)", "(e1)"], "(e1--2", [(2, 3, 2), (3, 4, 3)]),
    "closed on it": (["(e1--1", "", "", "(e1)"], "e1)", [(0, 2, 0), (3, 4, 3)]),
    "around it": (["", "(e1--3", "e1)", "(e1)"], "", [(1, 3, 2), (3, 4, 3)]),
    "with it as the head": (["(e1--3", "", "e1)", "(e1)"], "", [(0, 3, 1), (3, 4, 3)]),
    "open to the end": (["(e1)", "", "", ""], "(e1", [(0, 1, 0), (2, 4, 3)]),
    "on it alone": (["(e1)", "", "", "(e1)"], "(e1)", [(0, 1, 0), (3, 4, 3)]),
    "one of two": (["(e1)", "", "", ""], "(e1)", []),
    "the same words": (["(e1)", "", "(e1--1", "e1)"], "(e1", [(0, 1, 0), (2, 4, 2)]),
    "a first part": (["(e1)", "", "(e1[2/2])", ""], "(e1[1/2]--1)", [(0, 1, 0), (2, 3, 2)]),
}


@pytest.mark.parametrize("name", EMPTY_NODES)
def test_mentions_on_empty_nodes_are_cut_to_their_words(tmp_path, name):
    """The tree: word 2 is the root of 1 and 4, word 4 the head of 3."""
    notes, on_node, expected = EMPTY_NODES[name]
    one, two, *rest = (
        row(n, "abcd"[n - 1], head, "x", f"Entity={note}" if note else "_")
        for n, head, note in zip((1, 2, 3, 4), (2, 0, 4, 2), notes, strict=True)
    )
    (document,) = read(tmp_path, one, two, empty("2.1", f"Entity={on_node}"), *rest)
    assert [[(m.start, m.end, m.head) for m in c] for c in document.clusters] == (
        [expected] if expected else []
    )


def test_a_bracket_on_an_empty_node_must_be_right(tmp_path):
    with pytest.raises(InputError, match="line 2: the Entity bracket 'e1' closes but was not"):
        read(tmp_path, SHE[0], empty("1.1", "Entity=e1)"), *SHE[1:])


@pytest.mark.parametrize(
    ("comment", "begins"),
    [
        ("# newdoc", True),
        ("#newdoc id = b", True),
        ("#  newdoc\tid = b", True),
        ("# newdocument", False),
        ("# newdocs = b", False),
        ("# a newdoc", False),
    ],
)
def test_newdoc_is_a_word(tmp_path, comment, begins):
    found = read(tmp_path, *SHE, "", comment, *SHE)
    assert len(found) == 1 + begins
    if begins:
        assert found[1].name == ("b" if "=" in comment else "bank.conllu, document at 5")


def test_newpar_and_the_layout_need_no_blank_either(tmp_path):
    notes = [row(1, "a", 2, "x", "Entity=(m1-k)"), row(2, "b", 0, "root", "Entity=(m2-k)")]
    (document,) = read(
        tmp_path, "#global.Entity=mark-eid", *SHE, "", "#newpar", *notes, "", "# newparty", *SHE
    )
    assert document.text == "She slept.\na b She slept."
    assert [(m.start, m.end) for m in document.clusters[0]] == [(0, 1), (1, 2)]


def test_an_unprintable_name_of_a_file(tmp_path):
    path = tmp_path / "bank\udcff.conllu"
    path.write_text("\n".join([*SHE, "", ""]), encoding="utf-8")
    assert read_conllu(path)[0].name == "bank�.conllu"


TEMPLATES = "occupation(0)\tother-participant(1)\tanswer\tsentence"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([TEMPLATES], r"line 1: expected 10 columns .* got 4: .*are read with read_winogender\.$"),
        (["a\tb\tc"], r"got 3: 'a\\tb\\tc'\.$"),
        ([*SHE, " ", *SHE], "line 4: the line holds nothing but blanks; a sentence ends with an"),
        ([*SHE, "\t", *SHE], "line 4: the line holds nothing but blanks"),
        ([row(1, " x")], "line 1: the word form ' x' begins or ends with a blank"),
        ([row(1, "x\u00a0")], r"the word form 'x\\xa0' begins or ends with a blank"),
        ([mwt("1-1", "x ")], "the word form 'x ' begins"),
        ([row(1, "x", 0, " root")], "the relation ' root' begins or ends with a blank"),
        (["1\tonly\tthree"], r"line 1: expected 10 columns separated by tabs; got 3"),
        ([row(2, "x")], "word 2 stands where word 1 should"),
        ([row("one", "x")], "'one' is no word number"),
        ([row(1, "x", "_", "_")], "needs a head"),
        ([row(1, "x", 5)], "the head 5 in a sentence of 1 words"),
        ([row(1, "x", 1)], r"line 1: the heads from word 1 on lead back to it \(1 → 1\)"),
        ([row(1, "x", 2), row(2, "y", 1)], r"line 1: the heads from word 1 on .*\(1 → 2 → 1\)"),
        (
            [row(1, "r"), row(2, "x", 3), row(3, "y", 4), row(4, "z", 3)],
            r"line 3: the heads from word 3 on lead back to it \(3 → 4 → 3\); heads must",
        ),
        ([row(n, "x", n % 20 + 1) for n in range(1, 21)], "1 → 2 → 3 → 4 → 5 → 6 → 7 → 8 → … → 1"),
        (
            [row(1, "x"), "", row(1, "x"), row(2, "y", 1), row(3, "z")],
            "line 5: word 3 is a second root beside word 1; a sentence has one",
        ),
        (
            [mwt("1-2", "xy"), row(1, "x"), mwt("2-3", "yz"), row(2, "y", 1), row(3, "z", 1)],
            "line 3: the range 2-3 overlaps one before it, which ends at word 2",
        ),
        (
            [mwt("1-2", "xy"), mwt("1-3", "xy"), row(1, "x"), row(2, "y", 1), row(3, "z", 1)],
            "line 2: the range 1-3 overlaps",
        ),
        (
            [row(1, "x"), row(2, "y", 1), mwt("1-2", "xy")],
            "line 3: range 1-2 stands where word 3 should",
        ),
        ([mwt("1-2", "xy")], "the range 1-2 goes beyond the 0 words"),
        (
            [row(1, "x"), "# newdoc id = b", row(2, "y", 1)],
            "line 2: the comment '# newdoc id = b' stands inside a sentence",
        ),
        ([row(1, "x"), "# newpar", row(2, "y", 1)], "line 2: the comment '# newpar' stands"),
        ([row(1, "x"), "# sent_id = 2", row(1, "y")], "line 2: .* an empty line ends it"),
        (["\t".join(["0.1", *["_"] * 9]), "# newdoc", row(1, "x")], "line 2: the comment"),
        ([row(1, " ")], "the word form is empty"),
        ([mwt("1-3", "xy"), row(1, "x")], "the range 1-3 goes beyond"),
        ([mwt("2-1", "xy"), row(1, "x")], "no range of words"),
        ([row(1, "x", misc="Entity=a)")], "closes but was not opened"),
        ([row(1, "x", misc="Entity=a")], "no series of brackets"),
        (["# newdoc"], "holds no sentences"),
    ],
)
def test_bad_lines_are_named(tmp_path, lines, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, *lines)


@FUZZ
@given(data=st.data())
def test_a_changed_file_reads_or_is_refused(tmp_path, data):
    lines = ["# newdoc", mwt("1-2", "Don't"), row(1, "Do", 3), row(2, "n't", 3), row(3, "go"), ""]
    lines += [*SHE, "", row(1, "x", 0, "root", "Entity=(e1-a(e2)")]
    text = "\n".join(lines)
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 12))
    piece = data.draw(st.text(alphabet="\t\n #=-|()[]/.0123456789ae_\u2028é", max_size=8))
    path = tmp_path / "bank.conllu"
    path.write_text(text[:at] + piece + text[at + cut :], encoding="utf-8")
    try:
        documents = read_conllu(path)
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return
    for document in documents:
        assert all(document.text[a:b] for a, b in document.spans)
        assert_trees(document)


def assert_trees(document):
    """Each sentence has one root, to which all its words lead."""
    roots = [word for word, head in enumerate(document.heads) if head < 0]
    assert [document.sentences[word] for word in roots] == [*range(len(document.first_words))]
    for word in range(len(document.heads)):
        for _ in document.heads:
            word = document.heads[word] if document.heads[word] >= 0 else word
        assert word in roots


SENTENCES = st.lists(
    st.one_of(
        st.builds(row, st.integers(1, 4), st.just("x"), st.integers(0, 4)),
        st.builds(lambda a, b: mwt(f"{a}-{b}", "xx"), st.integers(1, 3), st.integers(2, 4)),
        st.sampled_from(["", "# newdoc", "# newpar", "# text = x", "0.1" + "\t_" * 9]),
    ),
    max_size=8,
) | st.lists(st.integers(0, 5), min_size=1, max_size=5).map(
    lambda heads: [row(n, "x", head) for n, head in enumerate(heads, 1)]
)


@FUZZ
@given(blocks=st.lists(SENTENCES, min_size=1, max_size=3))
def test_lines_in_any_order_make_trees_or_are_refused(tmp_path, blocks):
    lines = [line for block in blocks for line in (*block, "")]
    try:
        documents = read(tmp_path, *lines)
    except InputError as error:
        assert re.search(r", line \d+: |holds no sentences|is empty", str(error))  # noqa: PT017
        return
    words = [line for line in lines if re.match(r"\d\t", line)]
    assert sum(len(document.heads) for document in documents) == len(words)
    for document in documents:
        assert_trees(document)


@FUZZ
@given(content=st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_or_read(tmp_path, content):
    path = tmp_path / "bank.conllu"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_conllu(path)


def test_the_grammar_as_parsed_text():
    document = Grammar(3).document(n_sentences=4)
    parsed = from_grammar(document)
    assert parsed.text == document.text
    flat = [w for sentence in document.sentences for w in sentence.words]
    assert words(parsed) == flat
    for sentence, one in zip(document.sentences, by_sentence([parsed]), strict=True):
        assert (one.text, one.heads) == (sentence.text, sentence.heads)
    assert parsed.clusters == document.clusters


def test_a_treebank_written_from_the_grammar_reads_back(tmp_path):
    document = Grammar(5).document(n_sentences=3)
    lines = ["# newdoc id = g"]
    for sentence in document.sentences:
        ends = [*(start for start, _ in sentence.word_spans[1:]), None]
        for i, (span, after) in enumerate(zip(sentence.word_spans, ends, strict=True)):
            misc = "SpaceAfter=No" if after == span[1] else "_"
            lines.append(
                row(i + 1, sentence.words[i], sentence.heads[i] + 1, sentence.relations[i], misc)
            )
        lines.append("")
    (again,) = read(tmp_path, *lines)
    own = from_grammar(document)
    assert (again.heads, again.relations, again.sentences) == (
        own.heads,
        own.relations,
        own.sentences,
    )
    assert [s.text for s in by_sentence([again])] == [s.text for s in document.sentences]
