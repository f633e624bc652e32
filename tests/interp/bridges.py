"""TransformerLens's bridges around tiny models, without a hub."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headatlas.interp.sites import is_of_bridge

IDS = torch.tensor([[5, 9, 11, 9, 40, 7], [3, 4, 50, 6, 70, 8]])
WORDS = ("a", "b", "the", "cat", "sat")


def words_tokenizer(folder):
    """A tokenizer of a few words; the bridge reads it a second time, so it lies in a folder."""
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"bos_token": "b", "eos_token": "b", "pad_token": "b"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def boot(model, folder):
    """A bridge around `model`, whose modules it replaces."""
    from transformer_lens.model_bridge import TransformerBridge

    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    return TransformerBridge.boot_transformers(
        str(folder), hf_model=model, tokenizer=words_tokenizer(folder), device="cpu"
    )


def run(bridge, ids=IDS, **options):
    with torch.no_grad():
        return bridge(ids, **options)


def logits(model, ids=IDS):
    with torch.no_grad():
        return model(ids).logits


def everything(bridge):
    """What a user may find in a bridge: modules, their hooks and modes, weights, the config.

    A bridge sets hooks of its own as it first runs, and makes attributes; so it runs first, and
    attributes are those of the model's modules.
    """
    run(bridge)
    inner = bridge.original_model
    modules = [*bridge.modules(), *inner.modules()]
    tables = [name for name in vars(inner) if name.endswith(("_hooks", "_pre_hooks"))]
    return (
        [(id(m), m.training) for m in modules],
        [sorted(m.__dict__) for m in inner.modules() if not is_of_bridge(m)],
        [[(t, list(m.__dict__[t].items())) for t in tables] for m in modules],
        [(name, id(p), p._version, p.requires_grad) for name, p in inner.named_parameters()],
        [list(getattr(m, "fwd_hooks", ())) for m in modules],
        inner.config.to_dict(),
        inner.config._attn_implementation,
    )
