"""Kinds of images and sounds: planted heads get their labels, and only these."""

import numpy as np
import pytest
import torch

import headatlas as ha
from headatlas.circuits.grid_labels import neighbour_labels
from headatlas.interp.attach import Edit, attach
from headatlas.interp.errors import InputError
from headatlas.interp.signal_prompts import signal_prompts

from ..interp.signal_models import build, signals

SIZE = {"image_size": 48, "hidden_size": 160}  # heads wide enough for a number per token


@pytest.fixture(scope="module")
def vit():
    return build("vit", **SIZE)


def above(one, other):
    return one[0] >= 0 and other[0] >= 0 and (other[0], other[1]) == (one[0] - 1, one[1])


PLANTED = {
    (0, 0): ("grid_neighbour", above),
    (0, 1): ("grid_row", lambda a, b: a[0] == b[0] >= 0 and a[1] != b[1]),
    (0, 2): ("grid_column", lambda a, b: a[1] == b[1] >= 0 and a[0] != b[0]),
    (0, 3): ("outside_grid", lambda _, b: b[0] < 0),
    (1, 0): (
        "grid_surround", lambda a, b: min(a[0], b[0]) >= 0 and max(abs(a - b)) == 1
    ),
    (1, 1): ("current_token", lambda a, b: np.array_equal(a, b)),
}  # fmt: skip


def plant(cells):
    """Edits of q and k with which heads attend evenly to the tokens that match."""
    n = len(cells)
    wanted = {
        address: torch.tensor([[float(match(a, b)) for b in cells] for a in cells])
        for address, (_, match) in PLANTED.items()
    }

    def change(own):
        def edit(call, value):
            changed = value.clone()
            for (layer, head), matrix in wanted.items():
                if layer == call.site.layer:
                    changed[:, head] = 0
                    changed[:, head, :, :n] = own(matrix)
            return changed

        return edit

    logit = 30 * 40**0.5
    return [
        Edit("q", change(lambda matrix: logit * matrix)),
        Edit("k", change(lambda matrix: torch.eye(n))),
    ]


def test_planted_heads_get_their_labels(vit, tmp_path):
    images = torch.randn(16, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    with attach(vit, edits=plant(ha.token_cells(vit, images))):
        atlas = ha.classify(vit, inputs=images)
    rows = atlas.rows.set_index(["layer", "head", "kind"]).sort_index()
    for (layer, head), (kind, _) in PLANTED.items():
        row = rows.loc[layer, head, kind]
        assert row["grade"] == "strong"
        # a patch at the edge has no patch above it, and looks everywhere; it is not scored
        assert row["score"] == pytest.approx(1, abs=1e-5)
    assert set(atlas.heads("grid_neighbour", grade="strong")) == {atlas.heads("grid_neighbour")[0]}
    assert rows.loc[0, 0, "grid_neighbour"]["details"]["variant"] == "up"
    assert not rows.loc[1, 2]["grade"].isin(["strong", "weak"]).any()
    assert atlas.settings["signals"] == {
        "origin": "given", "shape": [16, 3, 48, 48], "grid": [6, 6]
    }  # fmt: skip
    for suffix in ("json", "parquet"):
        atlas.save(tmp_path / f"atlas.{suffix}")
        again = ha.HeadAtlas.load(tmp_path / f"atlas.{suffix}")
        assert again.settings == atlas.settings
        assert again.rows["score"].tolist() == atlas.rows["score"].tolist()
    page = tmp_path / "page.html"
    ha.explore(vit, None, images[:1], atlas=again).save(page)
    assert page.stat().st_size > 10_000


def test_what_evenly_spread_weights_give_is_the_expectation(vit):
    """On a grid of 6 × 6 behind one CLS, counted by hand."""
    rows = ha.classify(vit, prompts=16).rows
    expected = rows.drop_duplicates("kind").set_index("kind")["expected"]
    near = (4 * 3 + 16 * 5 + 16 * 8) / 36
    for kind, mass in {
        "current_token": 1 / 37, "grid_neighbour": 1 / 37, "grid_surround": near / 37,
        "grid_row": 5 / 37, "grid_column": 5 / 37, "outside_grid": 1 / 37,
    }.items():  # fmt: skip
        assert expected[kind] == pytest.approx(mass), kind


def test_a_sequence_has_the_kinds_of_sequences():
    atlas = ha.classify(build("whisper").get_encoder(), prompts=16)
    assert atlas.kinds == ("previous_token", "offset", "first_position", "current_token")
    assert atlas.settings["signals"]["origin"] == "made noise"
    assert atlas.settings["signals"]["grid"] is None


def test_images_without_a_grid_are_told_of(monkeypatch, caplog, vit):
    """Their tokens are scored as a sequence, and somebody may not want that."""
    none = np.full((37, 2), -1)
    monkeypatch.setattr("headatlas.interp.signal_prompts.token_cells", lambda *_: none)
    assert "offset" in ha.classify(vit, prompts=16).kinds
    assert "the images' tokens form no grid" in caplog.text


def test_without_tokens_outside_the_kind_is_left_out():
    assert "outside_grid" not in ha.classify(build("pooling"), prompts=16).kinds


def test_a_kind_of_ones_own(vit):
    def corner(prompts):
        inside = prompts.marks["row"] >= 0
        first = inside & (prompts.marks["row"] + prompts.marks["column"] == 0)
        return {"": (ha.Labels(np.where(inside, 0, -1), np.where(first, 0, -2)),)}

    kind = ha.Kind("corner", "Mean weight on the patch at the top left.", corner)
    rows = ha.classify(vit, kinds=[kind, "grid_row"], prompts=16).rows
    assert set(rows["kind"]) == {"corner", "grid_row"}
    assert rows.set_index("kind").loc["corner", "expected"].iloc[0] == pytest.approx(1 / 37)


def test_refusals(vit, tiny):
    encoder = build("whisper").get_encoder()
    for run, why in (
        (lambda: ha.classify(vit, kinds="induction"), "induction is about the tokens of a text"),
        (lambda: ha.classify(vit, prompts="auto"), "whole number of at least 16; got 'auto'"),
        (lambda: ha.classify(vit, seq_len=64), "seq_len would go unread"),
        (lambda: ha.classify(vit, null_draws=4), "null_draws would go unread"),
        (lambda: ha.classify(vit, inputs=torch.randn(3, 3, 48, 48)), "got 3"),
        (lambda: ha.classify(vit, inputs=[1]), "Got list"),
        (lambda: ha.classify(vit, torch.randn(16, 3, 48, 48)), "Pass images or sounds as inputs="),
        (lambda: ha.classify(build("whisper")), "several stacks"),
        (lambda: ha.classify(encoder, kinds="grid_row"), "form no grid"),
        (lambda: ha.classify(encoder, kinds="nonsense"), "unknown kind nonsense"),
        (lambda: ha.classify(tiny("llama"), kinds="grid_row"), "about images or sounds"),
        (
            lambda: ha.classify(tiny("llama"), inputs=signals("vit")),
            "inputs are images or sounds, which the model does not read",
        ),
    ):
        with pytest.raises(InputError, match=why):
            run()


def test_prompts_of_signals(vit):
    prompts = signal_prompts(vit, n=16)
    assert prompts.ids.shape == (16, 37)
    assert prompts.signal.shape == (16, 3, 48, 48)
    part = prompts.select(slice(3, 5))
    assert np.array_equal(part.signal, prompts.signal[3:5])
    assert not prompts.read_only().signal.flags.writeable
    assert set(neighbour_labels(prompts)) >= {"up", "down_right"}
    again = signal_prompts(vit, n=16)
    assert np.array_equal(prompts.signal, again.signal)
