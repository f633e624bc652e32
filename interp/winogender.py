"""Read Winogender-style schemas: sentences whose pronoun has one known antecedent."""

from __future__ import annotations

import re
from pathlib import Path

from .errors import InputError, shown
from .files import read_text
from .grammar import Mention
from .parsed import Parsed
from .plain_numbers import as_index
from .plain_text import checked_text, printable
from .plain_words import split_words

_COLUMNS = ("occupation", "participant", "answer", "sentence")
_HEADER = "occupation(0), other-participant(1), answer, sentence"
_OCCUPATION, _PARTICIPANT = "$OCCUPATION", "$PARTICIPANT"
_PRONOUNS = {
    "$NOM_PRONOUN": ("he", "she", "they"),
    "$ACC_PRONOUN": ("him", "her", "them"),
    "$POSS_PRONOUN": ("his", "her", "their"),
}
_GENDERS = ("male", "female", "neutral")
_AGREE = {"was": "were", "is": "are", "has": "have", "does": "do", "wasn't": "weren't"}
_SLOT = re.compile(r"\$[A-Z_]+")
_NAME = re.compile(r"[^\W\d_]+(?:[ -][^\W\d_]+)*")
_ARTICLE = re.compile(r"\b(the|an?) $", re.IGNORECASE)
_UNKNOWN = "_"


def read_winogender(path: str | Path) -> list[Parsed]:
    """The sentences of a file of templates, each with the cluster of its pronoun.

    The file holds a header and one template per line: occupation, other participant, answer (0 for
    the occupation, 1 for the participant) and sentence, separated by tabs. The header calls the
    columns so (`occupation(0)`, `other-participant(1)`, `answer`, `sentence`). The sentence names
    `$OCCUPATION` and `$PARTICIPANT` once each and one of `$NOM_PRONOUN`, `$ACC_PRONOUN` and
    `$POSS_PRONOUN`. Each template gives six sentences: with the participant and with "someone",
    each with three pronouns.

    Args:
        path: the file, UTF-8.

    Returns:
        A document per sentence, named like `technician.customer.1.male`. Its trees are not known.

    Raises:
        InputError: no such file, no header, a line that is no template, or a sentence that stands
            twice with the same people; the message names the line.

    Reference:
        Rudinger et al. 2018, whose layout of columns this is.
    """
    name, rows = printable(Path(path).name), enumerate(read_text(path).split("\n"), 1)
    filled = [(f"{name}, line {number}", line) for number, line in rows if line.strip()]
    _check_header(*filled[0])
    documents: list[Parsed] = []
    seen: dict[tuple[str, ...], str] = {}
    for where, line in filled[1:]:
        occupation, participant, answer, sentence = _template(where, line)
        key = tuple(" ".join(x.split()).casefold() for x in (occupation, participant, sentence))
        if key in seen:
            raise InputError(
                f"{where}: this sentence stands with the same people in {seen[key]} already; leave "
                "one of the two out."
            )
        seen[key] = where
        documents += winogender(occupation, participant, answer, sentence, where=where)
    if not documents:
        raise InputError(f"{str(path)!r} holds no templates below its header.")
    return documents


def _check_header(where: str, line: str) -> None:
    """Refuse a file without a header, whose first template would be taken for it."""
    cells = line.casefold().split("\t")
    if len(cells) != len(_COLUMNS) or not all(map(str.__contains__, cells, _COLUMNS)):
        raise InputError(
            f"{where}: expected a header of the columns {_HEADER}, separated by tabs; got "
            f"{line[:60]!r}. Put one first."
        )


def _template(where: str, line: str) -> tuple[str, str, int, str]:
    cells = line.split("\t")
    if len(cells) != len(_COLUMNS):
        raise InputError(
            f"{where}: expected {len(_COLUMNS)} columns separated by tabs "
            f"({', '.join(_COLUMNS)}); got {len(cells)}."
        )
    occupation, participant, answer, sentence = (cell.strip() for cell in cells)
    if answer not in ("0", "1"):
        raise InputError(
            f"{where}: the answer is 0 (the occupation) or 1 (the participant); got "
            f"{answer[:20]!r}."
        )
    return occupation, participant, int(answer), sentence


def winogender(
    occupation: str, participant: str, answer: int, sentence: str, *, where: str = "template"
) -> list[Parsed]:
    """The six sentences of one template.

    Args:
        occupation: what `$OCCUPATION` stands for.
        participant: what `$PARTICIPANT` stands for; in three of the sentences it is "someone".
        answer: whom the pronoun means: 0, the occupation, or 1, the participant.
        sentence: the template.
        where: how messages call it.

    Raises:
        InputError: the sentence lacks a slot or has another one, a name is no words, or the answer
            is neither 0 nor 1.

    Example:
        >>> template = "The $OCCUPATION met the $PARTICIPANT when $NOM_PRONOUN was in."
        >>> first, *_, last = winogender("clerk", "guest", 1, template)
        >>> first.text
        'The clerk met the guest when he was in.'
        >>> last.text, last.name
        ('The clerk met someone when they were in.', 'clerk.someone.1.neutral')
    """
    slots = _SLOT.findall(checked_text(sentence, f"{where}: the sentence"))
    pronoun = [slot for slot in slots if slot in _PRONOUNS]
    wanted = sorted([_OCCUPATION, _PARTICIPANT, *pronoun[:1]])
    if len(pronoun) != 1 or sorted(slots) != wanted:
        raise InputError(
            f"{where}: the sentence needs {_OCCUPATION}, {_PARTICIPANT} and one of "
            f"{', '.join(_PRONOUNS)}, once each; got {', '.join(slots) or 'no slot'}."
        )
    for name in (occupation, participant):
        if not _NAME.fullmatch(checked_text(name, f"{where}: a person")):
            raise InputError(f"{where}: a person is one or more words of letters; got {name!r}.")
    chosen = as_index(answer)
    if chosen not in (0, 1):
        raise InputError(f"{where}: the answer is the number 0 or 1; got {shown(answer)}.")
    return [
        _filled(sentence, (occupation, other), chosen, gender)
        for other in (participant, "someone")
        for gender in range(len(_GENDERS))
    ]


def _filled(sentence: str, people: tuple[str, str], answer: int, gender: int) -> Parsed:
    """One sentence, written piece by piece to know where each person and the pronoun stand."""
    text, ends, at = "", {}, 0
    for slot in _SLOT.finditer(sentence):
        text += sentence[at : slot.start()]
        at = slot.end()
        word = {_OCCUPATION: people[0], _PARTICIPANT: people[1]}.get(slot[0])
        if word == "someone":  # no article, and the capital that it may have had
            article = _ARTICLE.search(text)
            if article:
                text = text[: article.start()]
                word = "Someone" if article[1][0].isupper() else word
        person = slot[0] if word else "pronoun"
        text += word or _PRONOUNS[slot[0]][gender]
        ends[person] = len(text)
        if person == "pronoun" and gender == _GENDERS.index("neutral"):
            rest = sentence[at:]
            verb = re.match(r" (\S+)", rest) if slot[0] == "$NOM_PRONOUN" else None
            if verb and verb[1] in _AGREE:
                text, at = f"{text} {_AGREE[verb[1]]}", at + verb.end()
    text += sentence[at:]
    spans = split_words(text, cuts=ends.values())
    head = {name: _word_ending(spans, end) for name, end in ends.items()}
    answered = (_OCCUPATION, _PARTICIPANT)[answer]
    other = (_OCCUPATION, _PARTICIPANT)[1 - answer]
    mentions = {name: Mention(0, word, word + 1, word) for name, word in head.items()}
    return Parsed(
        text=text,
        spans=spans,
        sentences=(0,) * len(spans),
        heads=(-1,) * len(spans),
        relations=(_UNKNOWN,) * len(spans),
        clusters=(tuple(sorted((mentions[answered], mentions["pronoun"]))), (mentions[other],)),
        name=f"{people[0]}.{people[1]}.{answer}.{_GENDERS[gender]}",
        group=people[0],
    )


def _word_ending(spans: tuple[tuple[int, int], ...], end: int) -> int:
    return next(word for word, (_, stop) in enumerate(spans) if stop == end)
