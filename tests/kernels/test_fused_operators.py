"""The kernels as torch operators: gradients, tracing, memory, and what they refuse."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from headatlas.kernels.api import Mask, Match, Scores, Weights, attention_probe, use_backend
from headatlas.kernels.fused import backend, op
from headatlas.kernels.fused import gradients as gradients_module
from headatlas.kernels.fused.configs import Blocks, use_blocks
from headatlas.kernels.fused.launch import Launch
from headatlas.kernels.values import Request

from .test_memory import Largest
from .variants import VARIANTS, Variant, ask, check

ops = torch.ops.headatlas


@pytest.fixture(autouse=True)
def small_blocks():
    with use_blocks(Blocks(32, 32, 4, 1)):
        yield


def leaves_of(request: Request, dtype: torch.dtype | None = None) -> tuple[Request, list[Tensor]]:
    """The call with every tensor that can carry a gradient as a leaf."""

    def leaf(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.detach().clone().to(dtype or x.dtype).requires_grad_()

    bias, sinks = request.scores.bias, request.scores.sinks
    bias = None if bias is None else bias.masked_fill(bias < -1e30, -torch.inf)
    q, k, v, bias, sinks = (leaf(x) for x in (request.q, request.k, request.v, bias, sinks))
    scores = replace(request.scores, bias=bias, sinks=sinks)
    request = replace(request, q=q, k=k, v=v, scores=scores, matches=(), weights=None)
    return request, [x for x in (q, k, v, bias, sinks) if x is not None]


FLASH = ["mha", "gqa, full", "d 80", "MLA 192/128"]
RECOMPUTED = [
    "softcap, bias, sinks, window", "bias", "bias of keys", "scale below 0", "left padding",
    "a range per row", "q_pos", "mqa, Nq < Nk", "scale below 0, softcap", "scale 0", "MLA 576/512",
]  # fmt: skip
GRADIENTS = {**VARIANTS, "gqa, full": Variant(heads=4, n_query=9, n_key=21, mask={"causal": False})}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("name", FLASH + RECOMPUTED)
def test_gradients_are_those_of_float64(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []
    for way in ("_flash", "_recomputed"):
        run = getattr(gradients_module, way)
        monkeypatch.setattr(
            gradients_module, way, lambda *a, w=way, r=run, **k: used.append(w) or r(*a, **k)
        )
    variant = GRADIENTS[name]
    mask = Mask(**variant.mask)
    request, leaves = leaves_of(variant.build(dtype))
    out = ask(request, mask, "triton").out
    assert out is not None
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).to(dtype)
    found = torch.autograd.grad(out, leaves, grad)
    # MLA 576/512 is plain causal attention, which aten takes on a CPU, if of any width
    flash = name in FLASH or (name.startswith("MLA") and variant.n_query == variant.n_key)
    assert used == ["_flash" if flash else "_recomputed"]
    # in float64, by finite differences found right; the oracle's autograd takes the log of 0
    exact_request, exact_leaves = leaves_of(variant.build(dtype), torch.float64)
    exact = ask(exact_request, mask, "cpu").out
    assert exact is not None
    wanted = torch.autograd.grad(exact, exact_leaves, grad.double())
    unit = 4e-6 if dtype == torch.float32 else 4e-3
    for mine, right, leaf in zip(found, wanted, leaves, strict=True):
        assert mine.dtype == leaf.dtype
        error = (mine.double() - right.double()).abs().max()
        assert float(error) <= unit * (1 + float(right.abs().max()))


def test_gradients_within_autocast_are_not_rounded() -> None:
    request, leaves = leaves_of(VARIANTS["window"].build(torch.float32))
    mask = Mask(window=17)
    out = ask(request, mask, "triton").out
    assert out is not None
    wanted = torch.autograd.grad(out.square().sum(), leaves, retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad(out.square().sum(), leaves)
    for mine, same in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, same, rtol=1e-5, atol=1e-5)


def test_statistics_carry_no_gradient() -> None:
    request, _ = leaves_of(VARIANTS["mha"].build(torch.float32))
    got = ask(request, Mask(), "triton")
    assert got.out is not None
    assert got.out.requires_grad
    for name in ("lse", "entropy", "top_weight", "received"):
        assert not getattr(got, name).requires_grad, name


def test_only_needed_gradients_are_computed() -> None:
    """A fixed bias is as large as the pattern: its gradient would be, too."""
    request, (q, _, _, bias) = leaves_of(VARIANTS["bias"].build(torch.float32))
    bias.requires_grad_(False)
    out = ask(request, Mask(), "triton").out
    assert out is not None
    with Largest() as largest:
        torch.autograd.grad(out.sum(), q)
    assert largest.numel <= q.numel()


def example(dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    q = torch.randn(1, 4, 20, 16, generator=torch.Generator().manual_seed(1)).to(dtype)
    k = torch.randn(1, 2, 20, 16, generator=torch.Generator().manual_seed(2)).to(dtype)
    lo = torch.zeros(1, 20, dtype=torch.int32)
    return q, k, lo, torch.arange(1, 21, dtype=torch.int32)[None]


def test_opcheck_of_every_operator(as_users_call) -> None:
    q, k, lo, hi = example()
    scores = (None, lo, hi, 0.25, None)
    tokens = torch.arange(20, dtype=torch.int32)[None, None] % 3
    padded = torch.nn.functional.pad(tokens, (0, 108), value=-1)
    columns = torch.zeros(1, 128, 16)
    labels = (lo, tokens, padded, columns, 1)
    leaf = q.clone().requires_grad_(), k.clone().requires_grad_(), k.clone().requires_grad_()
    out, lse, *_ = ops.probe_rows(
        q, k, k, None, None, None, None, None, None, 0, *scores, False, False
    )
    calls = {
        "probe_rows": [
            (*leaf, None, torch.zeros(4, requires_grad=True), *labels, *scores, True, True),
            (q, k, None, lse, None, *labels, *scores, True, True),
        ],
        "probe_rows_backward": [
            (out, q, k, k, None, out, lse, [True, True, True, False, False], *scores),
            (out, q, k, k, None, out, lse, [True, False, False, False, False], *scores),
        ],
        "probe_weights": [
            (q, k, lse, [1, 3], None, torch.float16, *scores),
            (q, k, lse, [0], tokens[0, :, :5].long(), torch.float32, *scores),
        ],
        "probe_pooled": [(q, k, lse, [2, 0], [7, 40], False, *scores)],
        "probe_received": [(q, k, lse, *scores)],
        "probe_few": [(q, k, lse, tokens[..., None].expand(1, 2, 20, 3).int(), *scores)],
    }
    for name, cases in calls.items():
        for case in cases:
            # aot_eager with dynamic shapes among others: outputs are as the fake ones promise
            torch.library.opcheck(getattr(ops, name), case)


def test_torch_compile_sees_one_graph() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compiled_call"], capture_output=True, text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"}, timeout=200, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.stdout == "one graph, same results, same gradients\n", done.stderr


def allocated(n: int, n_dense: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes that a call with all statistics allocates, in the bodies of the operators too.

    Kernels allocate nothing themselves, so they need not run.
    """
    monkeypatch.setattr(Launch, "run", lambda self: None)
    bodies = {name: getattr(op, name)._init_fn for name in dir(op) if name.startswith("probe_")}
    monkeypatch.setattr(backend, "_ops", SimpleNamespace(**bodies))
    q, here = torch.zeros(1, HEADS, n, 16), torch.arange(n)[None]
    matches = [Match(here - o, here) for o in (1, 2)]
    matches += [Match(here % m, here % m) for m in range(2, 2 + n_dense)]
    matches += [Match(0 * here, here % 3)]
    request = Request(
        q=q, k=q[:, :2], v=q[:, :2], scores=Scores(), matches=tuple(matches), entropy=True,
        top=True, received=True, weights=Weights(pool=(n // 8, n // 8)),
    )  # fmt: skip
    with Allocated() as memory:
        ask(request, Mask(window=n // 2), "triton")
    return memory.most


HEADS = 8


def test_memory_grows_with_matches_heads_and_length_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 4096
    once, twice = (allocated(size, 4, monkeypatch) for size in (n, 2 * n))
    assert 1.9 < twice / once < 2.1
    # a match: its masses, once as they are computed and once in order; its labels, their order,
    # codes and runs of keys are some 30 numbers per token, whatever the heads
    more = (allocated(n, 12, monkeypatch) - once) / 8
    assert 2 * 4 * HEADS * n <= more < 3 * 4 * HEADS * n + 40 * 8 * n
    assert once < HEADS * n * n * 4 / 30


class Allocated(Largest):
    """Bytes of all storages that operators made, none of them freed: more than is ever alive."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in torch.utils._pytree.tree_leaves(result):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                self.kept[storage.data_ptr()] = storage
        return result

    @property
    def most(self) -> int:
        return sum(storage.nbytes() for storage in self.kept.values())


def run_without_interpreter(code: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=clean, timeout=120
    )
    return done.stdout + done.stderr


def test_on_a_cpu_it_says_why_not() -> None:
    told = run_without_interpreter(
        "import torch; from headatlas.kernels.api import attention_probe\n"
        "x = torch.zeros(1, 1, 2, 16)\n"
        "print(attention_probe(x, x, x).lse.shape)\n"
        "attention_probe(x, x, x, backend='triton')"
    )
    assert "torch.Size([1, 1, 2])" in told  # auto is the CPU path
    assert "RuntimeError: backend 'triton' cannot take this call: the tensors are on a CPU" in told
    assert "TRITON_INTERPRET=1 before Python starts" in told


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (torch.bfloat16, "interpreter multiplies the bits of bfloat16. Use float32 or float16"),
        (torch.float64, "its kernels compute in float32, and q is torch.float64"),
    ],
)
def test_types_it_cannot_take(dtype: torch.dtype, text: str) -> None:
    x = torch.zeros(1, 1, 2, 16, dtype=dtype)
    with pytest.raises(RuntimeError, match=text):
        attention_probe(x, x, x, backend="triton")


def test_without_triton_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headatlas.kernels.api._has_triton", lambda: False)
    x = torch.zeros(1, 1, 2, 16)
    with pytest.raises(RuntimeError, match="pip install triton"):
        attention_probe(x, x, x, backend="triton")
    assert attention_probe(x, x, x).lse is not None


def test_old_gpus_are_refused_by_name() -> None:
    from headatlas.kernels.fused.configs import Shape, choose

    with use_blocks(None), pytest.raises(ValueError, match=r"compute capability 8\.0 or higher"):
        choose(75, Shape(64, 64, 2))


def test_a_whole_call_through_auto() -> None:
    variant = VARIANTS["window"]
    request, mask = variant.build(torch.float32), Mask(**variant.mask)
    with use_backend("triton"):
        check(request, mask, ask(request, mask, "auto"))


def test_strides_beyond_32_bits_within_a_block() -> None:
    """Keys that lie 2²⁵ numbers apart: 128 of them would not fit 32 bits, so they are copied."""
    apart = 2**25
    try:
        storage = torch.empty(20 * apart, dtype=torch.float16)
    except RuntimeError:
        pytest.skip("this machine does not promise 1.3 GiB of address space")
    k = storage.as_strided((1, 1, 20, 16), (1, 1, apart, 1))
    small = torch.randn(1, 1, 20, 16, generator=torch.Generator().manual_seed(3)).half()
    k.copy_(small)
    got = attention_probe(k, k, k, received=True, backend="triton")
    same = attention_probe(small, small, small, received=True, backend="triton")
    assert torch.equal(got.out, same.out)  # type: ignore[arg-type]
    assert torch.equal(got.received, same.received)  # type: ignore[arg-type]


def test_autotune_remembers_the_fastest_and_passes_over_what_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from triton.runtime.errors import OutOfResources

    from headatlas.kernels.fused import configs
    from headatlas.kernels.fused.autotune import autotune

    x = torch.randn(1, 1, 4, 16)
    asked, ran = [], []

    def timer(run) -> float:
        run()
        asked.append(ran[-1])
        if asked[-1] == (32, 16):
            raise OutOfResources(1 << 20, 1 << 10, "shared memory")
        return 1.0 if asked[-1] == (64, 32) else 2.0

    shape = configs.Shape(16, 16, 4)
    monkeypatch.setattr(configs, "_tuned", {})
    monkeypatch.setattr(
        Launch,
        "run",
        lambda self: ran.append((self.constants["BLOCK_M"], self.constants["BLOCK_N"])),
    )
    with use_blocks(None), configs.use_architecture(90):
        before = configs.choose(90, shape)
        attention_probe(x, x, x, backend="triton")
        assert not asked
        with autotune(timer):
            attention_probe(x, x, x, backend="triton")
            once = len(asked)
            attention_probe(x, x, x, backend="triton")
        after = configs.choose(90, shape)
    assert len(asked) == once == 72
    assert (after.rows, after.keys) == (64, 32)
    assert after != before
