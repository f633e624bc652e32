"""Read texts with marked mentions from JSON: a simple form of coreference for any text."""

from __future__ import annotations

import json
from bisect import bisect_right
from pathlib import Path
from typing import Any

from .errors import InputError
from .files import read_text
from .grammar import Mention
from .parsed import Parsed
from .plain_text import checked_text, printable
from .plain_words import split_sentences, split_words

_KEYS = {"text", "clusters", "name", "sentences"}
_UNKNOWN = "_"


def read_mentions(path: str | Path) -> list[Parsed]:
    """The documents of a JSON file of mention spans.

    The file holds a list of documents, or an object with the list under `documents`:

        [{"name": "a letter",
          "text": "The old king slept. He snored.",
          "clusters": [[[0, 12], [20, 22]]],
          "sentences": [0, 20]}]

    `clusters` lists, for each person or thing, its mentions as half-open spans of characters
    (Python's, that is Unicode code points). A mention may be an object that also marks its head
    word: `{"start": 0, "end": 12, "head": [8, 12]}`; otherwise the head is its last word (in
    English that of most names and of nouns without a phrase after them). `name` and `sentences`
    (where each sentence starts) are optional; without the latter, a sentence ends at `.`, `?` or
    `!` before a blank and at an empty line, but never inside a mention.

    Args:
        path: the file, UTF-8.

    Returns:
        One `Parsed` per document, words being runs of letters and digits or single marks. Its
        trees are not known, so syntactic kinds find no link in it.

    Raises:
        InputError: no such file, no JSON, or a document that does not have this form; the message
            says where.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        ...     _ = file.write('[{"text": "Ann saw Bo. She waved.", ')
        ...     _ = file.write('"clusters": [[[0, 3], [12, 15]]]}]')
        ...     file.flush()
        ...     [document] = read_mentions(file.name)
        >>> document.clusters[0][1]
        Mention(sentence=1, start=0, end=1, head=0)
    """
    name = printable(Path(path).name)
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{str(path)!r} is not JSON: {error}.") from error
    if isinstance(value, dict):
        value = value.get("documents")
    if not isinstance(value, list) or not value:
        raise InputError(
            f"{str(path)!r} holds no documents; expected a list of objects with text and clusters."
        )
    return [_document(one, f"{name}, document {number}") for number, one in enumerate(value)]


def _document(value: Any, where: str) -> Parsed:
    if not isinstance(value, dict) or not _KEYS.issuperset(value) or "text" not in value:
        got = sorted(map(str, value)) if isinstance(value, dict) else type(value).__name__
        raise InputError(
            f"{where}: expected an object with text, clusters and perhaps name and sentences; got "
            f"{str(got)[:80]}."
        )
    text, name = value["text"], value.get("name", where)
    if not split_words(checked_text(text, f"{where}: text")):
        raise InputError(f"{where}: text is a string with a word in it.")
    checked_text(name, f"{where}: name")
    marked = _clusters(value.get("clusters", []), text, where)
    mentions = [mention for cluster in marked for mention in cluster]
    places = {place for (a, b), (c, d) in mentions for place in (a, b, c, d)}
    starts = _starts(value.get("sentences"), text, [span for span, _ in mentions], where)
    spans = split_words(text, cuts=[*places, *starts])
    sentences = tuple(bisect_right(starts, start) - 1 for start, _ in spans)
    kept = sorted(set(sentences))
    sentences = tuple(kept.index(sentence) for sentence in sentences)
    clusters = (_words(cluster, text, spans, sentences, where) for cluster in marked)
    return Parsed(
        text=text,
        spans=spans,
        sentences=sentences,
        heads=(-1,) * len(spans),
        relations=(_UNKNOWN,) * len(spans),
        clusters=tuple(cluster for cluster in clusters if cluster),
        name=name,
    )


_Span = tuple[int, int]


def _clusters(value: Any, text: str, where: str) -> list[list[tuple[_Span, _Span]]]:
    """Every mention's span and the span of its head (or itself), by cluster."""
    if not isinstance(value, list) or not all(isinstance(cluster, list) for cluster in value):
        raise InputError(f"{where}: clusters is a list of lists of mentions.")
    return [[_mention(mention, text, where) for mention in cluster] for cluster in value]


def _mention(value: Any, text: str, where: str) -> tuple[_Span, _Span]:
    head = None
    if isinstance(value, dict):
        if not {"start", "end"} <= set(value) <= {"start", "end", "head"}:
            raise InputError(f"{where}: a mention has start, end and perhaps head.")
        head, value = value.get("head"), [value["start"], value["end"]]
    span = _span(value, text, where)
    if head is None:
        return span, span
    inner = _span(head, text, where)
    if not span[0] <= inner[0] < inner[1] <= span[1]:
        raise InputError(f"{where}: the head {list(inner)} lies outside its mention {list(span)}.")
    return span, inner


def _span(value: Any, text: str, where: str) -> _Span:
    whole = isinstance(value, list) and len(value) == 2 and all(type(x) is int for x in value)
    if not whole or not 0 <= value[0] < value[1] <= len(text):
        raise InputError(
            f"{where}: a span is [start, end) within the {len(text)} characters of the text; got "
            f"{str(value)[:60]}."
        )
    if not split_words(text[value[0] : value[1]]):
        raise InputError(f"{where}: the span {value} holds no word.")
    return value[0], value[1]


def _starts(value: Any, text: str, mentions: list[_Span], where: str) -> tuple[int, ...]:
    if value is None:
        return split_sentences(text, kept=mentions)
    whole = isinstance(value, list) and bool(value) and all(type(x) is int for x in value)
    rising = whole and sorted(set(value)) == value
    if not rising or value[0] != 0 or value[-1] >= len(text):
        raise InputError(
            f"{where}: sentences are the places where they start, rising from 0, within the text; "
            f"got {str(value)[:60]}."
        )
    for start, end in mentions:
        if any(start < place < end for place in value):
            raise InputError(
                f"{where}: the mention {[start, end]} runs over the end of a sentence."
            )
    return tuple(value)


def _words(
    cluster: list[tuple[_Span, _Span]],
    text: str,
    spans: tuple[_Span, ...],
    sentences: tuple[int, ...],
    where: str,
) -> tuple[Mention, ...]:
    """The mentions of a cluster by their words within their sentence."""
    found = set()
    for span, head in cluster:
        inside = [w for w, (a, b) in enumerate(spans) if a >= span[0] and b <= span[1]]
        heading = [w for w in inside if spans[w][0] >= head[0] and spans[w][1] <= head[1]]
        letters = [w for w in heading if text[spans[w][0]].isalnum()] or heading
        sentence = sentences[inside[0]]
        first = sentences.index(sentence)
        if sentences[inside[-1]] != sentence:
            raise InputError(f"{where}: the mention {list(span)} runs over the end of a sentence.")
        ends = (inside[0] - first, inside[-1] + 1 - first)
        found.add(Mention(sentence, *ends, letters[-1] - first))
    return tuple(sorted(found))
