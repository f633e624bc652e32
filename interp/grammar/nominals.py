"""Noun phrases: who is spoken of, and by a name, a noun or a pronoun."""

from __future__ import annotations

import random
from typing import Literal

from . import lexicon
from .morphology import article, plural_of
from .tree import PRONOUNS, Entity, Gender, Node

Case = Literal["subject", "object"]


class Discourse:
    """The people and things of one document, and how lately each was mentioned.

    A pronoun is licensed only for the entity mentioned last among all those that would take the
    same pronoun, so that it can always be resolved.
    """

    def __init__(self, rng: random.Random, topic: lexicon.Topic) -> None:
        self.rng, self.topic = rng, topic
        self._taken: set[str] = set()
        self._recent: list[tuple[int, Entity]] = []
        self.sentence = 0
        self.people = [self._person() for _ in range(rng.choice((2, 3, 3, 4)))]
        self.things = [self._thing() for _ in range(rng.choice((3, 4, 5)))]

    def _person(self) -> Entity:
        rng = self.rng
        role = self._fresh(self.topic.roles)
        if rng.random() < 0.2:
            return Entity(plural_of(role), "p", True)
        gender: Gender = "f" if rng.random() < 0.5 else "m"
        if lexicon.ROLE_GENDER.get(role, gender) != gender:
            gender = "m" if gender == "f" else "f"
        if rng.random() < 0.6:
            name = [self._fresh(lexicon.GIRLS if gender == "f" else lexicon.BOYS)]
            if rng.random() < 0.3:
                name.append(self._fresh(lexicon.SURNAMES))
            return Entity(role, gender, True, tuple(name))
        return Entity(role, gender, True)

    def _thing(self) -> Entity:
        noun = self._fresh(self.topic.things)
        if self.rng.random() < 0.25:
            return Entity(plural_of(noun), "p", False)
        return Entity(noun, "n", False)

    def _fresh(self, words: tuple[str, ...]) -> str:
        """A word not used in this document for anything else."""
        word = self.rng.choice([word for word in words if word not in self._taken])
        self._taken.add(word)
        return word

    def unused_things(self) -> list[str]:
        """Nouns of the topic that name no entity of the document so far."""
        return [noun for noun in self.topic.things if noun not in self._taken]

    def person(self, *, other_than: tuple[Entity, ...] = ()) -> Entity:
        """One of the document's people, the first two more often than the rest."""
        people = [entity for entity in self.people if entity not in other_than]
        return self.rng.choices(people, [4, 3, 2, 1][: len(people)])[0]

    def thing(self, *, other_than: tuple[Entity, ...] = ()) -> Entity:
        """A thing: one of the document's own, or now and then a new one."""
        if len(self.unused_things()) > 4 and self.rng.random() < 0.25:
            self.things.append(self._thing())
            return self.things[-1]
        return self.rng.choice([entity for entity in self.things if entity not in other_than])

    def touch(self, entity: Entity) -> None:
        """Note that the text has just mentioned an entity."""
        entity.known = True
        self._recent = [pair for pair in self._recent if pair[1] is not entity]
        self._recent.append((self.sentence, entity))

    def pronoun_resolves(self, entity: Entity) -> bool:
        """Whether a pronoun would point to this entity and no other."""
        rivals = [pair for pair in self._recent if pair[1].gender == entity.gender]
        return bool(rivals) and rivals[-1][1] is entity and self.sentence - rivals[-1][0] <= 2


class Nominals:
    """Writes noun phrases about the entities of a discourse, left to right as the text runs."""

    def __init__(self, discourse: Discourse) -> None:
        self.discourse, self.rng = discourse, discourse.rng

    def refer(self, entity: Entity, case: Case, *, pronoun: bool = True) -> Node:
        """A mention of an entity: first by name or a full phrase, later by anything that fits."""
        discourse, rng = self.discourse, self.rng
        if not entity.known:
            node = self._introduce(entity, apposition=case == "subject")
        elif pronoun and discourse.pronoun_resolves(entity) and rng.random() < 0.6:
            node = Node(PRONOUNS[entity.gender][case == "object"])
        elif entity.name and rng.random() < 0.7:
            node = Node(entity.name[0])
        else:
            node = Node(entity.noun).before("det", "the")
        node.entity = entity
        discourse.touch(entity)
        return node

    def _introduce(self, entity: Entity, *, apposition: bool) -> Node:
        rng = self.rng
        if entity.name:
            node = Node(entity.name[0])
            for surname in entity.name[1:]:
                node.after("flat", surname)
            return self._apposition(node, entity) if apposition and rng.random() < 0.6 else node
        node = Node(entity.noun)
        self._compound(node, entity)
        self._adjectives(node, entity)
        if entity.person or rng.random() < 0.7:
            return self._determine(node, entity)
        return self._possessed(node, entity)

    def _apposition(self, node: Node, entity: Entity) -> Node:
        """`Anna, an old sailor,`: only before a verb, so that no other mark follows the comma."""
        noun = Node(entity.noun)
        self._adjectives(noun, entity)
        self._determine(noun, entity, definite=self.rng.random() < 0.4)
        return node.after("appos", noun.before("punct", ",")).after("punct", ",")

    def _compound(self, node: Node, entity: Entity) -> None:
        if entity.person or self.rng.random() > 0.12:
            return
        node.before("compound", self.rng.choice(self.discourse.unused_things()))

    def _adjectives(self, node: Node, entity: Entity) -> None:
        rng = self.rng
        if rng.random() > 0.45:
            return
        adjective = Node(self.adjective(entity))
        if rng.random() < 0.15:
            adjective.before("advmod", rng.choice(lexicon.DEGREES[:3]))
        elif rng.random() < 0.15:
            second = Node(self.adjective(entity))
            if second.word != adjective.word:
                adjective.after("conj", second.before("cc", "and"))
        node.before("amod", adjective)

    def adjective(self, entity: Entity) -> str:
        """An adjective that suits an entity."""
        if entity.person:
            return self.rng.choice(lexicon.PERSON_ADJECTIVES)
        return self.rng.choice((*self.discourse.topic.adjectives, *lexicon.ADJECTIVES))

    def _determine(self, node: Node, entity: Entity, *, definite: bool | None = None) -> Node:
        rng = self.rng
        if definite is None:
            definite = rng.random() < 0.35
        if definite:
            return node.before("det", "the")
        if entity.plural:
            if rng.random() < 0.4:
                return node.before("nummod", rng.choice(lexicon.NUMBERS))
            return node.before("det", rng.choice(("some", "many", "several")))
        return node.before("det", article(_first_word(node)))

    def _possessed(self, node: Node, entity: Entity) -> Node:
        owner = self.discourse.person(other_than=(entity,))
        if not owner.known:
            return self._determine(node, entity)
        if self.discourse.pronoun_resolves(owner):
            possessor = Node(PRONOUNS[owner.gender][2])
        else:
            possessor = Node(owner.name[0]) if owner.name else Node(owner.noun).before("det", "the")
            possessor.after("case", "'" if owner.plural and owner.noun.endswith("s") else "'s")
        possessor.entity = owner
        self.discourse.touch(owner)
        return node.before("nmod:poss", possessor)

    def place(self) -> Node:
        """Where something happens, as an oblique: `on the old pier`."""
        preposition, *rest = self.rng.choice(self.discourse.topic.places).split()
        return prepositional(preposition, rest, self._place_adjective())

    def time(self) -> Node:
        """When something happens, as an oblique."""
        preposition, *rest = self.rng.choice(lexicon.TIMES).split()
        return prepositional(preposition, rest, None)

    def _place_adjective(self) -> str | None:
        return self.rng.choice(lexicon.ADJECTIVES[:5]) if self.rng.random() < 0.2 else None


def prepositional(preposition: str, rest: list[str], adjective: str | None) -> Node:
    """A noun with its preposition, article and adjective."""
    node = Node(rest[-1])
    if adjective is not None:
        node.before("amod", adjective)
    if len(rest) > 1:
        node.before("det", rest[0])
    return node.before("case", preposition)


def _first_word(node: Node) -> str:
    return _first_word(node.left[0][1]) if node.left else node.word
