"""A TransformerBridge in place of the transformers model that it was given."""

import gc
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch

import headatlas as ha
from headatlas.interp.bridge import plain_model
from headatlas.interp.errors import InputError
from headatlas.interp.grammar import natural_text
from headatlas.interp.sites import hook_drift

from ..test_readme import run_snippets
from .bridges import IDS, boot, everything, run

ROOT = Path(__file__).parents[2]
FAMILIES = ("gpt2", "llama", "gpt_neox", "t5", "bert")
iv = ha.interventions


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The built-in model, a bridge around another of it, and its tokenizer."""
    (plain, tokenizer), (other, _) = ha.load("tiny"), ha.load("tiny")
    plain.set_attn_implementation("eager")
    return plain, boot(other, tmp_path_factory.mktemp("tiny")), tokenizer


class TestWhatIsSeen:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_it_is_that_of_the_plain_model(self, pair, family):
        plain, bridge = pair(family)
        out, before = run(bridge), everything(bridge)
        assert ha.attention_sites(bridge) == ha.attention_sites(plain)
        assert ha.attention_sites(bridge.original_model) == ha.attention_sites(plain)
        assert hook_drift(bridge) == hook_drift(plain)
        wanted = ha.capture(plain, None, IDS, names_filter=lambda name: True)
        found = ha.capture(bridge, None, IDS, names_filter=lambda name: True)
        assert list(found) == list(wanted)
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
        for own, one in zip(*(ha.head_weights(m).values() for m in (plain, bridge)), strict=True):
            assert torch.equal(own.W_Q, one.W_Q)
            assert torch.equal(own.W_O, one.W_O)
        assert everything(bridge) == before
        assert torch.equal(run(bridge), out)

    @pytest.mark.parametrize("family", FAMILIES)
    def test_the_view_has_the_model_s_modules_and_the_bridge_s_weights(self, pair, family):
        plain, bridge = pair(family)
        view = plain_model(bridge)
        assert view is plain_model(bridge) is plain_model(bridge.original_model)
        for wanted, found in zip(plain.named_modules(), view.named_modules(), strict=True):
            assert found[0] == wanted[0]
            assert type(found[1]) is type(wanted[1])
        assert list(view.state_dict()) == list(plain.state_dict())
        assert [n for n, _ in view.named_buffers()] == [n for n, _ in plain.named_buffers()]
        theirs = {weight.data_ptr() for weight in bridge.original_model.parameters()}
        assert {weight.data_ptr() for weight in view.parameters()} <= theirs
        assert view.config is not bridge.original_model.config

    def test_padded_texts_and_narrow_weights(self, pair):
        plain, bridge = pair("llama", dtype=torch.bfloat16)
        given = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
        given["attention_mask"][0, :2] = 0
        wanted, found = (ha.capture(m, None, given)["pattern", 1] for m in (plain, bridge))
        assert found.dtype == torch.bfloat16
        assert torch.equal(found, wanted)

    def test_base_models_of_the_inside(self, pair):
        plain, bridge = pair("llama")
        inner = bridge.original_model.model
        wanted = ha.capture(plain.model, None, IDS)["z", 1]
        assert torch.equal(ha.capture(inner, None, IDS)["z", 1], wanted)

    def test_a_model_that_was_seen_before_it_was_booted(self, tiny, tmp_path):
        model = tiny("gpt2", attn="eager")
        sites, before = ha.attention_sites(model), ha.capture(model, None, IDS)["z", 1]
        bridge = boot(model, tmp_path)
        assert ha.attention_sites(bridge) == sites
        assert torch.equal(ha.capture(bridge, None, IDS)["z", 1], before)


class TestTools:
    """On the built-in model, whose heads do something."""

    TEXT = ("The cat sat on the mat and the cat ran to the old house.", "A dog saw the red cat.")

    def test_labels(self, both):
        plain, bridge, tokenizer = both
        asked = {"kinds": "previous_token", "prompts": 16, "seq_len": 32}
        wanted, found = (ha.classify(m, tokenizer, **asked) for m in (plain, bridge))
        assert found.rows.equals(wanted.rows)
        assert found.model == wanted.model
        assert (found.rows["grade"] == "strong").any()

    def test_the_doctor(self, both):
        plain, bridge, tokenizer = both
        found = ha.check(bridge, tokenizer)
        assert found.ok
        assert repr(found) == repr(ha.check(plain, tokenizer))

    def test_evidence_plots_and_the_rest(self, both):
        plain, bridge, tokenizer = both
        uses = {
            "ablation": lambda m: ha.ablate_heads(m, tokenizer, ["L1H1"], list(self.TEXT)),
            "page": lambda m: ha.explore(m, tokenizer, self.TEXT[0], heads=["L1H1"])._repr_html_(),
            "statistics": lambda m: ha.head_statistics(m, tokenizer, self.TEXT[0]).to_csv(),
            "composition": lambda m: ha.composition(m),
            "circuits": lambda m: ha.head_circuits(m),
            "cost": lambda m: ha.cost(m),
            "scales": lambda m: ha.diagnose_scales(m, torch.tensor([[0, 300, 301, 302]])),
        }
        for name, use in uses.items():
            assert repr(use(bridge)) == repr(use(plain)), name

    def test_pruning_by_masks(self, both):
        plain, bridge, tokenizer = both
        before = everything(bridge)
        asked = {"method": ("michel", "l0"), "sparsity": 0.25, "seq_len": 16}
        asked["config"] = ha.GateTraining(target=0.25, steps=2, batch=2)
        texts = [natural_text(600, seed=1)]
        wanted, found = (ha.prune_heads(m, tokenizer, texts, **asked) for m in (plain, bridge))
        assert found.cuts == wanted.cuts
        assert found.curve.equals(wanted.curve)
        with pytest.raises(InputError, match=r"without a bridge, and call remove_heads\(model"):
            found.pruned()
        assert everything(bridge) == before
        smaller = ha.remove_heads(plain, found.removed())  # the way that the message names
        assert ha.pruning_of(smaller).n_removed == 8

    def test_removal_asks_for_the_model(self, both, tmp_path):
        plain, bridge, tokenizer = both
        documents = ha.read_documents(list(self.TEXT), bridge, tokenizer, n=2, seq_len=8)
        gates = ha.train_gates(
            bridge, documents, config=ha.GateTraining(target=0.25, steps=2, batch=2)
        )
        for given in (bridge, bridge.original_model, plain_model(bridge)):
            for use in (
                lambda m: ha.remove_heads(m, ["L0H0"]),
                lambda m: ha.save_pruned(m, tmp_path / "smaller"),
                lambda m: ha.removal_report(plain, m),
                gates.pruned,
            ):
                with pytest.raises(InputError, match=r"underlying transformers model.*Load the"):
                    use(given)
        assert not (tmp_path / "smaller").exists()
        assert ha.pruning_of(bridge) is None


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_nothing_keeps_a_bridge_alive(pair, family):
    _, bridge = pair(family)
    with ha.intervene(bridge, iv.zero("L0H1" if family == "gpt2" else "dec.L0H1")):
        run(bridge)
    kept = [weakref.ref(x) for x in (bridge, bridge.original_model, plain_model(bridge))]
    del bridge
    gc.collect()
    assert [one() for one in kept] == [None] * 3


def test_transformer_lens_is_not_imported_for_plain_models():
    code = (
        "import sys\n"
        "import torch\n"
        "from transformers import GPT2Config, GPT2LMHeadModel\n"
        "import headatlas as ha\n"
        "config = GPT2Config(vocab_size=50, n_embd=8, n_layer=1, n_head=2)\n"
        "model = GPT2LMHeadModel(config)\n"
        "with ha.intervene(model, ha.interventions.zero('L0H1')):\n"
        "    ha.capture(model, None, torch.tensor([[1, 2, 3]]))\n"
        "ha.remove_heads(model, 'L0H1')\n"
        "assert 'transformer_lens' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_page_says_what_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_snippets(ROOT / "docs" / "transformerlens.md")
    theirs, own = (names[name]["pattern", 1] for name in ("own", "cache"))
    torch.testing.assert_close(own, theirs, rtol=1e-5, atol=1e-5)
    assert names["without"].shape == names["plain"].shape
    assert not names["without"].equal(names["plain"])
    assert names["new"].shape[1] == names["cache"].token_ids.shape[1] + 4
