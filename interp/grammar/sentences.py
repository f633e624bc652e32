"""Sentences: clauses joined, asked, quoted and closed with their marks."""

from __future__ import annotations

from . import lexicon
from .clauses import PLAIN, Clauses, Style
from .morphology import BE, Verb, article
from .tree import Entity, Node

_KINDS = {
    "plain": 36,
    "person": 10,
    "fronted": 8,
    "subordinate": 10,
    "coordinate": 7,
    "verbs": 8,
    "reported": 6,
    "quoted": 7,
    "polar": 4,
    "wh": 5,
    "there": 4,
    "list": 3,
}


class Sentences:
    """Writes whole sentences of many kinds as trees."""

    def __init__(self, clauses: Clauses) -> None:
        self.clauses, self.rng = clauses, clauses.rng
        self.nominals, self.discourse = clauses.nominals, clauses.discourse

    def sentence(self) -> Node:
        """One sentence of a kind drawn at random."""
        kind = self.rng.choices(list(_KINDS), list(_KINDS.values()))[0]
        return getattr(self, f"_{kind}")()

    def _closed(self, head: Node, mark: str = ".") -> Node:
        return head.after("punct", mark)

    def _plain(self) -> Node:
        return self._closed(self.clauses.clause(), "." if self.rng.random() < 0.95 else "!")

    def _person(self) -> Node:
        return self._closed(self.clauses.person_clause())

    def _fronted(self) -> Node:
        """`In the evening, …`, `Fortunately, …`."""
        rng = self.rng
        if rng.random() < 0.5:
            relation, phrase = "advmod", Node(rng.choice(lexicon.SENTENCE_ADVERBS))
        else:
            relation = "obl"
            phrase = self.nominals.time() if rng.random() < 0.6 else self.nominals.place()
        head = self.clauses.clause().before("punct", ",").before(relation, phrase)
        return self._closed(head)

    def _subordinate(self) -> Node:
        """`When …, …`, or `… because …`."""
        mark = self.rng.choice(lexicon.SUBORDINATORS)
        if self.rng.random() < 0.5:
            adverbial = self.clauses.clause(plain=True).before("mark", mark)
            head = self.clauses.clause().before("punct", ",").before("advcl", adverbial)
        else:
            head = self.clauses.clause()
            head.after("advcl", self.clauses.clause(plain=True).before("mark", mark))
        return self._closed(head)

    def _coordinate(self) -> Node:
        head = self.clauses.clause()
        if self.rng.random() < 0.2:
            second = self.clauses.clause().before("punct", ";")
        else:
            conjunction = self.rng.choice(("and", "but", "so", "or"))
            second = self.clauses.clause().before("cc", conjunction).before("punct", ",")
        return self._closed(head.after("conj", second))

    def _verbs(self) -> Node:
        """One subject with two or three verbs."""
        subject = self.discourse.person()
        node = self.nominals.refer(subject, "subject")
        kinds = ("transitive", "transitive", "intransitive", "ditransitive")
        head = self.clauses.predicate(node, subject, self.rng.choice(kinds), PLAIN)
        if self.rng.random() < 0.25:
            middle = self.clauses.predicate(None, subject, self.rng.choice(kinds), PLAIN)
            head.after("conj", middle.before("punct", ","))
        last = self.clauses.predicate(None, subject, self.rng.choice(kinds), PLAIN)
        return self._closed(head.after("conj", last.before("cc", "and")))

    def _reported(self) -> Node:
        subject = self.discourse.person()
        node = self.nominals.refer(subject, "subject")
        verb = Verb.read(self.rng.choice(lexicon.SPEECH))
        head = self.clauses.verb(verb, PLAIN, subject).before("nsubj", node)
        content = self.clauses.clause()
        if self.rng.random() < 0.7:
            content.before("mark", "that")
        return self._closed(head.after("ccomp", content))

    def _quoted(self) -> Node:
        """`"…," said Anna.`; the quotation is the verb's complement."""
        asks = self.rng.random() < 0.3
        content = self._polar_clause() if asks else self.clauses.clause()
        content.before("punct", '"').after("punct", "?" if asks else ",").after("punct", '"')
        verb = Verb.read("ask" if asks else self.rng.choice(lexicon.QUOTING))
        speaker = self.discourse.person()
        head = self.clauses.verb(verb, PLAIN, speaker).before("ccomp", content)
        head.after("nsubj", self.nominals.refer(speaker, "object", pronoun=False))
        return self._closed(head)

    def _polar(self) -> Node:
        return self._closed(self._polar_clause(), "?")

    def _polar_clause(self) -> Node:
        """`Did Anna mend the net`, `Is the rope short`."""
        if self.rng.random() < 0.25:
            thing = self.discourse.thing()
            verb = BE.inflect("finite", self.clauses.tense, plural=thing.plural)
            head = Node("", [("nsubj", self.nominals.refer(thing, "object"))])
            head.word = self.nominals.adjective(thing)
            return head.before("cop", verb)
        subject = self.discourse.person()
        node = self.nominals.refer(subject, "subject")
        kind = self.rng.choice(("transitive", "intransitive", "ditransitive"))
        head = self.clauses.predicate(None, subject, kind, self._asking())
        head.left.insert(1, ("nsubj", node))
        return head

    def _asking(self) -> Style:
        modal = self.rng.choice(lexicon.MODALS[:4])
        return Style(self.rng.choice((("do",), ("do",), ("perfect",), (modal,))))

    def _wh(self) -> Node:
        """`Who …?`, `What did Anna …?`, `Where …?`, `Why …?`."""
        rng = self.rng
        subject = self.discourse.person()
        word = rng.choice(("who", "what", "where", "why", "when"))
        if word == "who":
            anyone = Entity("who", "n", True)
            head = self.clauses.predicate(None, anyone, "transitive", PLAIN).before("nsubj", word)
            return self._closed(head, "?")
        node = self.nominals.refer(subject, "subject")
        if word == "what":
            verb = Verb.read(rng.choice(self.discourse.topic.transitive))
            head = self.clauses.verb(verb, self._asking(), subject)
        else:
            kind = "intransitive" if word == "where" else "transitive"
            head = self.clauses.predicate(None, subject, kind, self._asking())
        head.left.insert(1, ("nsubj", node))
        return self._closed(head.before("obj" if word == "what" else "advmod", word), "?")

    def _there(self) -> Node:
        """`There was a boat near the pier.`"""
        thing = self.discourse.thing()
        if thing.known:
            return self._plain()
        node = self.nominals.refer(thing, "object")
        verb = BE.inflect("finite", self.clauses.tense, plural=thing.plural)
        head = Node(verb).before("expl", "there").after("nsubj", node)
        return self._closed(head.after("obl", self.nominals.place()))

    def _list(self) -> Node:
        """`Anna needed three things: a rope, an oar and a net.`"""
        subject = self.discourse.person()
        node = self.nominals.refer(subject, "subject")
        verb = Verb.read(self.rng.choice(self.discourse.topic.transitive))
        head = self.clauses.verb(verb, PLAIN, subject).before("nsubj", node)
        things = Node("things").before("nummod", "three")
        nouns = self.rng.sample(self.discourse.unused_things(), 3)
        first, *rest = [Node(noun).before("det", article(noun)) for noun in nouns]
        first.before("punct", ":")
        for separator, noun in zip((("punct", ","), ("cc", "and")), rest, strict=True):
            first.after("conj", noun.before(*separator))
        head.after("obj", things.after("appos", first))
        return self._closed(head)
