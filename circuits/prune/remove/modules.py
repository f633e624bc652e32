"""Parts of a pruned model: attention with uneven groups, and layers whose heads are all gone."""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.falcon.modeling_falcon import FalconAttention

NAME = "headatlas_pruned"  # transformers reads meaning into names with eager, sdpa, flash or flex


class LayerConfig:
    """A model's config as one attention module shall see it: some entries are the module's own.

    All else is read from, and written to, the model's config, so that both always name the same
    attention implementation.

    Args:
        base: the model's config.
        own: the entries of this module.

    Example:
        >>> from transformers import LlamaConfig
        >>> config = LlamaConfig(num_attention_heads=4, num_key_value_heads=4, hidden_size=16)
        >>> view = LayerConfig(config, {"num_attention_heads": 3})
        >>> view.num_attention_heads, config.num_attention_heads, view.hidden_size
        (3, 4, 16)
    """

    def __init__(self, base: Any, own: dict[str, Any]) -> None:
        self.__dict__.update(_base=base, _own=own)

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__") or "_base" not in self.__dict__:
            raise AttributeError(key)
        return self._own[key] if key in self._own else getattr(self._base, key)

    def __setattr__(self, key: str, value: Any) -> None:
        setattr(self._base, key, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> LayerConfig:
        return LayerConfig(copy.deepcopy(self._base, memo), dict(self._own))


@dataclass(frozen=True)
class Wiring:
    """What the attention of a pruned module must be given beside its smaller projections.

    Attributes:
        kv_of: for each query head the key-value head that serves it, where groups are uneven.
        bias: for each query head its row of the position bias that layers share.
    """

    kv_of: tuple[int, ...] | None = None
    bias: tuple[int, ...] | None = None


def register() -> None:
    """Enter our attention function into transformers' registry; repeating changes nothing."""
    AttentionInterface.register(NAME, _wired_attention)


def _wired_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **rest: Any
) -> Any:
    """Give each query head its own view of its keys, values and bias; then attend as configured."""
    wiring: Wiring = module.wiring
    if wiring.kv_of is not None:
        index = torch.tensor(wiring.kv_of, device=key.device)
        key, value = key.index_select(1, index), value.index_select(1, index)
    bias = rest.get("position_bias")
    if wiring.bias is not None and bias is not None:
        rest["position_bias"] = bias[:, list(wiring.bias)]
    # a model's file holds its own eager attention, which the registry does not list
    eager: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(module.config._base._attn_implementation, eager)
    return attend(module, query, key, value, attention_mask, **rest)


class NoHeads(nn.Module):
    """What is left of an attention module without heads: its output's bias, or nothing.

    With a KV cache it keeps one number per token and sequence, because the cache tells the number
    of tokens so far by what its layers hold.

    Args:
        bias: what the module adds for every token; None: nothing.
        width: numbers per token that the module returns; 0 where its output projection follows
            outside.
        returns: how many values the module returned; 0: one, not in a tuple.
        layer_idx: its layer in the cache.
    """

    def __init__(
        self, bias: nn.Parameter | None, width: int, returns: int, layer_idx: int | None
    ) -> None:
        super().__init__()
        self.bias: nn.Parameter | None
        self.register_parameter("bias", bias)
        self.width = width
        self.returns = returns
        self.layer_idx = layer_idx

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What zeroed heads give, in the layout of the module it replaces."""
        x = args[0] if args else kwargs["hidden_states"]
        states = kwargs.get("key_value_states"), kwargs.get("encoder_hidden_states")
        if all(other is None for other in states):
            self._note_length(x, (*args, *kwargs.values()))
        out = self._output(x)
        return out if self.returns == 0 else (out, *(None,) * (self.returns - 1))

    def _output(self, x: Tensor) -> Tensor:
        out = x.new_zeros(*x.shape[:-1], self.width)
        return out if self.bias is None else out + self.bias.to(x.dtype)

    def _note_length(self, x: Tensor, given: tuple[Any, ...]) -> int:
        """Tell the cache that more tokens came; returns how many keys a head would see."""
        cache: Any = next((value for value in given if isinstance(value, Cache)), None)
        if isinstance(cache, EncoderDecoderCache):
            cache = cache.self_attention_cache
        if cache is None or self.layer_idx is None:
            return x.shape[1]
        key = x.new_zeros(x.shape[0], 1, x.shape[1], 1)
        return cache.update(key, key[..., :0], self.layer_idx)[0].shape[-2]


class NoHeadsButBias(NoHeads):
    """A layer without heads that makes, or hands on, the position bias that others use (T5).

    Args:
        giver: the module it replaces, without projections.
        bias, width, returns, layer_idx: as in `NoHeads`.
    """

    def __init__(
        self,
        giver: nn.Module,
        bias: nn.Parameter | None,
        width: int,
        returns: int,
        layer_idx: int | None,
    ) -> None:
        super().__init__(bias, width, returns, layer_idx)
        self.relative_attention_bias = getattr(giver, "relative_attention_bias", None)
        self.__dict__["giver"] = giver  # no submodule: it attends no more, and its table is here

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As `NoHeads`, with the position bias as the second value."""
        x = args[0] if args else kwargs["hidden_states"]
        giver, bias, n_keys = self.__dict__["giver"], kwargs.get("position_bias"), x.shape[1]
        past = 0
        if kwargs.get("key_value_states") is None:
            cache = kwargs.get("cache")
            past = 0 if cache is None else cache.get_seq_length(self.layer_idx)
            past = past.clone() if isinstance(past, Tensor) else past  # a static cache's own
            n_keys = self._note_length(x, (*args, *kwargs.values()))
        if bias is None and self.relative_attention_bias is not None:
            bias = giver.compute_bias(x.shape[1], n_keys, device=x.device, past_seen_tokens=past)
        return (self._output(x), bias, *(None,) * (self.returns - 2))


class CutFalconAttention(FalconAttention):
    """Falcon's attention with fewer heads: groups of unequal sizes, its own part of the ALiBi."""

    wiring: Wiring

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride] (Falcon names the rest)
        self, hidden_states: Tensor, alibi: Any, attention_mask: Any, **rest: Any
    ) -> Any:
        """As its parent, with the biases of the heads that are left."""
        heads = self.wiring.bias
        if alibi is not None and heads is not None:
            alibi = alibi[:, list(heads)]
            if attention_mask.shape[1] > 1:  # the biases are added to the mask already
                attention_mask = attention_mask[:, list(heads)]
        return super().forward(hidden_states, alibi, attention_mask, **rest)

    def _split_heads(self, fused_qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        kv_of = self.wiring.kv_of
        if kv_of is None or not self.new_decoder_architecture:
            return super()._split_heads(fused_qkv)
        heads = fused_qkv.unflatten(-1, (-1, self.head_dim))
        # each group is its queries, then a key and a value: two blocks for each group before
        groups = torch.tensor(kv_of, device=heads.device)
        places = torch.arange(len(kv_of), device=heads.device) + 2 * groups
        ends = groups.bincount().cumsum(0) + 2 * torch.arange(kv_of[-1] + 1, device=heads.device)
        keys = ends[groups]
        return heads[..., places, :], heads[..., keys, :], heads[..., keys + 1, :]
