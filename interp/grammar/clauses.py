"""Clauses: a subject, a verb with its auxiliaries, and what follows it."""

from __future__ import annotations

from typing import NamedTuple

from . import lexicon
from .morphology import BE, Tense, Verb, verb_group
from .nominals import Discourse, Nominals
from .tree import Entity, Node


class Style(NamedTuple):
    """The auxiliaries of a clause: `operators` as in `verb_group`, and whether it is negated."""

    operators: tuple[str, ...] = ()
    negated: bool = False


PLAIN = Style()


class Clauses:
    """Writes clauses about a discourse; every clause is a tree whose root is its verb."""

    def __init__(self, discourse: Discourse, tense: Tense) -> None:
        self.discourse, self.rng = discourse, discourse.rng
        self.tense: Tense = tense
        self.nominals = Nominals(discourse)

    def clause(self, *, subject: Entity | None = None, plain: bool = False) -> Node:
        """Any declarative clause without its full stop."""
        kinds = ("transitive", "intransitive", "copular", "passive", "ditransitive", "control")
        kind = self.rng.choices(kinds, [30, 16, 14, 12, 10, 10])[0]
        if kind == "passive" and subject is None:
            return self.passive()
        style = PLAIN if plain else self.style()
        subject = subject or self._subject(kind)
        node = self.nominals.refer(subject, "subject")
        self._relative(node, subject)
        if kind == "copular" or (kind == "passive" and not subject.person):
            return self._copular(node, subject)
        if not subject.person:
            kind = "intransitive"
        return self.predicate(node, subject, kind, style)

    def _subject(self, kind: str) -> Entity:
        things = {"intransitive": 0.35, "copular": 0.55}.get(kind, 0.0)
        thing = self.rng.random() < things
        return self.discourse.thing() if thing else self.discourse.person()

    def style(self) -> Style:
        """Auxiliaries and negation drawn at random."""
        rng = self.rng
        modal = rng.choice(lexicon.MODALS)
        operators = rng.choices(
            [(), (modal,), ("perfect",), ("progressive",), (modal, "perfect"), ("do",)],
            [64, 12, 8, 8, 2, 5],
        )[0]
        negated = operators == ("do",) or (bool(operators) and rng.random() < 0.15)
        return Style(operators, negated)

    def predicate(self, node: Node | None, subject: Entity, kind: str, style: Style) -> Node:
        """A verb phrase for a subject already written (None: shared with an earlier verb)."""
        verb, particle = self._verb(kind, subject)
        head = self.verb(verb, style, subject)
        if node is not None:
            self._attach_subject(head, node, "nsubj")
        if particle:
            head.after("compound:prt", particle)
        if kind == "control":
            return head.after("xcomp", self._infinitive(subject))
        if kind == "ditransitive":
            self._recipient(head, subject)
        elif kind == "transitive":
            self._object(head, subject, whole=particle is None)
        self._adverbials(head)
        return head

    def verb(self, verb: Verb, style: Style, subject: Entity) -> Node:
        """The main verb with its auxiliaries on the left."""
        *auxiliaries, (_, word) = verb_group(
            verb, style.operators, tense=self.tense, plural=subject.plural, negated=style.negated
        )
        return Node(word, left=[(relation, Node(text)) for relation, text in auxiliaries])

    def _attach_subject(self, head: Node, node: Node, relation: str) -> None:
        head.left.insert(0, (relation, node))

    def _verb(self, kind: str, subject: Entity) -> tuple[Verb, str | None]:
        rng, topic = self.rng, self.discourse.topic
        if kind == "intransitive":
            return Verb.read(
                rng.choice(topic.person_verbs if subject.person else topic.thing_verbs)
            ), None
        if kind == "ditransitive":
            return Verb.read(rng.choice(lexicon.DITRANSITIVE)), None
        if kind == "control":
            return Verb.read(rng.choice(lexicon.CONTROL)), None
        if rng.random() < 0.12:
            verb, particle = rng.choice(lexicon.PARTICLE_VERBS).split(":")
            return Verb.read(verb), particle
        return Verb.read(rng.choice(topic.transitive)), None

    def _object(self, head: Node, subject: Entity, *, whole: bool) -> None:
        """A direct object; now and then two, joined by `and`."""
        entity = self.discourse.thing()
        node = self.nominals.refer(entity, "object")
        head.after("obj", node)
        if not whole:
            return
        if self.rng.random() < 0.1:
            other = self.nominals.refer(
                self.discourse.thing(other_than=(entity,)), "object", pronoun=False
            )
            node.after("conj", other.before("cc", "and"))
        elif self.rng.random() < 0.12:
            self._modify(node, self.discourse.thing(other_than=(entity,)))
        else:
            self._relative(node, entity)

    def _modify(self, node: Node, entity: Entity) -> None:
        """`the lid of the jar`: a prepositional phrase on a noun, never on a pronoun."""
        if not node.left:
            return
        inner = self.nominals.refer(entity, "object", pronoun=False)
        node.after("nmod", inner.before("case", self.rng.choice(("of", "with", "near", "from"))))

    def _recipient(self, head: Node, subject: Entity) -> None:
        """`gave Anna the rope`, or `gave the rope to Anna`."""
        recipient = self.discourse.person(other_than=(subject,))
        thing = self.discourse.thing()
        if self.rng.random() < 0.5:
            head.after("iobj", self.nominals.refer(recipient, "object"))
            head.after("obj", self.nominals.refer(thing, "object", pronoun=False))
            return
        head.after("obj", self.nominals.refer(thing, "object"))
        head.after("obl", self.nominals.refer(recipient, "object").before("case", "to"))

    def _infinitive(self, subject: Entity) -> Node:
        rng = self.rng
        kind = rng.choice(("transitive", "transitive", "intransitive", "person"))
        if kind == "person":
            head = Node(Verb.read(rng.choice(lexicon.PERSON_TRANSITIVE)).base)
            other = self.discourse.person(other_than=(subject,))
            head.after("obj", self.nominals.refer(other, "object"))
        else:
            verb, particle = self._verb(kind, subject)
            head = Node(verb.base)
            if particle:
                head.after("compound:prt", particle)
            if kind == "transitive":
                self._object(head, subject, whole=False)
        self._adverbials(head)
        return head.before("mark", "to")

    def _adverbials(self, head: Node) -> None:
        rng = self.rng
        if rng.random() < 0.22:
            head.after("advmod", rng.choice(lexicon.ADVERBS))
        if rng.random() < 0.3:
            head.after("obl", self.nominals.place())
        elif rng.random() < 0.15:
            head.after("obl", self.nominals.time())

    def person_clause(self) -> Node:
        """A clause with a person as its object: `Peter thanked her`."""
        subject = self.discourse.person()
        node = self.nominals.refer(subject, "subject")
        head = self.verb(
            Verb.read(self.rng.choice(lexicon.PERSON_TRANSITIVE)), self.style(), subject
        )
        self._attach_subject(head, node, "nsubj")
        other = self.discourse.person(other_than=(subject,))
        head.after("obj", self.nominals.refer(other, "object"))
        self._adverbials(head)
        return head

    def passive(self) -> Node:
        """`The boat had been painted by Anna`."""
        rng = self.rng
        thing = self.discourse.thing()
        node = self.nominals.refer(thing, "subject")
        modal = rng.choice(lexicon.MODALS)
        before = rng.choices([(), ("perfect",), (modal,)], [6, 2, 2])[0]
        verb = Verb.read(rng.choice(self.discourse.topic.transitive))
        head = self.verb(verb, Style((*before, "passive"), rng.random() < 0.12), thing)
        self._attach_subject(head, node, "nsubj:pass")
        if rng.random() < 0.5:
            agent = self.nominals.refer(self.discourse.person(), "object")
            head.after("obl:agent", agent.before("case", "by"))
        self._adverbials(head)
        return head

    def _copular(self, node: Node, subject: Entity) -> Node:
        """`The rope was too short`: the adjective heads, `be` is its copula."""
        rng = self.rng
        feeling = subject.person and rng.random() < 0.6
        head = Node(rng.choice(lexicon.FEELINGS) if feeling else self.nominals.adjective(subject))
        if rng.random() < 0.35:
            head.before("advmod", rng.choice(lexicon.DEGREES))
        if rng.random() < 0.15:
            head.before("advmod", "not")
        head.before("cop", BE.inflect("finite", self.tense, plural=subject.plural))
        if rng.random() < 0.15:
            second = Node(self.nominals.adjective(subject))
            head.after("conj", second.before("cc", rng.choice(("and", "but"))))
        head.left.insert(0, ("nsubj", node))
        return head

    def _relative(self, node: Node, entity: Entity) -> None:
        """Now and then a relative clause on a noun: `the sailor who mended it`."""
        rng = self.rng
        if rng.random() > 0.14 or not any(kind == "det" for kind, _ in node.left):
            return
        if entity.person:
            head = self.predicate(None, entity, rng.choice(("transitive", "intransitive")), PLAIN)
            node.after("acl:relcl", head.before("nsubj", "who"))
        elif rng.random() < 0.6:
            agent = self.discourse.person()
            subject = self.nominals.refer(agent, "subject")
            verb = Verb.read(rng.choice(self.discourse.topic.transitive))
            head = self.verb(verb, PLAIN, agent).before("nsubj", subject)
            node.after("acl:relcl", head.before("obj", "that"))
        else:
            verb = Verb.read(rng.choice(self.discourse.topic.thing_verbs))
            head = self.verb(verb, PLAIN, entity)
            node.after("acl:relcl", head.before("nsubj", "that"))
