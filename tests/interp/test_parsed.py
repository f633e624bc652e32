"""Parsed documents: passages, single mentions, parts of speech."""

import pytest

from headatlas.interp.conllu import read_conllu
from headatlas.interp.errors import InputError
from headatlas.interp.grammar import Grammar, Mention
from headatlas.interp.parsed import Parsed, from_grammar, passage


def test_a_passage_keeps_words_trees_and_mentions():
    whole = from_grammar(Grammar(2).document(n_sentences=6))
    part = passage(whole, 2, 5)
    words = [w for w, s in enumerate(whole.sentences) if 2 <= s < 5]
    assert [part.word(i) for i in range(len(words))] == [whole.word(w) for w in words]
    assert list(part.heads) == [
        whole.heads[w] - words[0] if whole.heads[w] >= 0 else -1 for w in words
    ]
    kept = [[m for m in cluster if 2 <= m.sentence < 5] for cluster in whole.clusters]
    kept = [[(m.sentence - 2, m.head) for m in cluster] for cluster in kept if len(cluster) > 1]
    assert [[(m.sentence, m.head) for m in cluster] for cluster in part.clusters] == kept


def test_a_single_mention_stays_and_a_torn_one_goes():
    spans, one = ((0, 1), (2, 3), (4, 5)), Mention(0, 0, 1, 0)
    two = (Mention(0, 0, 1, 0), Mention(1, 0, 1, 0))
    document = Parsed("a b c", spans, (0, 1, 2), (-1,) * 3, ("root",) * 3, ((one,), two),
        upos=("NOUN", "VERB", "X"))  # fmt: skip
    assert passage(document, 0, 1).clusters == ((one,),)
    assert passage(document, 0, 2).clusters == ((one,), two)
    assert passage(document, 1, 3).upos == ("VERB", "X")
    with pytest.raises(InputError, match="has no sentence 7 to 8"):
        passage(document, 7, 9)


def test_parts_of_speech_come_from_the_treebank(tmp_path):
    path = tmp_path / "bank.conllu"
    path.write_text(
        "1\tIt\tit\tPRON\t_\t_\t2\tnsubj\t_\t_\n2\tfell\tfall\t_\t_\t_\t0\troot\t_\t_\n\n",
        encoding="utf-8",
    )
    assert read_conllu(path)[0].upos == ("PRON", "")
    with pytest.raises(InputError, match="1 parts of speech for 2 words"):
        Parsed("a b", ((0, 1), (2, 3)), (0, 0), (-1, -1), ("root", "root"), upos=("X",))
