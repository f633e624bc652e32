"""The built-in model: its files, its tokens, its heads, and the script that trains it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from headatlas.interp.builtin import corpus, record, train
from headatlas.interp.grammar import TOPICS, natural_text

FOLDER = Path(record.__file__).with_name("tiny")


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(FOLDER, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def written() -> dict[str, Any]:
    return json.loads((FOLDER / "record.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def battery(written: dict[str, Any]) -> record.Battery:
    chosen = record.Settings(seed=91, sequences=8, length=256)
    return record.random_battery(chosen, vocab=corpus.VOCAB)


def head(name: str) -> record.Head:
    layer, index = name[1:].split("H")
    return int(layer), int(index)


def test_files_are_small_and_complete() -> None:
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert names | {"record.json"} <= {file.name for file in FOLDER.iterdir()}
    assert (FOLDER / "model.safetensors").stat().st_size <= 4 * 2**20
    with safe_open(FOLDER / "model.safetensors", "pt") as file:
        assert {str(file.get_tensor(key).dtype) for key in file.keys()} == {"torch.float32"}  # noqa: SIM118


def test_layout(model: Any, tokenizer: Any) -> None:
    config = model.config
    shape = (config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads)
    assert shape == (4, 8, 4)
    assert (config.hidden_size, config.head_dim, config.max_position_embeddings) == (128, 16, 1024)
    assert config.tie_word_embeddings
    assert len(tokenizer) == config.vocab_size == corpus.VOCAB
    ids = (tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id)
    assert ids == (config.bos_token_id, config.pad_token_id, config.eos_token_id) == (0, 1, 2)


def test_loads_without_a_word() -> None:
    """A person who loads the model sees no warning."""
    code = (
        "import sys, warnings; warnings.simplefilter('error')\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer, logging\n"
        "logging.disable_progress_bar()\n"
        "model = AutoModelForCausalLM.from_pretrained(sys.argv[1])\n"
        "tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "model(**tokenizer('The boat sank.', return_tensors='pt'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(FOLDER)], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_every_sequence_begins_with_bos(tokenizer: Any) -> None:
    assert tokenizer("The boat")["input_ids"][0] == tokenizer.bos_token_id
    assert tokenizer("")["input_ids"] == [tokenizer.bos_token_id]
    batch = tokenizer(["The boat", "The boat sank again."], padding=True)["input_ids"]
    assert [row[0] for row in batch] == [0, 0]
    assert tokenizer("The boat", add_special_tokens=False)["input_ids"][0] != 0


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=60).filter(lambda text: "<" not in text))
def test_any_text_survives_the_tokens(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text


def test_words_of_the_grammar_split_or_stay_whole(tokenizer: Any) -> None:
    text = natural_text(600, seed=12)
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
    nouns = [noun for topic in TOPICS for noun in topic.things]
    pieces = [len(tokenizer(f" {noun}", add_special_tokens=False)["input_ids"]) for noun in nouns]
    assert sum(count > 1 for count in pieces) >= 20
    assert sum(count == 1 for count in pieces) >= 10
    assert max(pieces) >= 3


def test_record_agrees_with_the_weights(model: Any, tokenizer: Any, written: dict) -> None:
    chosen = record.Settings(**{k: v for k, v in written["settings"].items() if k != "threshold"})
    found = record.measure(model, tokenizer, chosen)
    assert {f"L{layer}H{index}" for layer, index in found} == set(written["heads"])
    for (layer, index), figures in found.items():
        kept = written["heads"][f"L{layer}H{index}"]
        assert set(figures) == set(kept)
        for kind, value in figures.items():
            if not kind.endswith("best_offset"):
                assert value == pytest.approx(kept[kind], abs=5e-4), (layer, index, kind)


def test_record_lists_follow_its_figures(written: dict[str, Any]) -> None:
    for kind, names in written["lists"].items():
        over = [name for name, values in written["heads"].items() if values[kind] > 0.4]
        assert names == over
    assert all(0 <= v <= 1.0001 for v in _masses(written))


def _masses(written: dict[str, Any]) -> list[float]:
    return [
        value
        for values in written["heads"].values()
        for kind, value in values.items()
        if not kind.endswith("best_offset")
    ]


def test_previous_token_and_induction_heads_formed(written: dict[str, Any]) -> None:
    heads = written["heads"].values()
    assert max(values["previous_token"] for values in heads) > 0.6
    assert sum(values["induction"] > 0.5 for values in heads) >= 2


def test_induction_heads_stand_above_a_previous_token_head(written: dict[str, Any]) -> None:
    lowest = min(head(name)[0] for name in written["lists"]["previous_token"])
    assert all(head(name)[0] > lowest for name in written["lists"]["induction"])


def test_copies_are_predicted_only_with_induction_heads(
    model: Any, battery: record.Battery, written: dict[str, Any]
) -> None:
    names = written["lists"]["induction"]
    base = record.copy_loss(model, battery)
    assert base < 1.5
    with record.without(model, [head(name) for name in names]):
        cut = record.copy_loss(model, battery)
    assert cut > base + 1.0
    assert record.copy_loss(model, battery) == base, "nothing stays behind"
    rest = [head(name) for name in written["heads"] if name not in names][: len(names)]
    assert len(rest) == len(names)
    causal = written["causal"]
    assert causal["without_all_induction_heads"] > max(causal["without_as_many_other_heads"])


def test_some_previous_token_head_feeds_induction(written: dict[str, Any]) -> None:
    changes = written["causal"]["induction_mass_change"].values()
    assert min(min(change.values(), default=0.0) for change in changes) < -0.1


def test_masks_by_hand() -> None:
    ids = torch.tensor([[0, 5, 6, 5, 6, 5]])
    assert record.duplicates(ids)[0].nonzero().tolist() == [[3, 1], [4, 2], [5, 1], [5, 3]]
    # Key j counts for query i when token j − 1 is token i; a key may be the query itself.
    assert record.successors(ids)[0].nonzero().tolist() == [[3, 2], [4, 3], [5, 2], [5, 4]]
    weights = torch.zeros(1, 1, 3, 3)
    weights[0, 0] = torch.tensor([[1.0, 0, 0], [0.7, 0.3, 0], [0.1, 0.5, 0.4]])
    assert record.offset_mass(weights, 1).item() == pytest.approx(0.6)
    wanted = torch.tensor([[[False] * 3, [True, False, False], [True, True, False]]])
    rows = torch.tensor([[False, True, True]])
    assert record.row_mass(weights, wanted, rows).item() == pytest.approx((0.7 + 0.6) / 2)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), length=st.integers(24, 300))
def test_repeats_mark_what_an_earlier_copy_shows(seed: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    fresh, starts = iter(range(10**6)), set()

    def draw(n: int) -> np.ndarray:
        ids = [next(fresh) for _ in range(n)]
        starts.update(ids[:1])
        return np.array(ids, dtype=np.int64)

    ids, copied = corpus.repeats(draw, rng, length)
    assert len(ids) == len(copied) == length
    # No token is drawn twice, so a pair seen before comes from a copy, unless two copies touch.
    seen: set[tuple[int, int]] = set()
    for before, token, marked in zip(ids[:-1], ids[1:], copied[1:], strict=True):
        pair = (int(before), int(token))
        assert marked == (pair in seen and pair[1] not in starts)
        seen.add(pair)


def test_two_steps_of_training_make_a_loadable_model(tmp_path: Path) -> None:
    recipe = train.Recipe(seed=1, steps=2, documents=40)
    trained = train.train(recipe, tmp_path / "out", checkpoints=1)
    for folder in ("out", "out/checkpoints/step-00000", "out/checkpoints/step-00001"):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / folder)
        assert len(AutoTokenizer.from_pretrained(tmp_path / folder)) == loaded.config.vocab_size
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = torch.tensor([[0, 40, 41, 42]])
    torch.testing.assert_close(loaded(ids).logits, trained(ids).logits)
    again = train.train(recipe, tmp_path / "again")
    for name, weight in again.state_dict().items():
        torch.testing.assert_close(weight, trained.state_dict()[name], rtol=0, atol=1e-5)
    left = {file.name for file in tmp_path.iterdir()}
    assert left == {"out", "again"}, "no unfinished folder stays"


def test_the_recipe_visits_all_lengths_and_rates() -> None:
    recipe = train.Recipe(steps=200, warm_up=10)
    slopes = [recipe.slope(step) for step in range(200)]
    assert max(slopes) == 1.0
    assert slopes[0] < slopes[8]
    assert slopes[-1] < 0.03
    shapes = recipe.shapes()
    assert len(shapes) == 200
    assert {length for _, length, _ in shapes} == {64, 128, 256, 512}
    assert sum(stage.part for stage in train.STAGES) == pytest.approx(1.0)
    tokens = sum(rows * length for rows, length, _ in shapes)
    random = sum(rows * length * share for rows, length, share in shapes)
    assert random / tokens > 0.4


def test_nothing_but_the_grammar_is_imported() -> None:
    """The record is what labels are checked against: it may not lean on them."""
    code = (
        "import sys, headatlas.interp.builtin.record\n"
        "print([m for m in sys.modules if m.startswith('headatlas.')])"
    )
    root = Path(record.__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    for forbidden in ("circuits", "kernels", "attach", "capture"):
        assert f"headatlas.{forbidden}" not in done.stdout
        assert f".{forbidden}'" not in done.stdout
