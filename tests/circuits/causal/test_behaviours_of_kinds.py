"""Every registered kind has a behaviour that its own prompts can measure."""

import pytest

import headatlas as ha
from headatlas.circuits.behaviour import Downstream, behaviour_of
from headatlas.circuits.causal.documents import documents
from headatlas.circuits.kinds import KINDS


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if not kind.of_signals])
def test_its_documents_hold_rows_to_measure(name):
    behaviour = behaviour_of(KINDS[name])
    prompts = documents(*ha.load("tiny"), behaviour.prompts)
    if not isinstance(behaviour, Downstream):
        assert behaviour.marked(prompts).any()
