"""Labels under changed conditions."""

import pandas as pd
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import headatlas as ha
from headatlas.circuits import stability as room
from headatlas.circuits.grade import Rule
from headatlas.circuits.stability import stability
from headatlas.interp.errors import InputError


def table(*labelled, kind="induction", heads=3):
    """Rows as classify gives them: the heads named are strong, the others none."""
    return pd.DataFrame(
        {
            "site": "", "layer": 0, "head": range(heads), "kind": kind,
            "grade": ["strong" if head in labelled else "ambiguous" for head in range(heads)],
            "low": 0.3, "high": 0.4, "details": [{"prompts": "random"}] * heads,
        }
    )  # fmt: skip


class Atlas:
    def __init__(self, rows):
        self.rows = rows


def test_agreement_by_hand(monkeypatch):
    answers = {
        ("seed", 0): table(0, 1), ("seed", 1): table(0, 2), ("length", 64): table(0, 1),
        ("bos", False): table(), ("text", True): table(0),
    }  # fmt: skip

    def classify(_model, _tokenizer, *, kinds, seq_len, prepend_bos, seed, **_):
        if kinds[0].prompts == ("natural",):
            return Atlas(answers["text", True])
        if not prepend_bos:
            return Atlas(answers["bos", False])
        key = ("length", seq_len) if seq_len != 32 else ("seed", seed)
        return Atlas(answers[key])

    monkeypatch.setattr(room, "classify", classify)
    model, tokenizer = ha.load("tiny")
    seen = []
    found = stability(
        model, tokenizer, "induction", seq_lens=(32, 64), dtypes=(torch.float32,),
        progress=lambda *report: seen.append(report),
    )  # fmt: skip
    by_axis = found.agreement.set_index("axis")
    assert by_axis["labels"].to_dict() == pytest.approx(
        {"seed": 1 / 3, "length": 1.0, "bos": 0.0, "text": 0.5}
    )
    assert by_axis["same"].to_dict() == pytest.approx(
        {"seed": 1 / 3, "length": 1.0, "bos": 1 / 3, "text": 2 / 3}
    )
    rows = found.rows.set_index("head")
    assert rows["held_in"][0] == "reference; seed 1; 64 tokens; natural text"
    assert rows["lost_in"][0] == "no BOS"
    assert rows["held_in"][2] == "seed 1"
    assert (rows["held"][1], rows["of"][1]) == (2, 5)
    assert found.heads("induction") == []
    assert "0 of 3 labels hold" in repr(found)
    assert seen[-1] == ("stability", 5, 5)


def test_grades_on_both_sets_are_compared_with_each_other(monkeypatch):
    rows = table(kind="previous_token")
    # on random tokens all are labelled; on natural text the first alone
    grades = ["strong", "none", "ambiguous"]
    rows["details"] = [{"prompts": "random", "natural": {"grade": grade}} for grade in grades]
    monkeypatch.setattr(room, "classify", lambda *_, **__: Atlas(rows))
    model, tokenizer = ha.load("tiny")
    found = stability(
        model, tokenizer, "previous_token", seeds=(0,), seq_lens=(32,), bos=(True,),
        dtypes=(torch.float32,),
    )  # fmt: skip
    assert found.agreement["axis"].tolist() == ["text"]
    assert found.agreement["labels"][0] == pytest.approx(1 / 3)


def test_the_built_in_models_labels_and_that_it_is_left_alone():
    model, tokenizer = ha.load("tiny")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = stability(
        model, tokenizer, "previous_token,induction", seeds=(0,), seq_lens=(48,), bos=(True,),
        prompts=16, rule=Rule(resamples=100),
    )  # fmt: skip
    assert set(found.agreement["axis"]) == {"dtype", "text"}
    assert model.dtype == torch.float32
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert len(found.heads("previous_token")) >= 3
    assert found.rows["held"].between(1, found.rows["of"]).all()
    assert found.reference == "seed 0, 48 tokens, with BOS, float32"


def test_what_cannot_be_made_is_left_out_and_said():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=97, n_positions=32, n_embd=32, n_layer=1, n_head=2)
    found = stability(
        GPT2LMHeadModel(config).eval(), None, "offset,induction", seq_lens=(32, 64), prompts=16,
        dtypes=(torch.float32,),
    )  # fmt: skip
    assert found.left_out == (
        "64 tokens: the context is 32", "with BOS: the tokenizer has no BOS or CLS token",
    )  # fmt: skip
    assert set(found.agreement["axis"]) == {"seed"}
    assert found.reference == "seed 0, 32 tokens, no BOS, float32"


def test_refusals():
    model, tokenizer = ha.load("tiny")
    for options, message in (
        ({"seeds": ()}, "seeds names each value once"),
        ({"seeds": (1, 1)}, "seeds names each value once"),
        ({"seq_lens": (5000,)}, "no length of .* fits the model's context of 1024"),
    ):
        with pytest.raises(InputError, match=message):
            stability(model, tokenizer, "offset", **options)
