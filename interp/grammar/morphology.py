"""How verbs and nouns change their form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

Form = Literal["finite", "base", "participle", "gerund"]
Tense = Literal["past", "present"]

_VOWELS = frozenset("aeiou")
_IRREGULAR_PLURALS = {
    "loaf": "loaves",
    "knife": "knives",
    "thief": "thieves",
    "hypothesis": "hypotheses",
    "witness-box": "witness-boxes",
    "fisherwoman": "fisherwomen",
    "signalwoman": "signalwomen",
    "chamois": "chamois",
    "piano": "pianos",
    "ox": "oxen",
}
_DOUBLING = frozenset({"swim", "dig", "begin", "put", "set", "sit", "run", "forget"})
_SPOKEN_CONSONANT = ("uni", "use", "eu", "one")
_BE = {"base": "be", "participle": "been", "gerund": "being"}


@dataclass(frozen=True)
class Verb:
    """A verb's five forms.

    Example:
        >>> Verb.read("try").third, Verb.read("dig/dug/dug").gerund, Verb.read("bake").past
        ('tries', 'digging', 'baked')
    """

    base: str
    third: str
    past: str
    participle: str
    gerund: str

    @classmethod
    @cache
    def read(cls, entry: str) -> Verb:
        """Read a lexicon entry: `base`, or `base/past/participle`."""
        base, *rest = entry.split("/")
        past, participle = rest if rest else (_regular_past(base),) * 2
        return cls(base, _with_s(base), past, participle, _gerund(base, past))

    def inflect(self, form: Form, tense: Tense, *, plural: bool) -> str:
        """The form asked for; number and tense matter to the finite form alone."""
        if self.base == "be":
            if form != "finite":
                return _BE[form]
            return {"past": ("was", "were"), "present": ("is", "are")}[tense][plural]
        if form != "finite":
            return {"base": self.base, "participle": self.participle, "gerund": self.gerund}[form]
        if tense == "past":
            return self.past
        return self.base if plural else self.third


BE = Verb("be", "is", "was", "been", "being")
HAVE = Verb("have", "has", "had", "had", "having")
DO = Verb("do", "does", "did", "done", "doing")


def plural_of(noun: str) -> str:
    """The plural of a noun of the lexicon.

    Example:
        >>> plural_of("knife"), plural_of("battery"), plural_of("torch")
        ('knives', 'batteries', 'torches')
    """
    return _IRREGULAR_PLURALS.get(noun) or _with_s(noun)


def article(following: str) -> str:
    """`a` or `an`, by the sound that begins the next word.

    Example:
        >>> article("hour"), article("university"), article("unstable")
        ('an', 'a', 'an')
    """
    word = following.lower()
    if word.startswith(("hour", "honest", "heir")):
        return "an"
    return "an" if word[0] in _VOWELS and not word.startswith(_SPOKEN_CONSONANT) else "a"


def verb_group(
    verb: Verb, operators: Sequence[str], *, tense: Tense, plural: bool, negated: bool = False
) -> list[tuple[str, str]]:
    """A verb with its auxiliaries, each with its relation; the verb comes last, as `root`.

    Args:
        verb: the main verb.
        operators: any of a modal verb, `perfect`, `progressive`, `passive`, in that order; `do`
            stands alone.
        tense: of the first verb.
        plural: whether the subject is.
        negated: puts `not` after the first auxiliary; there must be one.

    Example:
        >>> [word for _, word in verb_group(
        ...     Verb.read("paint"), ("perfect", "passive"), tense="past", plural=False)]
        ['had', 'been', 'painted']
    """
    chain: list[tuple[str, str]] = []
    form: Form = "finite"
    for operator in operators:
        match operator:
            case "perfect":
                chain.append(("aux", HAVE.inflect(form, tense, plural=plural)))
                form = "participle"
            case "progressive":
                chain.append(("aux", BE.inflect(form, tense, plural=plural)))
                form = "gerund"
            case "passive":
                chain.append(("aux:pass", BE.inflect(form, tense, plural=plural)))
                form = "participle"
            case "do":
                chain.append(("aux", DO.inflect(form, tense, plural=plural)))
                form = "base"
            case modal:
                chain.append(("aux", modal))
                form = "base"
    if negated:
        chain.insert(1, ("advmod", "not"))
    return [*chain, ("root", verb.inflect(form, tense, plural=plural))]


def _ends_consonant_y(word: str) -> bool:
    return word.endswith("y") and word[-2] not in _VOWELS


def _with_s(word: str) -> str:
    if _ends_consonant_y(word):
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "sh", "ch", "x", "z", "echo")) else "s")


def _regular_past(base: str) -> str:
    if _ends_consonant_y(base):
        return base[:-1] + "ied"
    return base + ("d" if base.endswith("e") else "ed")


def _gerund(base: str, past: str) -> str:
    if base in _DOUBLING or past == base + base[-1] + "ed":
        return base + base[-1] + "ing"
    if base.endswith("ie"):
        return base[:-2] + "ying"
    return (base[:-1] if base.endswith("e") and not base.endswith("ee") else base) + "ing"
