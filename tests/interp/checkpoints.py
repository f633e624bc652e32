"""Small tokenizers and GGUF files for the tests of loading and tokens."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

from headatlas.interp.visible import _BYTES

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran"]


def byte_level(*, bos: bool = False) -> Any:
    """A byte-level BPE tokenizer: ids 0 to 2 special, then every byte."""
    vocab = {"<pad>": 0, "<s>": 1, "</s>": 2}
    vocab |= {character: 3 + i for i, character in enumerate(sorted(_BYTES))}
    merges = [("Ġ", "t"), ("h", "e"), ("Ġt", "he")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    core = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    if bos:
        core.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 1)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def word_piece(*, cls: bool = True) -> Any:
    """A BERT-like tokenizer: [CLS] text [SEP], ## for the insides of words."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, "##s", "##ting"]
    core = Tokenizer(
        models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if not cls:
        return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]")
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
    )


def unigram() -> Any:
    """A SentencePiece-like tokenizer, whose special tokens are pieces like any other."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581", -2.0)]
    pieces += [(character, -4.0) for character in "<>/sabcdehmnortu."]
    pieces += [("\u2581" + word, -3.0) for word in WORDS]
    core = Tokenizer(models.Unigram(pieces, unk_id=2))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    core.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )


class Letters(PreTrainedTokenizer):
    """A tokenizer written in Python: one token per letter, `<s>` in front."""

    def __init__(self, **options: Any):
        self.letters = [*"<s> abcdet", "<s>", "<unk>"]
        super().__init__(bos_token="<s>", unk_token="<unk>", **options)

    @property
    def vocab_size(self) -> int:
        return len(self.letters)

    def get_vocab(self) -> dict[str, int]:
        return {letter: i for i, letter in enumerate(self.letters)}

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return list(text)

    def _convert_token_to_id(self, token: str) -> int:
        return self.get_vocab().get(token, self.letters.index("<unk>"))

    def _convert_id_to_token(self, index: int) -> str:
        return self.letters[index]

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        return [self.letters.index("<s>"), *token_ids_0, *(token_ids_1 or [])]


def write_llama_gguf(path: Path, model: Any, tokenizer: Any) -> None:
    """Write a Llama as llama.cpp does: rows of W_Q and W_K interleaved for its RoPE."""
    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    writer.add_name("test")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    vocab = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    writer.add_token_list(vocab)
    writer.add_token_types([3] * 3 + [1] * (len(vocab) - 3))
    writer.add_token_merges(["Ġ t", "h e", "Ġt he"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k"}
    names |= {"self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output"}
    names |= {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    names |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    names |= {"model.layers.": "blk.", "model.embed_tokens": "token_embd"}
    names |= {"model.norm": "output_norm", "lm_head": "output"}
    for name, weight in model.state_dict().items():
        array = weight.numpy().astype(np.float32)
        if "q_proj" in name or "k_proj" in name:
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            halves = array.reshape(heads, 2, array.shape[0] // heads // 2, array.shape[1])
            array = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
        for long, short in names.items():
            name = name.replace(long, short)
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
