"""What a trace says: directions in words, masses within bounds, heads that stand too late."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

from headatlas.circuits.atlas import HeadAtlas
from headatlas.circuits.causal.chain import LINKS, InductionTrace
from headatlas.circuits.causal.command import _show
from headatlas.circuits.causal.trace_rows import COLUMNS, best_chain, feeds, split_roles, verdicts
from headatlas.interp.errors import InputError
from headatlas.interp.heads import HeadId

FIRST, LAST, LATE = HeadId("", 0, 0), HeadId("", 1, 0), HeadId("", 2, 1)


def link(head, name, value, low=np.nan, high=np.nan, *, target="", holds=None):
    values = (head.site, head.layer, head.head, name, target, value, low, high, holds)
    return dict(zip(COLUMNS, values, strict=True))


def trace(*, frozen=(-0.9, -1.2, 0.1), mass=(0.97, 0.9, 1.04), keys=(0.9, 0.7, 1.1)):
    rows = pd.DataFrame(
        [
            link(FIRST, "previous_mass", 0.99),
            link(FIRST, "k_composition", 0.25, target="L1H0"),
            link(FIRST, "mass", 0.9, 0.8, 0.95, target="L1H0", holds=True),
            link(FIRST, "mass_through_keys", *keys, target="L1H0", holds=True),
            link(FIRST, "second_copy_loss", 2.0, 1.5, 2.5, holds=True),
            link(FIRST, "second_copy_loss_frozen", *frozen, holds=False),
            link(LAST, "induction_mass", *mass),
            link(LAST, "copied_logit", -0.5, -1.0, 0.2, holds=False),
            link(LAST, "second_copy_loss", 1.0, 0.5, 1.5, holds=True),
        ],
        columns=COLUMNS,
    )
    heads = pd.DataFrame(
        [
            ["", 0, 0, "previous_token", "strong", "pattern + causal", "L1H0", *keys],
            ["", 1, 0, "induction", "strong", "pattern + causal", "", 1.0, 0.5, 1.5],
        ],
        columns=[
            "site", "layer", "head", "role", "grade", "evidence", "target", "value", "low", "high",
        ],
    )  # fmt: skip
    return InductionTrace(rows, heads, (FIRST, LAST), (), {"margin": 0.05}, (LATE,))


def test_a_negative_rise_is_a_fall():
    text = str(trace())
    assert (
        "without L0H0 it rises by 2.000 [1.500, 2.500] nats, with all patterns held it falls "
        in text
    )
    assert "it falls by 0.900 [-0.100, 1.200]." in text
    assert "the copied token's logit rises by 0.500 [-0.200, 1.000] and the loss" in text
    assert "by -" not in text
    assert "with all patterns held by 0.100 [0.000, 0.200]." in str(trace(frozen=(0.1, 0.0, 0.2)))
    assert "falls by 0.900 [0.800, 0.950], rises by 0.100 [0.000, 0.200] through its keys" in str(
        trace(keys=(-0.1, -0.2, 0.0))
    )


def test_a_mass_is_not_printed_above_one_and_kept_as_computed(tmp_path):
    found = trace()
    shown = found.table().set_index(["address", "link"])
    assert shown.loc[("L1H0", "induction_mass"), "high"] == 1
    assert shown.loc[("L0H0", "mass_through_keys"), "high"] == 1
    assert shown.loc[("L1H0", "second_copy_loss"), "high"] == 1.5
    assert np.isnan(shown.loc[("L0H0", "previous_mass"), "high"])
    assert found.tested()["high"].tolist() == [1, 1.5]
    assert "by 0.900 [0.700, 1.000] through its keys" in str(found)
    assert "1.04" not in found._repr_html_()
    assert found.value("induction_mass", "L1H0")["high"] == 1.04
    assert found.heads["high"].tolist() == [1.1, 1.5]
    content = json.loads(found.save(tmp_path / "a.json").read_text())
    assert max(row["high"] or 0 for row in content["rows"] if "mass" in row["link"]) == 1.1


def test_the_terminal_shows_links_in_words(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    _show(trace(), "m")
    shown = capsys.readouterr().out
    for name in ("mass_through_keys", "second_copy_loss_frozen", "induction_mass"):
        assert name not in shown
        assert LINKS[name] in shown
    assert "1.04" not in shown
    assert "1.100" not in shown


def test_a_head_that_stands_too_late_is_no_part_of_the_circuit(tmp_path):
    found = trace()
    assert (
        "Not tested as previous-token heads, since no induction head stands after them: L2H1."
        in str(found)
    )
    assert "1 not tested as previous_token" in repr(found)
    with pytest.raises(InputError, match="L2H1 was not tested as a previous-token head: no ind"):
        found.evidence("L2H1")
    with pytest.raises(InputError, match="neither previous_token nor induction"):
        found.evidence("L2H0")
    assert json.loads(found.save(tmp_path / "a.json").read_text())["untested"] == ["L2H1"]


def test_a_head_untested_in_one_role_has_the_evidence_of_the_other():
    """The last induction head may look at the previous token too; as that it feeds none."""
    both = dataclasses.replace(trace(), untested=(LAST, LATE))
    assert both.evidence("L1H0") == "pattern + causal"
    assert "1 induction pattern + causal, 2 not tested as previous_token" in repr(both)


def graded(**heads):
    """An atlas of strong heads, with as much of it as roles and verdicts read."""
    rows = [
        {
            "site": head.site, "layer": head.layer, "head": head.head, "kind": kind,
            "grade": "strong", "excess": 0.5,
        }
        for kind, own in heads.items()
        for head in own
    ]  # fmt: skip
    return HeadAtlas(pd.DataFrame(rows), {}, {}, {})


def test_roles_are_split_by_what_a_head_can_reach():
    other = HeadId("enc", 0, 0)
    atlas = graded(previous_token=[LATE, FIRST, LAST, other], induction=[LAST])
    roles, untested = split_roles(atlas)
    assert roles == {"previous_token": (FIRST,), "induction": (LAST,)}
    assert untested == (LAST, LATE, other)  # of the same layer, a later one, another stack
    assert not feeds(other, LAST)


def test_heads_of_two_stacks_do_not_share_their_evidence():
    """Layer and head are the same; in one stack alone the first feeds the second."""
    stacks = ("dec", "enc")
    first, last = ([HeadId(stack, layer, 0) for stack in stacks] for layer in (0, 1))
    rows = pd.DataFrame(
        [
            link(one, name, value, target=target, holds=value > 0.5)
            for stack, value in zip(stacks, (0.1, 0.9), strict=True)
            for one, name, target in (
                (HeadId(stack, 0, 0), "mass_through_keys", f"{stack}.L1H0"),
                (HeadId(stack, 1, 0), "second_copy_loss", ""),
            )
        ]
    )
    roles = {"previous_token": tuple(first), "induction": tuple(last)}
    atlas = graded(previous_token=first, induction=last)
    heads = verdicts(rows, roles, atlas)
    wanted = {"dec": "pattern only", "enc": "pattern + causal"}
    assert heads["evidence"].tolist() == [wanted[site] for site in heads["site"]]
    found = InductionTrace(rows, heads, best_chain(rows))
    assert found.chain == (HeadId("enc", 0, 0), HeadId("enc", 1, 0))
    for head in ("L0H0", "L1H0"):
        assert {stack: found.evidence(f"{stack}.{head}") for stack in stacks} == wanted
