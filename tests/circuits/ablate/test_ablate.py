"""Heads removed together and one at a time: figures, files, resumption."""

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

import headatlas as ha
from headatlas.circuits.ablate.ablate import ablate_heads, ablation_sweep
from headatlas.circuits.ablate.evaluate import evaluate
from headatlas.circuits.ablate.plan import make_plan, with_an_equal
from headatlas.circuits.atlas_tables import check_table
from headatlas.interp.errors import InputError
from headatlas.interp.grammar import natural_text
from headatlas.interp.heads import HeadId
from headatlas.interp.intervene import intervene
from headatlas.interp.interventions import zero
from headatlas.interp.probes import Prompts
from headatlas.interp.texts import Documents, read_documents
from tests.circuits.ablate.conftest import SMALL, rows_of
from tests.circuits.causal.models import llama

# -- some heads together -------------------------------------------------------------------------


def test_ablated_heads_are_those_of_evaluate(tiny, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(natural_text(600, seed=2))
    found = ablate_heads(*tiny, ["L1H1", "L2KV0"], path, method="zero", **SMALL)
    assert found.heads == (HeadId("", 1, 1), HeadId("", 2, 0), HeadId("", 2, 1))
    read = read_documents(path, *tiny, n=16, seq_len=24)
    expected = evaluate(tiny[0], read, [found.heads])
    assert found.delta_loss_nats == pytest.approx(expected.delta_loss_nats[0])
    assert found.kl_nats == pytest.approx(expected.kl_nats[0])
    assert found.perplexity_ratio == pytest.approx(np.exp(found.delta_loss_nats))
    assert (
        found.delta_second_copy_nats == rows_of(found, documents="repeated")["delta_loss_nats"][0]
    )
    assert rows_of(found, documents="text")["origin"][0] == "text.txt"
    assert found.delta_second_copy_nats > found.delta_loss_nats > 0.5  # what feeds induction
    low, high = rows_of(found, documents="text")[["delta_low", "delta_high"]].iloc[0]
    assert low < found.delta_loss_nats < high


def test_without_text_the_model_writes_it_and_that_is_said(tiny):
    found = ablate_heads(*tiny, "L0H0", seed=5, **SMALL)
    assert rows_of(found, documents="text")["origin"][0] == "sampled from the model, seed 5"
    assert "sampled from the model, seed 5" in repr(found)
    assert found.settings["origin"]["text"] == "sampled from the model, seed 5"
    assert found.caveats == ()
    again = ablate_heads(*tiny, "L0H0", seed=5, **SMALL)
    pd.testing.assert_frame_equal(again.rows, found.rows)


TEXTS = ["a cat sat.", "a dog ran to the house."]


def test_texts_of_unequal_length_have_a_mean_as_far_as_two_of_them_reach(tiny):
    found = ablate_heads(*tiny, ["L1H1"], TEXTS)
    read = found.evaluations["text"]["mean"].documents
    assert len(set(read.prompts.mask.sum(1))) == 1  # the longer one is cut to the other's length
    assert "of document 1 left out (no other is as long)" in repr(found)
    sweep = ablation_sweep(*tiny, TEXTS, heads=["L1H1"], methods=["zero", "resample"])
    assert sweep.rows["delta_loss_nats"].notna().all()


def test_zero_ablation_reads_texts_of_unequal_length_to_their_end(tiny):
    found = ablate_heads(*tiny, ["L1H1"], TEXTS, method="zero")
    assert "left out" not in repr(found)
    assert len(set(found.evaluations["text"]["zero"].documents.prompts.mask.sum(1))) == 2


@pytest.mark.parametrize("side", ["left", "right"])
def test_what_is_before_the_cut_stays_as_it_was(side):
    lengths = np.array([[2], [7], [4], [3]])
    column = np.arange(7)
    mask = column < lengths if side == "right" else column >= 7 - lengths
    ids = np.where(mask, np.arange(28).reshape(4, 7), 0)
    text = Documents(Prompts("text", ids, mask, bos=False), "made")
    cut = with_an_equal(text)
    assert cut.prompts.mask.sum(1).tolist() == [2, 4, 4, 3]
    for was, own, now, kept in zip(ids, mask, cut.prompts.ids, cut.prompts.mask, strict=True):
        assert now[kept].tolist() == was[own][: kept.sum()].tolist()
    assert with_an_equal(cut) is cut


def test_few_texts_have_figures_and_no_interval(tiny):
    found = ablate_heads(*tiny, ["L1H1"], TEXTS, method="zero")
    assert rows_of(found, documents="text")["delta_low"].isna().all()
    assert rows_of(found, documents="repeated")["delta_low"].notna().all()
    assert "2 documents of text: no interval" in found.caveats[0]
    assert found.caveats[0] in repr(found)


def test_documents_are_read_whole_whatever_is_asked(tiny):
    read = read_documents(natural_text(600, seed=2).split(". "), *tiny, n=20, seq_len=12)
    found = ablate_heads(*tiny, ["L1H1"], read, method="zero", prompts=16, seq_len=24)
    assert found.evaluations["text"]["zero"].documents is read
    assert found.evaluations["repeated"]["zero"].loss.shape == (1, 16)


def test_settings_say_nothing_that_reads_as_resumed(swept, tiny):
    found = ablate_heads(*tiny, ["L1H1"], **SMALL)
    for settings in (found.settings, swept.settings):
        assert "resumed" not in settings
        assert set(settings) >= {"methods", "prompts", "seq_len", "origin", "bos", "groups"}


def test_documents_one_by_one(tiny):
    found = ablate_heads(*tiny, ["L1H1"], **SMALL)
    single = found.per_document()
    text = single.loc[single["documents"] == "text"]
    pooled = (text["n"] * text["delta_loss_nats"]).sum() / text["n"].sum()
    assert pooled == pytest.approx(found.delta_loss_nats)
    assert len(single) == 32


@pytest.mark.parametrize("suffix", [".json", ".csv", ".parquet"])
@pytest.mark.parametrize("what", ["heads", "sweep"])
def test_files(tmp_path, swept, suffix, what):
    found = swept
    if what == "heads":
        found = ablate_heads(
            llama(), None, ["L2H2", "L1H1"], torch.arange(1, 49).reshape(2, 24), **SMALL
        )
    path = found.save(tmp_path / f"out{suffix}")
    if suffix == ".json":
        content = json.loads(path.read_text())
        rows = pd.DataFrame(content["rows"])
        method = "mean"
        loss = content["per_document"]["text"][method]["loss_nats"]
        np.testing.assert_allclose(loss, found.evaluations["text"][method].loss)
        assert content["settings"] == found.settings
        assert content["summary"] == repr(found)
    elif suffix == ".csv":
        rows = pd.read_csv(path, keep_default_na=False, na_values=[""])
        rows = rows.assign(**({"site": ""} if "site" in rows else {}))
    else:
        rows = pd.read_parquet(path)
        meta = json.loads(pq.read_schema(path).metadata[b"headatlas"])
        assert meta["settings"] == found.settings
    pd.testing.assert_frame_equal(rows, found.rows, check_dtype=False)
    check_table("ablation", found.rows)  # an atlas can carry it
    if what == "heads":
        assert rows.columns[0] == "heads"
        assert rows["heads"].tolist() == ["L1H1 L2H2"] * 2


# -- one head after the other --------------------------------------------------------------------


def test_a_sweep_is_every_head_by_itself(swept):
    model = llama()
    assert swept.rows[["site", "layer", "head"]].drop_duplicates().shape == (12, 3)
    assert len(swept.rows) == 12 * 2 * 2
    for method in ("mean", "zero"):
        one = ablate_heads(model, None, "L1H2", method=method, **SMALL)
        for documents in ("text", "repeated"):
            own = rows_of(swept, layer=1, head=2, method=method, documents=documents)
            other = rows_of(one, documents=documents)
            for name in ("base_loss_nats", "delta_loss_nats", "perplexity_ratio", "kl_nats"):
                assert own[name][0] == pytest.approx(other[name][0], abs=5e-5)
            assert own["delta_low"][0] <= other["delta_low"][0] + 1e-6  # all heads at once


def test_a_table_has_both_documents_side_by_side(swept):
    table = swept.table(method="zero", top=3)
    own = rows_of(swept, method="zero", documents="text")
    best = own.loc[own["delta_loss_nats"].idxmax()]
    assert table["head"][0] == f"L{best['layer']}H{best['head']}"
    other = rows_of(
        swept, method="zero", documents="repeated", layer=best["layer"], head=best["head"]
    )
    assert table["second_copy_delta_loss_nats"][0] == other["delta_loss_nats"][0]
    assert table["delta_loss_nats"].is_monotonic_decreasing
    assert len(table) == 3
    with pytest.raises(InputError, match="removed by mean, zero; got 'resample'"):
        swept.table(method="resample")


def test_single_documents_of_a_sweep(swept):
    single = swept.per_document()
    assert len(single) == 12 * 2 * (16 + 16)
    own = single.query("head == 'L2H3' and method == 'zero' and documents == 'text'")
    pooled = (own["n"] * own["kl_nats"]).sum() / own["n"].sum()
    expected = rows_of(swept, layer=2, head=3, method="zero", documents="text")["kl_nats"][0]
    assert pooled == pytest.approx(expected)


@pytest.mark.parametrize("stop", [1, 4])
def test_a_sweep_that_was_stopped_goes_on_to_the_same_numbers(tmp_path, swept, stop):
    path, told = tmp_path / "kept.safetensors", []

    def interrupt(*progress):
        told.append(progress)
        if len(told) == stop:
            raise KeyboardInterrupt

    options = {"methods": ["mean", "zero"], "checkpoint": path, **SMALL}
    with pytest.raises(KeyboardInterrupt):
        ablation_sweep(llama(), None, progress=interrupt, **options)
    done = []
    found = ablation_sweep(llama(), None, progress=lambda *one: done.append(one), **options)
    pd.testing.assert_frame_equal(found.rows, swept.rows)
    assert done[-1] == ("ablate random", 12, 12)
    files = sorted(one.name for one in tmp_path.iterdir())
    assert files == ["kept-repeated.safetensors", "kept-text.safetensors"]
    with pytest.raises(InputError, match="is of another sweep"):
        ablation_sweep(llama(), None, **{**options, "seed": 1})
    with pytest.raises(InputError, match="is of another model"):
        ablation_sweep(llama(seed=3), None, ids(), **options)


def ids():
    return torch.randint(1, 60, (16, 24), generator=torch.Generator().manual_seed(0))


# -- what is refused -----------------------------------------------------------------------------


def test_bad_requests(tiny, tmp_path):
    encoder = BertForMaskedLM(
        BertConfig(
            vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=24,
        )
    ).eval()  # fmt: skip
    for run in (lambda: ablate_heads(encoder, None, "L0H0"), lambda: ablation_sweep(encoder, None)):
        with pytest.raises(InputError, match="is an encoder"):
            run()
    with pytest.raises(InputError, match="no head L7H0"):
        ablate_heads(*tiny, ["L7H0"])
    with pytest.raises(InputError, match="L1H1 is named twice"):
        ablate_heads(*tiny, ["L1H1", "L1KV0"])
    with pytest.raises(InputError, match="no head is named"):
        ablate_heads(*tiny, [])
    with pytest.raises(InputError, match="there is a single one"):
        ablate_heads(*tiny, ["L1H1"], ["a cat sat."])
    with pytest.raises(InputError, match="ways to remove heads, each once"):
        ablation_sweep(*tiny, methods=["mean", "mean"])
    with pytest.raises(InputError, match=r"is a \.safetensors file"):
        ablation_sweep(*tiny, checkpoint=tmp_path / "kept.json")
    edited = ha.attach(tiny[0], edits=[ha.Edit("z", lambda _call, z: z)])
    with pytest.raises(InputError, match="the model is being edited"), edited:
        ablation_sweep(*tiny, checkpoint=tmp_path / "kept.safetensors")
    with pytest.raises(InputError, match="no known format"):
        ablate_heads(*tiny, ["L1H1"], **SMALL).save(tmp_path / "out.txt")


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (2, 0, "prompts is a whole number"),
        (3, 1, "seq_len is a whole number"),
        (3, 2.5, "seq_len is a whole number"),
        (5, 1.0, "level is a number between"),
        (5, "much", "level is a number between"),
        (6, -1, "seed is a whole number"),
    ],
)
def test_bad_numbers(tiny, place, value, message):
    given = [tiny[0], "mean", 16, 24, None, 0.95, 0]
    given[place] = value
    with pytest.raises(InputError, match=message):
        make_plan(*given)


def test_a_model_that_is_edited_meanwhile_is_measured_and_that_is_said(tiny):
    with intervene(tiny[0], [zero(["L1H1"])]):
        found = ablate_heads(*tiny, ["L0H0"], method="zero", **SMALL)
    assert "the whole model is the model as it was edited meanwhile." in found.caveats
    plain = ablate_heads(*tiny, ["L0H0"], method="zero", **SMALL)
    assert plain.evaluations["repeated"]["zero"].base_loss_nats < (
        found.evaluations["repeated"]["zero"].base_loss_nats
    )


def test_heads_in_one_string_are_refused_with_a_hint(tiny):
    with pytest.raises(InputError, match=r"Several are passed as a list, \['L18H6', 'L17H3'\]"):
        ablate_heads(*tiny, "L1H1,L2H2")
