import json
import logging as python_logging
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.utils import logging

from headatlas.interp.errors import InputError
from headatlas.interp.load import load

from .checkpoints import word_piece


def edit_config(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def refused(source, *parts):
    """The one-line message with which `source` is refused."""
    with pytest.raises(InputError) as caught:
        load(source)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message
    return message


def test_a_folder_gives_the_saved_weights_and_tokenizer(llama, saved):
    model, tokenizer = load(saved)
    assert type(model) is type(llama)
    assert not model.training
    assert all(p.requires_grad for p in model.parameters())
    ids = torch.tensor([tokenizer("the cat")["input_ids"]])
    torch.testing.assert_close(model(ids).logits, llama(ids).logits)


def test_a_pruned_model_is_named_as_one(saved, tmp_path):
    """Its config counts heads that its weights lack, so nothing here could read it."""
    folder = shutil.copytree(saved, tmp_path / "pruned")
    (folder / "pruned.json").write_text("{}")
    message = refused(folder, "is a pruned model", f"headatlas.load_pruned({str(folder)!r})")
    assert "ignore_mismatched_sizes" not in message


def test_dtype_is_applied_and_must_be_floating(saved):
    model, _ = load(str(saved), dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    with pytest.raises(InputError, match="floating torch dtype"):
        load(saved, dtype=torch.int8)


@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(saved, device):
    with pytest.raises(InputError, match=device):
        load(saved, device=device)


def test_a_gguf_file_gives_the_logits_of_the_model_it_was_written_from(llama, gguf_file):
    model, tokenizer = load(gguf_file)
    assert tokenizer.tokenize("the cat")[0] == "t"
    ids = torch.tensor([tokenizer("the cat sat on the mat")["input_ids"]])
    torch.testing.assert_close(model(ids).logits, llama(ids).logits, rtol=1e-4, atol=1e-4)
    assert not hasattr(model.config, "quantization_config")


def test_noise_settings_are_put_back(saved):
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    load(saved)
    refused(saved.parent / "nowhere")
    assert before == (logging.get_verbosity(), logging.is_progress_bar_enabled())


def test_loading_prints_nothing(saved, gguf_file, capfd):
    load(saved)
    load(gguf_file)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("family", "declared", "found"),
    [
        ("llama", None, "LlamaForCausalLM"),
        ("llama", ["NoSuchClass"], "LlamaForCausalLM"),
        ("llama", ["Trainer"], "LlamaForCausalLM"),
        ("llama", ["BertModel"], "LlamaForCausalLM"),
        ("t5", None, "T5ForConditionalGeneration"),
        ("bert", ["BertModel"], "BertModel"),
        ("bert", None, "BertModel"),
    ],
)
def test_the_class_follows_the_config(tiny, tmp_path, family, declared, found):
    tiny(family).save_pretrained(tmp_path)
    edit_config(tmp_path, architectures=declared)
    model, tokenizer = load(tmp_path)
    assert type(model).__name__ == found
    assert tokenizer is None


def test_an_encoder_saved_without_its_pooler_loads_without_one(tiny, tmp_path):
    model = transformers.BertModel(tiny("bert").config, add_pooling_layer=False)
    model.save_pretrained(tmp_path)
    word_piece().save_pretrained(tmp_path)
    loaded, tokenizer = load(tmp_path)
    assert loaded.pooler is None
    assert tokenizer.tokenize("cats") == ["cat", "##s"]


def test_missing_weights_are_refused_by_name(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.self_attn.q_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    refused(folder, "1 weights", "model.layers.1.self_attn.q_proj.weight", "random")


def test_a_missing_language_head_is_refused_when_the_config_names_the_class(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    refused(folder, "lm_head.weight")
    edit_config(folder, architectures=None)
    assert type(load(folder)[0]).__name__ == "LlamaModel"


def test_weights_of_another_shape_are_refused(folder):
    edit_config(folder, intermediate_size=64)
    refused(folder, f"cannot read {str(folder)!r}", "mismatched_sizes")


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"num_hidden_layers": 10**9}, "1000000000 layers"),
        ({"attn_implementation": "owner/kernel"}, "foreign code"),
        ({"transformers_weights": "evil.bin"}, "weight file"),
        ({"model_type": "nothing_known"}, "nothing_known"),
        ({"num_labels": 10**8}, "100000000 labels in 'num_labels'"),
        ({"encoder_layers": 10**7}, "10000000 layers in 'encoder_layers'"),
        ({"text_config": {"num_hidden_groups": 10**7}}, "10000000 groups in 'num_hidden_groups'"),
        ({"depths": [1, [2, 10**7]]}, "10000000 in 'depths'"),
        ({"vocab_size": 10**9}, "1000000000 in 'vocab_size'"),
        ({"vocab_size": 10**7}, "do not belong together"),
        ({"hidden_size": "wide"}, "cannot read"),
        ({"model_type": "custom", "auto_map": {"AutoConfig": "code.Config"}}, "cannot read"),
    ],
)
def test_odd_configs_are_refused(folder, changes, part):
    (folder / "code.py").write_text("raise SystemExit('ran code of a checkpoint')")
    edit_config(folder, **changes)
    refused(folder, part)


def test_a_small_config_that_builds_endless_parts_is_refused_at_once(tmp_path):
    """Each number is modest; only their product is not, and no rule knows its name."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "vocab_size": 9}
    config = transformers.AlbertConfig(**sizes, embedding_size=8, num_hidden_layers=1)
    transformers.AlbertModel(config).save_pretrained(tmp_path)
    assert type(load(tmp_path)[0]).__name__ == "AlbertModel"
    edit_config(tmp_path, inner_group_num=10**4, num_hidden_groups=900)
    refused(tmp_path, "layers and other parts")


def test_large_numbers_of_real_models_pass(folder, tiny, tmp_path):
    edit_config(folder, max_position_embeddings=10**7, rope_theta=10**10, bos_token_id=10**6)
    assert load(folder)[0].config.max_position_embeddings == 10**7
    tiny("llama", num_hidden_layers=200, vocab_size=10**6, hidden_size=4).save_pretrained(
        tmp_path / "deep"
    )
    assert load(tmp_path / "deep")[0].config.vocab_size == 10**6
    tiny("gpt_oss", attn="eager", num_local_experts=256).save_pretrained(tmp_path / "experts")
    assert load(tmp_path / "experts")[0].config.num_local_experts == 256


PRECOMPILED = [
    {"type": "Precompiled", "precompiled_charsmap": "AAAA"},  # panics while it is read
    {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8="},  # panics at the first text
]


def edit_tokenizer(folder, **changes):
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("normalizer", PRECOMPILED)
def test_a_tokenizer_that_makes_its_library_panic_is_refused(folder, normalizer):
    edit_tokenizer(folder, normalizer=normalizer)
    refused(folder, "PanicException")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_requests_to_stop_pass(saved, monkeypatch, stop):
    def stopped(*_, **__):
        raise stop

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", stopped)
    with pytest.raises(stop):
        load(saved)


def test_pickle_is_never_read(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(folder, "only as pickle", "save_pretrained")


@pytest.mark.parametrize("shard", ["../outside.safetensors", "pytorch_model.bin"])
def test_an_index_may_only_name_safetensors_beside_it(folder, shard):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"lm_head.weight": shard}}))
    refused(folder, "beside it")


def test_a_lost_shard_is_named(folder):
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"a": "b.safetensors"}}))
    refused(folder, "lacks 1 of 1", "b.safetensors")


@pytest.mark.parametrize(
    ("keep", "part"),
    [((), "no config.json"), (("config.json",), "no model.safetensors")],
)
def test_an_incomplete_folder_says_what_is_missing(folder, keep, part):
    for path in folder.iterdir():
        if path.name not in keep:
            path.unlink()
    refused(folder, part)


def test_an_adapter_is_refused(folder):
    (folder / "adapter_config.json").write_text("{}")
    refused(folder, "holds an adapter; merge it")  # the folder's own path says "adapter"


def test_tokenizer_files_without_a_vocabulary_are_refused(folder):
    (folder / "tokenizer.json").unlink()
    refused(folder, "Couldn't instantiate the backend tokenizer")


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("smolm2-135m", "Did you mean 'smollm2-135m'"),
        ("tinny", "Did you mean 'tiny'"),
        ("nobody/nothing", "Built in: tiny, smollm2-135m"),
        ("./nowhere", "no file or folder './nowhere'"),
        ("missing.gguf", "no file or folder 'missing.gguf'"),
        ("bad name!", "no file or folder"),
        ("", "a name or a path"),
        ("a\0b", "a name or a path"),
        ("x" * 5000, "cannot open"),
    ],
)
def test_an_unknown_model_gets_a_hint(source, part):
    refused(source, part)


@pytest.mark.parametrize(
    ("source", "meant"),
    [
        ("Tiny", "tiny"),
        (" tiny", "tiny"),
        ("TINY.", "tiny"),
        ("smolLM2-135M", "smollm2-135m"),
        ("SmolLM2_135M", "smollm2-135m"),
        ("smollm2 135m", "smollm2-135m"),
    ],
)
def test_nearly_a_built_in_name_is_never_looked_up_on_the_hub(monkeypatch, source, meant):
    import huggingface_hub

    asked = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: asked.append(a))
    refused(source, f"Did you mean '{meant}'?")
    assert not asked


def test_a_folder_may_have_nearly_a_built_in_name(saved, monkeypatch):
    monkeypatch.chdir(saved.parent)
    saved.rename(saved.parent / "Tiny")
    try:
        assert load("Tiny")[0].config.model_type == "llama"
    finally:
        (saved.parent / "Tiny").rename(saved)


def test_a_file_that_is_no_gguf_is_refused(folder):
    refused(folder / "config.json", ".gguf")
    (folder / "notes.gguf").write_text("not a model")
    refused(folder / "notes.gguf", "GGUF header")


def test_a_deeply_nested_config_is_refused(folder):
    (folder / "config.json").write_text("[" * 100_000)
    refused(folder, "not valid JSON")


def test_an_unreachable_hub_makes_no_noise(monkeypatch, caplog):
    logger = python_logging.getLogger("huggingface_hub.utils._http")

    def fetch(name, **_):
        logger.warning("Retrying in 1s [Retry 1/5].")
        raise ConnectionError("nothing answered")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    with caplog.at_level(python_logging.WARNING):
        refused("owner/model", "the hub gave nothing (ConnectionError: nothing answered)")
    assert caplog.records == []
