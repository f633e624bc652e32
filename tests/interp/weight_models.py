"""Models of every family whose weights are extracted, and what their own modules compute."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from headatlas.interp.watch import watch_calls

MORE = {  # families beside those of the shared set-up, as changes to a family there
    "qwen2": ("llama", {}),
    "gemma": ("llama", {"head_dim": 8, "num_key_value_heads": 1}),
    "olmo": ("llama", {}),
    "olmo2": ("llama", {}),
    "cohere2": ("llama", {"layer_types": ["sliding_attention", "full_attention"]}),
    "gpt_bigcode": ("gpt2", {"multi_query": True}),
}
IDS = torch.tensor([[5, 9, 11, 9, 40, 7], [3, 4, 50, 6, 70, 8]])


def build(tiny, families, name, *, dtype=torch.float32, **changes):
    """A tiny random model; `name` may be one of `MORE`."""
    if name not in MORE:
        attn = "eager" if name in ("gemma2", "gpt_oss") else "sdpa"
        return tiny(name, attn=attn, dtype=dtype, **changes)
    like, own = MORE[name]
    config = AutoConfig.for_model(name, **{**families[like], **own, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.15 * torch.randn(weight.shape).to(dtype))
    return model


def seen_by(model, run):
    """Input and output of every module that maps a tensor to a tensor, by name, in one run."""
    names = {module: name for name, module in model.named_modules()}
    seen = {}

    def keep(module, x, y):
        seen[names[module]] = (x.detach(), y.detach())

    with watch_calls(names, keep), torch.no_grad():
        result = run()
    return seen, result


def leaving(model, names, run):
    """What each named module gives, the first of what it gives where that is several."""
    gave = {}

    def keep(name, output):
        gave[name] = (output[0] if isinstance(output, tuple) else output).detach()

    handles = [
        model.get_submodule(name).register_forward_hook(
            lambda module, args, output, name=name: keep(name, output)
        )
        for name in names
    ]
    with torch.no_grad():
        run()
    for handle in handles:
        handle.remove()
    return gave


class Adapted(torch.nn.Module):
    """x W + b + (x A) B, with B = 0 where `trained` is off."""

    def __init__(self, base, *, trained=True, first=False):
        super().__init__()
        self.base, self.first = base, first
        (n_in, n_out) = base.in_features, base.out_features
        self.a = torch.nn.Linear(n_in, 2, bias=False)
        self.b = torch.nn.Linear(2, n_out, bias=False)
        if not trained:
            torch.nn.init.zeros_(self.b.weight)

    def forward(self, x):
        if self.first:
            more = self.b(self.a(x))
            return self.base(x) + more
        return self.base(x) + self.b(self.a(x))


class Tripled(torch.nn.Linear):
    """3 x W."""

    def forward(self, x):
        return 3 * super().forward(x)


class Int8(torch.nn.Linear):
    """A Linear that keeps its weight in 8 bits."""

    def __init__(self, base):
        super().__init__(base.in_features, base.out_features, bias=False)
        self.scale = base.weight.detach().abs().max() / 127
        weight = (base.weight.detach() / self.scale).round().to(torch.int8)
        self.weight = torch.nn.Parameter(weight, requires_grad=False)

    def forward(self, x):
        return x @ (self.weight.to(x.dtype) * self.scale).T


def relative(a, b):
    """max |a − b| / max |b|."""
    return ((a - b).abs().max() / b.abs().max()).item()
