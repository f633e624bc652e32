"""Parse plain text with spaCy, where it is installed, into trees under Universal Dependencies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .errors import InputError
from .parsed import Parsed

_RENAMED = {
    "acomp": "xcomp", "agent": "case", "attr": "xcomp", "auxpass": "aux:pass",
    "csubjpass": "csubj:pass", "dative": "iobj", "dobj": "obj", "intj": "discourse", "meta": "dep",
    "neg": "advmod", "npadvmod": "obl:npmod", "nsubjpass": "nsubj:pass", "oprd": "xcomp",
    "poss": "nmod:poss", "preconj": "cc:preconj", "predet": "det:predet", "prep": "dep",
    "prt": "compound:prt", "quantmod": "advmod", "relcl": "acl:relcl", "pcomp": "dep",
    "pobj": "dep",
}  # fmt: skip

_KEPT = (
    "acl", "advcl", "advmod", "amod", "appos", "aux", "case", "cc", "ccomp", "compound", "conj",
    "csubj", "dep", "det", "expl", "mark", "nmod", "nsubj", "nummod", "parataxis", "punct", "root",
    "xcomp",
)  # fmt: skip

LABELS = frozenset((*_RENAMED, *_KEPT))
"""The labels of spaCy's English models, in lower case."""

_NOUNS = frozenset({"NOUN", "PROPN", "PRON", "NUM", "SYM"})


def parse_text(text: str, *, model: str | Any = "en_core_web_sm", name: str = "text") -> Parsed:
    """Parse plain text with one of spaCy's English models.

    Needs the optional extra: `pip install "headatlas[spacy]"`, and the model:
    `python -m spacy download en_core_web_sm`. Nothing is downloaded by this function.

    spaCy's English models label trees in the style of ClearNLP. Both labels and edges are turned
    into those of Universal Dependencies:

    - *prepositions* (`prep`, `agent`, `dative` with an object): the object (`pobj`) takes the
      preposition's place, as `nmod` under a noun, pronoun, name or number, else as `obl`
      (`obl:agent` for `agent`); the preposition becomes its `case`. With a clause as object
      (`pcomp`), the clause becomes `acl` or `advcl` and the preposition its `mark`. A preposition
      without an object is `advmod`.
    - *copulas*: where *be* has an `attr` or `acomp`, that word takes its place and its dependents,
      and *be* becomes its `cop`.
    - *coordination*: all conjuncts hang on the first; `cc` hangs on the conjunct after it.
    - renamed: dobj → obj, dative → iobj, nsubjpass → nsubj:pass, csubjpass → csubj:pass,
      auxpass → aux:pass, acomp, attr, oprd → xcomp, neg, quantmod → advmod, npadvmod →
      obl:npmod, poss → nmod:poss, relcl → acl:relcl, prt → compound:prt, predet → det:predet,
      preconj → cc:preconj, intj → discourse, meta → dep.
    - the same in both: acl, advcl, advmod, amod, appos, aux, case, cc, ccomp, compound, conj,
      csubj, dep, det, expl, mark, nmod, nsubj, nummod, parataxis, punct, root, xcomp.

    What a parser finds is not a gold tree: heads are then compared with the parser.

    Args:
        text: English text.
        model: name of an installed spaCy model, or a loaded pipeline.
        name: how messages call the document.

    Returns:
        The document, without coreference.

    Raises:
        InputError: spaCy or its model is not installed, the model has no parser or other labels
            (other languages' models), or the text has no words.

    Reference:
        Choi and Palmer 2012 for the source labels; de Marneffe et al. 2021 for the target.
    """
    if not isinstance(text, str) or not text.strip():
        raise InputError("text is a string with words in it.")
    pipeline = _pipeline(model) if isinstance(model, str) else model
    document = pipeline(text)
    tokens = [token for token in document if not token.is_space]
    if not tokens:
        raise InputError("spaCy finds no words in the text.")
    place = {token.i: index for index, token in enumerate(tokens)}
    tree = _Tree(
        [_head(token, place) for token in tokens],
        [_label(token) for token in tokens],
        [token.pos_ for token in tokens],
        [token.lemma_.lower() == "be" for token in tokens],
    )
    tree.to_universal()
    return Parsed(
        text=text,
        spans=tuple((token.idx, token.idx + len(token.text)) for token in tokens),
        sentences=_sentences(tree.heads),
        heads=tuple(tree.heads),
        relations=tuple(tree.labels),
        name=name,
        upos=tuple(tree.upos),
    )


def _pipeline(model: str) -> Any:
    try:
        import spacy  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError(
            "parsing plain text needs spaCy, which is not installed; "
            'run: pip install "headatlas[spacy]".'
        ) from error
    if not spacy.util.is_package(model):  # a path could lead to anything
        raise InputError(
            f"the spaCy model {model!r} is not installed; run: python -m spacy download "
            f"{model if model.isidentifier() else 'en_core_web_sm'}."
        )
    return spacy.load(model)


def _head(token: Any, place: dict[int, int]) -> int:
    """Index of a token's head; blanks are no words, and what hangs on one hangs on its head."""
    head = token.head
    while head.i not in place and head.head.i != head.i:
        head = head.head
    return -1 if head.i == token.i or head.i not in place else place[head.i]


def _label(token: Any) -> str:
    label = token.dep_.lower()
    if not label:
        raise InputError("the spaCy model has no parser; use one such as en_core_web_sm.")
    if label not in LABELS:
        raise InputError(
            f"the spaCy model labels {token.text!r} as {token.dep_!r}, which English models do not "
            "have. Parse other languages into CoNLL-U, and read that."
        )
    return label


def _sentences(heads: list[int]) -> tuple[int, ...]:
    """A sentence is a stretch of text that no tree reaches beyond."""
    roots = []
    for word in range(len(heads)):
        while heads[word] >= 0:
            word = heads[word]
        roots.append(word)
    last = {root: word for word, root in enumerate(roots)}
    sentences, number, reach = [], 0, -1
    for word, root in enumerate(roots):
        if word > reach and word > 0:
            number += 1
        reach = max(reach, last[root])
        sentences.append(number)
    return tuple(sentences)


@dataclass
class _Tree:
    """A dependency tree while it is rebuilt."""

    heads: list[int]
    labels: list[str]
    upos: list[str]
    is_be: list[bool]

    def to_universal(self) -> None:
        """ClearNLP's edges and labels into those of Universal Dependencies."""
        self._flatten_conjuncts()
        for word in reversed(range(len(self.heads))):  # inner phrases stand to the right
            if self.labels[word] in ("prep", "agent", "dative"):
                self._lower_preposition(word)
        for word in range(len(self.heads)):
            if self.is_be[word]:
                self._lower_copula(word)
        self.labels = [_RENAMED.get(label, label) for label in self.labels]
        for word, head in enumerate(self.heads):
            if head < 0:
                self.labels[word] = "root"

    def _children(self, word: int, *labels: str) -> list[int]:
        own = (child for child, head in enumerate(self.heads) if head == word)
        return [child for child in own if not labels or self.labels[child] in labels]

    def _flatten_conjuncts(self) -> None:
        for word in range(len(self.heads)):
            for mark in self._children(word, "cc"):
                after = [child for child in self._children(word, "conj") if child > mark]
                if after:
                    self.heads[mark] = after[0]
        for word, label in enumerate(self.labels):
            head, steps = self.heads[word], 0
            while label == "conj" and self.labels[head] == "conj" and steps < len(self.heads):
                head, steps = self.heads[head], steps + 1
            self.heads[word] = head

    def _lower_preposition(self, word: int) -> None:
        objects = self._children(word, "pobj", "pcomp")
        label, head = self.labels[word], self.heads[word]
        if not objects:
            if label != "dative":
                self.labels[word] = "advmod"
            return
        top = objects[0]
        clause = self.labels[top] == "pcomp"
        nominal = head >= 0 and self.upos[head] in _NOUNS
        if clause:
            new = "acl" if nominal else "advcl"
        else:
            new = "obl:agent" if label == "agent" else ("nmod" if nominal else "obl")
        self._swap(word, top, new, "mark" if clause else "case")

    def _lower_copula(self, word: int) -> None:
        predicates = self._children(word, "attr", "acomp")
        if predicates:
            self._swap(word, predicates[0], self.labels[word], "cop")

    def _swap(self, word: int, top: int, label: str, lowered: str) -> None:
        """`top`, a child of `word`, takes its place and its other children; `word` hangs on it."""
        for child in self._children(word):
            if child != top:
                self.heads[child] = top
        if self.labels[word] == "conj":
            label = "conj"
        self.heads[top], self.labels[top] = self.heads[word], label
        self.heads[word], self.labels[word] = top, lowered
