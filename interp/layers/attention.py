"""One attention layer for MHA, MQA, GQA and MLA, whose inner values can be seen and changed."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...kernels.api import Scores
from ..attention_call import AttentionCall
from ..autocast import as_attended, autocast_off, narrowed
from ..errors import InputError
from ..placement import Placement
from ..plain_numbers import as_seed
from ..sites import Site
from .checks import check_part, check_tensor
from .config import AttentionConfig
from .hooks import attend
from .kv_cache import AnyCache, KVCache, LatentCache
from .latent import LatentProjections, absorbed_widths
from .projections import HeadProjections, Projected, affine, random_matrix, zeros
from .trace import Trace
from .visibility import Padding, visible_keys


class HookedAttention(nn.Module):
    """Self-attention: MHA, MQA, GQA or MLA, as its config says.

        Q, K, V = heads of X W_Q, X W_K, X W_V
        S = scale · Q Kᵀ,   A = softmax(S) over visible keys,   H = A V,   Y = Σ_h H_h W_O_h + b_O

    Projections are fused matrices; T × d is viewed as T × h × d_head. Weights and states are read
    from `qkv` (W_Q, W_K, W_V, …; for MLA W_DKV, W_UK, …), `W_O`, `b_O` and `sinks`. Attention
    itself is the attention probe: O(N) memory unless an edit or an observer asks for the pattern.
    `attach_layers` sees and edits it. Under `torch.autocast` it projects and attends in the
    narrower dtype, as models of transformers do.

    Args:
        config: the layer's shape and traits.
        seed: of the random weights: entries of variance 1 / fan-in; biases and sinks are 0.

    Raises:
        InputError: a config that is no `AttentionConfig`, or a seed that is none.

    Example:
        Three tokens, d = 8, two heads of width 4, written out:

        >>> layer = HookedAttention(AttentionConfig(d_model=8, n_heads=2))
        >>> X = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(1))
        >>> Q = (X @ layer.qkv.W_Q).view(3, 2, 4)
        >>> K = (X @ layer.qkv.W_K).view(3, 2, 4)
        >>> V = (X @ layer.qkv.W_V).view(3, 2, 4)
        >>> S = torch.einsum("ihd,jhd->hij", Q, K) / 4**0.5
        >>> A = S.masked_fill(torch.ones(3, 3).triu(1).bool(), -torch.inf).softmax(-1)
        >>> H = torch.einsum("hij,jhd->ihd", A, V)
        >>> H.shape
        torch.Size([3, 2, 4])
        >>> per_head = torch.einsum("ihd,hdm->ihm", H, layer.W_O.view(2, 4, 8))
        >>> Y = per_head.sum(1)
        >>> R = X[0]
        >>> torch.allclose(R + Y, X[0] + layer(X)[0], atol=1e-6)
        True
        >>> torch.allclose(per_head, layer.trace(X).result[0], atol=1e-6)
        True

    Reference: Vaswani et al. 2017, equation 1; Shazeer 2019; Ainslie et al. 2023; DeepSeek-AI 2024
    (DeepSeek-V2); Su et al. 2021 for RoPE.
    """

    def __init__(self, config: AttentionConfig, *, seed: int = 0) -> None:
        super().__init__()
        check_part("config", config, AttentionConfig, optional=False)
        self.config = config
        generator = torch.Generator().manual_seed(as_seed(seed))
        kind = HeadProjections if config.latent is None else LatentProjections
        self.qkv: HeadProjections | LatentProjections = kind(config, generator)
        self.W_O = random_matrix(config.n_heads * config.d_value, config.d_model, generator)
        self.b_O = zeros(config.d_model) if config.traits.bias == "all" else None
        self.sinks = zeros(config.n_heads) if config.traits.sinks else None

    @classmethod
    def from_transformers(
        cls, module: nn.Module, *, rotary: nn.Module | None = None
    ) -> HookedAttention:
        """A layer with the weights and the traits of a transformers attention module.

        It gives the module's outputs on the same inputs; weights are copied, in their dtype and on
        their device. There is no dropout. DeepSeek-V3 turns interleaved pairs and writes them out
        as two halves: the rotary columns of W_Q and W_KR are put into that order here, so that
        queries and keys are the module's own.

        Args:
            module: the attention module of a GPT-2, Llama, Gemma 3 or DeepSeek-V3 layer, such as
                `model.model.layers[0].self_attn`.
            rotary: the model's rotary module (`model.model.rotary_emb`), whose frequencies are then
                taken; None computes them from the module's config.

        Raises:
            InputError: another kind of module, cross-attention, projections that are not plain
                linear maps (adapters, quantised weights), or frequencies that change with the
                input's length.

        Example:
            >>> from transformers import LlamaConfig, LlamaModel
            >>> config = LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=16,
            ...     num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2)
            >>> HookedAttention.from_transformers(LlamaModel(config).layers[0].self_attn)
            HookedAttention(
              GQA, d_model=16, heads=4, kv_heads=2, d_key=4, rope theta=10000
              (qkv): HeadProjections()
            )
        """
        from .from_transformers import from_transformers  # which builds layers from here

        return from_transformers(module, rotary=rotary)

    @property
    def site(self) -> Site:
        """The layer as a site of its own; inside a model `attach_layers` numbers the layers."""
        config = self.config
        shape = config.n_heads, config.kv_heads, config.d_key, config.d_value
        return Site("", "", 0, *shape, config.traits.causal)

    def absorbed_site(self, site: Site) -> Site:
        """`site` as calls with `absorb` see it: one key head, of latents; without MLA itself."""
        if self.config.latent is None:
            return site
        d_head, d_value = absorbed_widths(self.config.latent)
        return replace(site, n_kv_heads=1, d_head=d_head, d_value=d_value)

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        *,
        padding: Padding | None = None,
        positions: Int[Tensor, "batch pos"] | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        """The layer's output.

        Args:
            x: what the layer reads, after any norm before it.
            padding: True (1) where a token stands [batch, pos]; None means everywhere. A padded key
                is seen by nobody; a query that sees nothing gives b_O.
            positions: for RoPE; None means 0, 1, … . Causality and windows go by column.

        Returns:
            Y [batch, pos, d_model].

        Raises:
            InputError: inputs whose shapes do not fit.
        """
        call, _, _ = self._run(x, None, padding, positions)
        return self.output(call.z)

    def decode(
        self,
        x: Float[Tensor, "batch pos d_model"],
        cache: AnyCache | None = None,
        *,
        padding: Padding | None = None,
        positions: Int[Tensor, "batch pos"] | None = None,
        absorb: bool = False,
    ) -> tuple[Float[Tensor, "batch pos d_model"], AnyCache]:
        """The output at the next tokens, and the cache for those after them.

        Decoding in any pieces equals the full forward. With a window the cache keeps the last
        window − 1 tokens, all that later queries can see.

        Args:
            x: the next tokens; none is a step too, which changes nothing.
            cache: of the tokens before; None at the start. It is left as it is.
            padding: True (1) where a token stands, over all tokens so far [batch, seen].
            positions: for RoPE; None counts on from the tokens seen.
            absorb: MLA only: attend over the latents themselves, W_UK moved into the query and
                W_UV behind attention, so that keys and values are never written out. Observers
                and edits then see what happens: one shared key head of latents, as in MQA, and z
                before W_UV.

        Returns:
            Y [batch, pos, d_model], and a `KVCache` or `LatentCache`.

        Raises:
            InputError: a layer that is not causal, a cache of another kind or shape, or that has
                dropped tokens still to be seen; or `absorb` without a latent.

        Example:
            >>> layer = HookedAttention(AttentionConfig(d_model=8, n_heads=2, n_kv_heads=1))
            >>> x = torch.randn(1, 5, 8)
            >>> first, cache = layer.decode(x[:, :3])
            >>> rest, cache = layer.decode(x[:, 3:], cache)
            >>> torch.allclose(torch.cat([first, rest], 1), layer(x), atol=1e-6)
            True
            >>> cache.nbytes == 2 * 5 * 1 * 4 * 4  # k and v, tokens, kv heads, d_head, float32
            True
        """
        self._check_decoding(cache, absorb)
        call, _, grown = self._run(x, cache, padding, positions, absorb=absorb)
        z = call.z
        if absorb and isinstance(self.qkv, LatentProjections):
            z = self.qkv.from_latent(z)
        window = self.config.traits.window
        return self.output(z), grown if window is None else grown.keep(window - 1)

    def trace(
        self,
        x: Float[Tensor, "batch pos d_model"],
        *,
        padding: Padding | None = None,
        positions: Int[Tensor, "batch pos"] | None = None,
    ) -> Trace:
        """Run the layer and keep every inner value; the pattern and scores are written out.

        Args:
            x, padding, positions: as `forward`.

        Returns:
            A `Trace`. Under edits, k and v have one head per query head where an edit says so. The
            pattern carries gradients only where it was edited; everything else does.

        Example:
            >>> layer = HookedAttention(AttentionConfig(d_model=8, n_heads=2))
            >>> trace = layer.trace(torch.zeros(1, 3, 8))
            >>> trace.result.shape, trace.pattern[0, 0, 2]
            (torch.Size([1, 3, 2, 8]), tensor([0.3333, 0.3333, 0.3333]))
        """
        call, new, _ = self._run(x, None, padding, positions)
        result = self.result(call.z)
        with autocast_off(x.device):
            attn_scores, pattern = call.score_matrix, call.pattern
        return Trace(
            q=new.q.transpose(1, 2),
            k=self.qkv.keys_values(new.unrotated)[0].transpose(1, 2),
            rot_q=call.q.transpose(1, 2),
            rot_k=call.k.transpose(1, 2),
            v=call.v.transpose(1, 2),
            attn_scores=attn_scores,
            pattern=pattern,
            z=call.z.transpose(1, 2),
            result=result,
            out=self.output(call.z),
        )

    def result(
        self, z: Float[Tensor, "batch head pos d_value"]
    ) -> Float[Tensor, "batch pos head d_model"]:
        """What each head adds to the output: H_h W_O_h. Their sum and b_O are the output.

        Args:
            z: head outputs, as observers see them in `call.z`.
        """
        weight = self.W_O.unflatten(0, (self.config.n_heads, -1))
        return torch.einsum("bhpv,hvm->bphm", z, weight)

    def output(
        self, z: Float[Tensor, "batch head pos d_value"]
    ) -> Float[Tensor, "batch pos d_model"]:
        """The heads' results summed by one matrix product, plus b_O."""
        return affine(z.transpose(1, 2).flatten(2), self.W_O, self.b_O)

    def extra_repr(self) -> str:
        """What `print` shows of the layer itself."""
        config, traits = self.config, self.config.traits
        parts = [config.kind, f"d_model={config.d_model}", f"heads={config.n_heads}"]
        if config.kind in ("MQA", "GQA"):
            parts.append(f"kv_heads={config.kv_heads}")
        parts.append(f"d_key={config.d_key}")
        if config.d_value != config.d_key:
            parts.append(f"d_value={config.d_value}")
        if config.latent is not None:
            parts.append(f"latent={config.latent.d_latent}+{config.latent.d_rope}")
        if config.rope is not None:
            own = config.rope.inv_freq is not None
            parts.append(f"rope {'inv_freq' if own else f'theta={config.rope.theta:g}'}")
        if traits.window is not None:
            parts.append(f"window={traits.window}")
        if not traits.causal:
            parts.append("not causal")
        return ", ".join(parts)

    def _run(
        self,
        x: Tensor,
        past: AnyCache | None,
        padding: Tensor | None,
        positions: Tensor | None,
        *,
        absorb: bool = False,
    ) -> tuple[AttentionCall, Projected, AnyCache]:
        self._check_input(x, positions)
        if positions is None:
            start = 0 if past is None else past.n_seen
            positions = torch.arange(start, start + x.shape[1], device=x.device)[None]
        new = self.qkv(x, self.qkv.rotation(positions, x.dtype))
        new = new.to(narrowed(new.q.dtype, x.device))
        cache = new.cache if past is None else past.extend(new.cache)
        if absorb and isinstance(self.qkv, LatentProjections):
            q, k, v = self.qkv.absorbed(new.rot_q, cache)
        else:
            q, (k, v) = new.rot_q, self.qkv.keys_values(cache)
        size = (x.shape[0], x.shape[1], cache.n_keys)
        traits, dropped = self.config.traits, cache.dropped
        mask, bias = visible_keys(traits, size, dropped=dropped, padding=padding, like=q)
        scores = Scores(self.config.scale, traits.softcap, bias, self.sinks)
        seen_as = self.absorbed_site if absorb else lambda site: site
        where = Placement(query=cache.n_seen - x.shape[1], key=dropped)
        q, k, v = as_attended(q, k, v)
        call = AttentionCall(seen_as(self.site), q, k, v, mask, scores, where, absorbed=absorb)
        with autocast_off(x.device):
            attend(self, call, seen_as)
        return call, new, cache

    def _check_input(self, x: Tensor, positions: Tensor | None) -> None:
        check_tensor("x", x)
        if x.ndim != 3 or x.shape[-1] != self.config.d_model:
            raise InputError(
                f"x must be [batch, pos, d_model = {self.config.d_model}]; got {list(x.shape)}."
            )
        if narrowed(x.dtype, x.device) != narrowed(self.W_O.dtype, x.device):
            raise InputError(f"x is {x.dtype}, the layer {self.W_O.dtype}. Convert one of them.")
        if positions is None:
            return
        check_tensor("positions", positions, whole=True)
        if tuple(positions.shape) != tuple(x.shape[:2]):
            raise InputError(
                f"positions must be [batch, pos] = {list(x.shape[:2])}; got "
                f"{list(positions.shape)}."
            )

    def _check_kept(self, cache: AnyCache) -> None:
        """Refuse a cache that let go of tokens which this layer's queries still see."""
        window = self.config.traits.window
        if cache.dropped and (window is None or cache.n_keys < window - 1):
            reach = "sees all" if window is None else f"has a window of {window}"
            raise InputError(
                f"the cache has dropped {cache.dropped} of the {cache.n_seen} tokens seen, as that "
                f"of a layer with a narrower window does; this layer {reach}. Decode with the "
                "cache that this layer returned."
            )

    def _check_decoding(self, cache: AnyCache | None, absorb: bool) -> None:
        if not self.config.traits.causal:
            raise InputError(
                "this layer is not causal: earlier tokens would have to see later ones, which no "
                "cache can give. Call the layer on the whole sequence."
            )
        wanted = KVCache if self.config.latent is None else LatentCache
        if cache is not None and not isinstance(cache, wanted):
            raise InputError(
                f"{self.config.kind} decodes with a {wanted.__name__}; got {type(cache).__name__}."
            )
        if cache is not None:
            self._check_kept(cache)
        if absorb and self.config.latent is None:
            raise InputError(f"absorb is for MLA; this layer is {self.config.kind}. Leave it out.")
