"""OV scores against whole-vocabulary products, and heads planted to copy, suppress and count."""

import numpy as np
import pytest
import torch
from scipy import stats

from headatlas.circuits.weights.copying import copying_scores
from headatlas.circuits.weights.ordinals import frequent_tokens, ordinal_sequences
from headatlas.circuits.weights.ov_scores import ov_scores
from headatlas.circuits.weights.vocabulary import effective_embedding, vocabulary
from headatlas.interp.errors import InputError
from headatlas.interp.load import load

from ...interp.checkpoints import byte_level
from .by_hand import circuits

IDENTITY = {"vocab_size": 300, "hidden_size": 32, "head_dim": 32, "num_attention_heads": 2}


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_copying_is_that_of_the_whole_vocabulary(tiny, family):
    """Eigenvalues of W_E W_OV W_U, [vocab, vocab], in float64."""
    model = tiny(family, dtype=torch.float64)
    gain = (model.model.norm if family == "llama" else model.transformer.ln_f).weight.double()
    embedded = model.get_input_embeddings().weight.detach().double()
    embedded = embedded - embedded.mean(0)
    logits = (model.get_output_embeddings().weight.detach().double() * gain).T
    if family == "gpt2":
        logits = logits - logits.mean(0)
    rows = ov_scores(model, rotations=30).rows
    for (_, ov), score in zip(circuits(model, family), rows["copying"], strict=True):
        values = torch.linalg.eigvals(embedded @ ov @ logits)
        assert score == pytest.approx((values.real.sum() / values.abs().sum()).item(), abs=1e-3)


def planted(tiny):
    """L1H0 writes back what it reads, L1H1 takes it away; one head is as wide as the stream."""
    model = tiny("llama", **IDENTITY, num_key_value_heads=2)
    with torch.no_grad():
        for norm in (model.model.layers[1].input_layernorm, model.model.norm):
            norm.weight.fill_(1.0)
        table = torch.randn(300, 32, generator=torch.Generator().manual_seed(0))
        model.get_input_embeddings().weight.copy_(table)
        model.get_output_embeddings().weight.copy_(table)
        attention = model.model.layers[1].self_attn
        turns = torch.linalg.qr(torch.randn(2, 32, 32)).Q
        attention.v_proj.weight.copy_(turns.flatten(0, 1))
        attention.o_proj.weight.copy_(torch.cat([turns[0].T, -turns[1].T], 1))
    return model


def test_planted_copying_and_suppression(tiny):
    scores = ov_scores(planted(tiny), byte_level(), rotations=40)
    copy, suppress = scores["L1H0"], scores["L1H1"]
    assert copy["copying"] == pytest.approx(1, abs=1e-4)
    assert suppress["copying"] == pytest.approx(-1, abs=1e-4)
    assert max(copy["copying_p"], suppress["copying_p"]) < 1e-6
    without = ov_scores(planted(tiny), rotations=40)
    assert without["L1H0"]["copied"] > 0.9 < without["L1H1"]["suppressed"]
    assert without["L1H1"]["copied"] == 0 == without["L1H0"]["suppressed"]
    assert np.isnan(without["L1H0"]["successor"])
    assert scores.table(by="-copying", top=1)["head"].tolist() == [1]
    assert "most copying L1H0 (1.00)" in repr(scores)


def test_planted_successor(tiny):
    """W_U of each element's successor is the embedding of the element, for an identity W_OV."""
    model, tokenizer = planted(tiny), byte_level()
    sequences = ordinal_sequences(tokenizer)
    with torch.no_grad():
        table = model.get_input_embeddings().weight
        logits = model.get_output_embeddings().weight
        for line in sequences.values():
            logits[list(line[1:])] = table[list(line[:-1])]
    scores = ov_scores(model, tokenizer, rotations=30)
    own = scores["L1H0"]
    assert own["successor"] > 0.9
    assert own["successor_p"] < 0.01
    assert own["successor_n"] == sum(len(line) - 1 for line in sequences.values())
    assert own["successor_expected"] == pytest.approx(len(sequences) / own["successor_n"])
    assert scores["L1H1"]["successor"] < 0.1


def test_random_heads_have_uniform_p(tiny, families):
    p = []
    for seed in range(12):
        torch.manual_seed(seed)
        model = type(tiny("gpt2"))(type(tiny("gpt2").config)(**families["gpt2"])).eval()
        p += ov_scores(model, rotations=30, seed=seed).rows["copying_p"].tolist()[::4]
    assert stats.kstest(p, "uniform").pvalue > 0.01


def test_scores_by_hand():
    rotation = torch.tensor([[[0.0, -1.0], [1.0, 0.0]]])
    assert copying_scores(rotation).tolist() == [0.0]
    assert copying_scores(-torch.eye(3)[None]).tolist() == [-1.0]


def test_sequences_are_single_tokens_in_order():
    tokenizer = byte_level()
    found = ordinal_sequences(tokenizer)
    assert set(found) == {"0", "a", "A"}
    assert tokenizer.decode(list(found["0"])) == "0123456789"
    assert tokenizer.decode(list(found["A"])) == "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    words = frequent_tokens(load("tiny")[1], 1024, 20)
    assert len(words) == 20
    assert (np.diff(words) > 0).all()
    assert all(word.strip().isalpha() for word in load("tiny")[1].batch_decode(words[:, None]))


def test_effective_embedding_is_embedding_and_first_mlp(tiny):
    model, tokens = tiny("llama"), torch.tensor([4, 50, 7])
    block = model.model.layers[0]
    with torch.no_grad():
        x = model.get_input_embeddings()(tokens)
        wanted = x + block.mlp(block.post_attention_layernorm(x))
    assert torch.allclose(effective_embedding(model, tokens), wanted, atol=1e-5)
    scores = ov_scores(model, rotations=30, effective=True)
    plain = ov_scores(model, rotations=30)
    later = scores.rows["layer"] > 0
    assert scores.rows.loc[~later].equals(plain.rows.loc[~later])
    assert not scores.rows.loc[later, "copied"].equals(plain.rows.loc[later, "copied"])


def test_what_has_no_logits_is_refused(tiny, as_users_call):
    with pytest.raises(InputError, match="BertModel has no LM head"):
        vocabulary(tiny("bert"))
    with pytest.raises(InputError, match="rotations is a whole number of at least 30; got 5"):
        ov_scores(tiny("llama"), rotations=5)
    with pytest.raises(InputError, match="needs a model of two layers"):
        effective_embedding(tiny("llama", num_hidden_layers=1), torch.tensor([3]))
    scores = ov_scores(tiny("llama"), rotations=30)
    with pytest.raises(InputError, match="no OV scores of a head L9H9"):
        scores["L9H9"]
    with pytest.raises(InputError, match="there is no column 'luck'"):
        scores.table(by="luck")
