"""What is refused before anything runs: taken names, and documents that would not grow."""

from dataclasses import replace

import pytest

from headatlas.circuits.asked import ask, check_names
from headatlas.circuits.atlas import HeadAtlas
from headatlas.circuits.battery import Battery
from headatlas.circuits.causal.testable import chosen_kinds
from headatlas.circuits.kinds import KINDS, Kind
from headatlas.circuits.words.coreference import COREFERENCE
from headatlas.circuits.words.kind import WordKind
from headatlas.circuits.words.syntax import syntactic_kind
from headatlas.interp.errors import InputError

LABELS = KINDS["offset"].labels


@pytest.mark.parametrize(
    "kind",
    [
        Kind("induction", "Mine.", LABELS),
        Kind("coreference", "Mine.", LABELS),
        Kind("syntactic", "Mine.", LABELS),
        WordKind("induction", "Mine.", lambda _: []),
        WordKind("coreference", "Mine.", lambda _: []),
        WordKind("syntactic.obj.to_head", "Mine.", lambda _: []),
        WordKind("syntactic.obj", "Mine.", lambda _: []),
        replace(syntactic_kind("obj", "to_head"), name="syntactic.obj.to_dependent"),
    ],
)
def test_a_kind_under_the_name_of_another_is_refused(kind):
    """Whatever reads the atlas later looks kinds up by name, and would take it for the other."""
    with pytest.raises(InputError, match=f"'{kind.name}' belongs to another kind.*such as 'my_"):
        ask([kind], Battery())
    with pytest.raises(InputError, match="belongs to another kind"):
        chosen_kinds([kind], HeadAtlas.__new__(HeadAtlas))


def test_built_in_kinds_may_be_given_as_values():
    check_names(
        [KINDS["induction"], COREFERENCE, syntactic_kind("obj", "to_head"), "nonsense",
         Kind("mine", "Mine.", LABELS), WordKind("mine.too", "Mine.", lambda _: [])]
    )  # fmt: skip


def test_growing_documents_are_refused_where_none_would_grow():
    with pytest.raises(InputError, match=r"'auto' adds documents.*kinds on tokens alone"):
        ask("coreference", Battery("auto"))
    assert ask("coreference, induction", Battery("auto")).words == (COREFERENCE,)
