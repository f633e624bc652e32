"""Shared set-up: runtime type checks, no network, and tiny random models of many families."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import jaxtyping

# Before anything imports the package: its annotations are checked in every test.
jaxtyping.install_import_hook("headatlas", "beartype.beartype")

from collections.abc import Callable  # noqa: E402
from types import SimpleNamespace  # noqa: E402
from typing import Any  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM  # noqa: E402

torch.set_num_threads(min(2, torch.get_num_threads()))
transformers.logging.set_verbosity_error()

VOCAB = 97
WINDOW = 8
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DECODER = {
    **SPECIAL,
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
SEQ2SEQ = {**SPECIAL, "vocab_size": VOCAB, "d_model": 32, "decoder_start_token_id": 0}
LAYERS = ["sliding_attention", "full_attention"]
EXPERTS = {"num_experts_per_tok": 2}

# family -> config; layer counts and widths are the smallest that keep what makes it different
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": DECODER,
    "gpt2": {**SPECIAL, "vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4},
    "mistral": {**DECODER, "sliding_window": WINDOW},
    "gemma2": {**DECODER, "head_dim": 8, "sliding_window": WINDOW, "layer_types": LAYERS},
    "gemma3_text": {**DECODER, "head_dim": 8, "sliding_window": WINDOW, "layer_types": LAYERS},
    "qwen3": {**DECODER, "head_dim": 8},
    "phi3": DECODER,
    "gpt_neox": {**DECODER, "num_key_value_heads": 4},
    "opt": {**DECODER, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "gpt_oss": {
        **DECODER,
        **EXPERTS,
        "head_dim": 8,
        "sliding_window": WINDOW,
        "layer_types": LAYERS,
        "num_local_experts": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "deepseek_v3": {
        **DECODER,
        **EXPERTS,
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 6,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
    },
    "bert": {**DECODER, "num_key_value_heads": 4},
    "t5": {**SEQ2SEQ, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
    "bart": {
        **SEQ2SEQ,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "max_position_embeddings": 128,
    },
}
SEQ2SEQ_FAMILIES = ("t5", "bart")


def build_tiny(
    family: str, *, attn: str = "sdpa", dtype: torch.dtype = torch.float32, seed: int = 0, **changes
) -> Any:
    """A random model of `family` in eval mode, with its weights spread so that heads matter."""
    config = AutoConfig.for_model(family, **{**FAMILIES[family], **changes})
    if family in SEQ2SEQ_FAMILIES:
        auto = AutoModelForSeq2SeqLM
    else:
        auto = AutoModel if family == "bert" else AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = auto.from_config(config, attn_implementation=attn).to(dtype).eval()
        with torch.no_grad():
            for weight in model.parameters():
                # The usual 0.02 makes attention uniform, and every test of it blind.
                weight.copy_(weight + 0.15 * torch.randn(weight.shape).to(dtype))
    return model


def pytest_configure(config: pytest.Config) -> None:
    """Kernels run in Triton's interpreter, but for `-m gpu`: it asks once, when one is defined."""
    if config.option.markexpr == "gpu":
        if not torch.cuda.is_available():
            raise pytest.UsageError("tests marked gpu need a CUDA GPU; torch finds none.")
    else:
        os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session", autouse=True)
def interpreted_once():
    """Triton's interpreter patches its language anew for every function that a kernel calls.

    Once per kernel and module is enough, and takes a third less time.
    """
    from triton.runtime import interpreter

    patch, patched = interpreter._patch_lang, set()

    def patch_once(fn):
        if fn.__module__ in patched:
            return None
        outermost = not patched
        patched.add(fn.__module__)
        scope = patch(fn)
        if outermost:  # the end of the kernel restores the language
            undo = scope.restore

            def restore():
                patched.clear()
                undo()

            scope.restore = restore
        return scope

    interpreter._patch_lang = patch_once
    yield
    interpreter._patch_lang = patch


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Any]:
    """`tiny("llama", attn="eager")`: a fresh random model, see `build_tiny`."""
    return build_tiny


@pytest.fixture(scope="session")
def families() -> dict[str, dict[str, Any]]:
    """Family name -> config of every tiny model."""
    return FAMILIES


@pytest.fixture
def as_users_call():
    """Without the type checks that only tests add."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture
def command(capsys, monkeypatch, as_users_call):
    """`command("classify", "tiny", columns=80)`: the command line in this process.

    Starting one of its own takes longer than most commands.
    """
    from headatlas.circuits.cli import main

    def run(*arguments, columns=140):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setattr("sys.argv", ["headatlas", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        told = capsys.readouterr()
        return SimpleNamespace(status=stop.value.code, out=told.out, error=told.err)

    return run
