"""The one call: what it accepts, refuses and leaves alone."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, T5Config, T5ForConditionalGeneration

import headatlas as ha
from headatlas.circuits.kind import Legacy
from headatlas.circuits.kinds import KINDS, Kind
from headatlas.circuits.label_vectors import Labels
from headatlas.interp.errors import InputError
from headatlas.interp.grammar import natural_text

RECORD = Path(ha.__file__).parent / "interp" / "builtin" / "tiny" / "record.json"


def test_labels_of_the_built_in_model_match_its_record():
    """Labels against the record that hand-written eager diagonals made on texts of its own."""
    record = json.loads(RECORD.read_text("utf-8"))
    atlas = ha.classify(*ha.load("tiny"), seed=0)
    on_both = ("previous_token", "first_position", "current_token")
    for kind in (*on_both, "duplicate_token", "induction"):
        mass = {
            head: min(values[kind], values[f"text_{kind}"] if kind in on_both else 1.0)
            for head, values in record["heads"].items()
        }
        strong = {str(head) for head in atlas.heads(kind, "strong")}
        assert {head for head, value in mass.items() if value > 0.5} <= strong, kind
        assert strong <= {head for head, value in mass.items() if value > 0.25}, kind
        for head in mass:  # the same quantity on other texts
            got = atlas[head][kind]["score"]
            assert got == pytest.approx(record["heads"][head][kind], abs=0.12), (kind, head)
    induction = {str(head) for head in atlas.heads("induction", "strong")}
    assert induction == set(record["lists"]["induction"])
    for head in record["lists"]["offset"]:
        best = int(record["heads"][head]["best_offset"])
        assert atlas[head]["offset"]["details"]["variant"] == f"{best:+d}"


def test_same_seed_same_atlas_other_seed_other_numbers():
    model, tokenizer = ha.load("tiny")
    one, two, other = (
        ha.classify(model, tokenizer, prompts=16, seq_len=48, seed=seed) for seed in (3, 3, 4)
    )
    assert one.rows.equals(two.rows)
    assert not one.rows["score"].equals(other.rows["score"])


def test_without_a_tokenizer_kinds_that_need_text_are_left_out():
    model, _ = ha.load("tiny")
    atlas = ha.classify(model, None, prompts=16, seq_len=48)
    assert "delimiter" not in atlas.kinds
    assert "natural" not in atlas.rows["details"][0]
    with pytest.raises(InputError, match="delimiter needs natural text and so a tokenizer"):
        ha.classify(model, None, kinds="delimiter", prompts=16, seq_len=48)


def test_users_own_kind_beside_built_in_ones():
    def two_back(prompts):
        place = prompts.position
        q = np.where(prompts.mask & (place >= 2), place - 2, -1)
        return {"": (Labels(q, np.where(prompts.mask, place, -2)),)}

    kind = Kind("two_back", "Mean weight two back.", two_back)
    atlas = ha.classify(*ha.load("tiny"), kinds=["induction", kind], prompts=16, seq_len=48)
    assert atlas.kinds == ("induction", "two_back")
    assert "two_back" not in KINDS


def test_an_encoder_scores_both_directions():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=300, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64,
    )  # fmt: skip
    atlas = ha.classify(BertModel(config).eval(), None, prompts=16, seq_len=32)
    offsets = {details["variant"] for details in atlas.rows["details"] if "variant" in details}
    assert offsets <= {f"{k:+d}" for k in (*range(-8, 0), *range(1, 9))}
    # attention of random weights is nearly even, and so nothing is found
    assert set(atlas.rows["grade"]) == {"none"}


def test_refusals():
    model, tokenizer = ha.load("tiny")
    with pytest.raises(InputError, match="longer than the model's context of 1024"):
        ha.classify(model, tokenizer, seq_len=2000)
    for settings, message in (
        ({"seq_len": 4}, "seq_len is a whole number of at least 16; got 4"),
        ({"seq_len": 0}, "seq_len is a whole number"),
        ({"prompts": 3}, "prompts is a whole number of at least 16; got 3"),
        ({"seed": -1}, "seed is a whole number"),
        ({"null_draws": -1}, "null_draws is a whole number"),
        ({"null_draws": 10**6}, "at most 1000 null draws"),
        ({"kinds": ["induction", KINDS["induction"]]}, "two kinds have the same name"),
    ):
        with pytest.raises(InputError, match=message):
            ha.classify(model, tokenizer, **settings)
    with pytest.raises(InputError, match="a text needs a tokenizer"):
        ha.classify(model, None, text="Some text.")
    with pytest.raises(InputError, match="Pass a longer or more varied text"):
        ha.classify(model, tokenizer, text=natural_text(100, seed=0), seq_len=64)
    with pytest.raises(InputError, match="unknown kind"):
        ha.classify(model, tokenizer, kinds=["inductions"])
    t5 = T5ForConditionalGeneration(
        T5Config(
            vocab_size=300, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2,
            decoder_start_token_id=0,
        )
    )  # fmt: skip
    with pytest.raises(InputError, match=r"several stacks .* model\.get_encoder"):
        ha.classify(t5.eval(), None, prompts=16, seq_len=32)


@pytest.mark.parametrize("given", ["previous_token,offset", "current_token", "own", "best"])
def test_null_draws_where_no_labels_are_permuted_are_refused(given):
    own = {"own": Kind("own", "x", KINDS["current_token"].labels)}
    best = Kind("best", "x", KINDS["offset"].labels, null="profile", candidates=True)
    kinds = {**own, "best": best}.get(given, given)
    with pytest.raises(InputError, match="null draws permute the labels of content kinds only"):
        ha.classify(*ha.load("tiny"), kinds=kinds, prompts=16, seq_len=48, null_draws=2)


def test_null_draws_without_a_tokenizer_are_of_random_tokens():
    atlas = ha.classify(ha.load("tiny")[0], None, prompts=16, seq_len=48, null_draws=1)
    assert atlas.null_check is not None
    assert set(atlas.null_check["prompts"]) == {"random", "ngrams"}


def test_a_text_that_no_kind_reads_is_refused():
    model, tokenizer = ha.load("tiny")
    text = natural_text(1200, seed=0)
    with pytest.raises(InputError, match="no kind among duplicate_token, induction is scored on"):
        ha.classify(model, tokenizer, kinds="induction,duplicate_token", text=text)
    # read for its legacy verdict alone, it is read
    legacy = Legacy("", "natural", 0.4, "x")
    kind = Kind("own", "x", KINDS["induction"].labels, prompts=("random",), legacy=legacy)
    own = ha.classify(model, tokenizer, kinds=kind, text=text, prompts=16, seq_len=32)
    assert own.settings["prompts"] == {"random": 16, "natural": 16}


@pytest.mark.parametrize("null", ["uniform", "profile"])
def test_a_kind_that_scores_no_row_is_refused(null):
    """Such as one about the 50th token, on documents of 32."""

    def fifty_back(prompts):
        place = prompts.position
        return {"": (Labels(np.where(place >= 50, place - 50, -1), place),)}

    kind = Kind("fifty_back", "Mean weight 50 back.", fifty_back, null=null)
    message = r"kind fifty_back: its own statistic scores no row of the random .* up to 32 tokens"
    with pytest.raises(InputError, match=message):
        ha.classify(*ha.load("tiny"), kinds=kind, prompts=16, seq_len=32)
    assert ha.classify(*ha.load("tiny"), kinds=kind, prompts=16, seq_len=64).n_heads == 32


def test_a_context_too_short_to_score_on_is_refused(tiny):
    model = tiny("gpt2", n_positions=10)
    for seq_len in (None, 16):
        with pytest.raises(InputError, match="context of 10 tokens is too short to score on"):
            ha.classify(model, None, kinds="offset", prompts=16, seq_len=seq_len)
    short = ha.classify(tiny("gpt2", n_positions=16), None, kinds="offset", prompts=16)
    assert short.settings["seq_len"] == {"random": 16}


def test_the_sink_metric_needs_64_tokens():
    model, tokenizer = ha.load("tiny")
    verdicts = [
        set(
            ha.classify(model, tokenizer, kinds="first_position", prompts=16, seq_len=n).rows[
                "legacy"
            ]
        )
        for n in (63, 64)
    ]
    assert verdicts == [{None}, {True, False}]


def test_a_model_attached_elsewhere_is_described_as_its_own():
    model, _ = ha.load("tiny")
    with ha.attach(model):
        atlas = ha.classify(model, None, kinds="offset", prompts=16, seq_len=32)
    assert atlas.model["implementation"] == "sdpa"
    model.set_attn_implementation("eager")
    atlas = ha.classify(model, None, kinds="offset", prompts=16, seq_len=32)
    assert atlas.model["implementation"] == "eager"


def test_what_classify_makes_can_be_saved_read_and_shown(tmp_path):
    model, tokenizer = ha.load("tiny")
    model.name_or_path = "folder\x1b[31m"
    atlas = ha.classify(model, tokenizer, prompts=16, seq_len=48, null_draws=1)
    for suffix in (".json", ".parquet"):
        loaded = ha.HeadAtlas.load(atlas.save(tmp_path / f"a{suffix}"))
        assert repr(loaded) == repr(atlas)
        assert "\x1b" not in repr(loaded)
        assert [repr(loaded[head]) for head in loaded] == [repr(atlas[head]) for head in atlas]
        assert loaded.table(grade="none").equals(atlas.table(grade="none"))


def test_training_mode_makes_no_difference():
    config = BertConfig(
        vocab_size=300, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64, hidden_dropout_prob=0.5,
        attention_probs_dropout_prob=0.5,
    )  # fmt: skip
    torch.manual_seed(0)
    model = BertModel(config)
    one, two = (
        ha.classify(mode(), None, kinds="offset", prompts=16, seq_len=32).rows
        for mode in (model.eval, model.train)
    )
    assert one["score"].equals(two["score"])
    assert model.training


def test_null_check_comes_on_request():
    atlas = ha.classify(*ha.load("tiny"), prompts=16, seq_len=48, null_draws=3)
    assert atlas.null_check is not None
    assert set(atlas.null_check["prompts"]) == {"random", "natural", "ngrams", "topics"}
    assert len(atlas.null_check) == 12
    assert ha.classify(*ha.load("tiny"), prompts=16, seq_len=48).null_check is None


def test_progress_reports_every_set():
    seen = []
    ha.classify(
        *ha.load("tiny"), prompts=16, seq_len=48, progress=lambda *report: seen.append(report)
    )
    assert {stage for stage, _, _ in seen} == {"random", "natural", "classic", "ngrams", "topics"}
    assert all(done <= total for _, done, total in seen)
    assert seen[-1][1] == seen[-1][2]


@pytest.mark.real
def test_the_real_model_has_heads_of_every_expected_kind():
    atlas = ha.classify(*ha.load("smollm2-135m"), prompts=16, seq_len=128, seed=0)
    assert atlas.n_heads == 270
    # known from whole eager patterns: L18H6 is an induction head that rests on the sink
    assert "L18H6" in {str(head) for head in atlas.heads("induction", "strong")}
    assert atlas["L18H6"]["first_position"]["score"] > 0.3
    for kind in ("previous_token", "duplicate_token", "first_position", "induction"):
        assert atlas.heads(kind, "strong"), kind
