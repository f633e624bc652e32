"""Interventions in generation, under padding, in every family, in encoders, in threads."""

import threading

import pytest
import torch

from headatlas.interp.capture import capture
from headatlas.interp.errors import InputError
from headatlas.interp.forward import undisturbed
from headatlas.interp.interventions import (
    add,
    freeze,
    gate,
    intervene,
    mean,
    patch,
    run,
    zero,
)
from headatlas.interp.sites import attention_sites
from headatlas.interp.tokens import Tokens

from .edits import IDS
from .test_families import (
    EAGER_ONLY,
    LENGTH,
    SEQ2SEQ,
    TOLERANCE,
    own_implementation,
    random_inputs,
    relative_error,
)

TARGETS = ("q", "k", "v", "scores", "pattern", "z")
NAMED = (  # the families in which both ways to cut a head must agree
    *("gpt2", "gpt_neox", "llama", "mistral", "qwen2", "gemma", "gemma3_text", "phi3", "bert"),
    *("deepseek_v3", "gpt_oss", "gemma2", "t5"),
)


@pytest.fixture(scope="module")
def build(tiny, families):
    families.setdefault("qwen2", families["llama"])
    families.setdefault("gemma", {**families["llama"], "head_dim": 8})

    def make(family, **changes):
        return tiny(family, attn=own_implementation(family), **changes)

    return make


def output(model, ids, interventions=(), **options):
    out = run(model, ids, interventions, **options)
    return out.logits if "logits" in out else out.last_hidden_state


@pytest.mark.parametrize("family", NAMED)
def test_a_head_cut_in_z_or_in_its_pattern(build, family):
    """z[h] = 0 is pattern[h] = 0, and is what v[h] = 0 does too."""
    model = build(family)
    for site in {site.stack: site for site in attention_sites(model)}.values():
        head = f"{site.prefix}L1H2"
        own = output(model, IDS)
        z, pattern, v = (output(model, IDS, zero(head, t)) for t in ("z", "pattern", "v"))
        assert relative_error(pattern, z) <= TOLERANCE
        assert relative_error(v, z) <= TOLERANCE
        assert relative_error(z, own) > 20 * TOLERANCE


def two_changes(target, stack=""):
    """One of a query head at some columns, beyond the window of sliding layers, and one of all."""
    prefix = f"{stack}." if stack else ""
    changes = [gate(f"{prefix}L0H1", 0.3, target, positions=[2, 12, 13, 20])]
    if target == "scores":
        return [*changes, add(f"{prefix}L1H2", torch.tensor([0.0, 2.0, 1.0]), target)]
    return [*changes, gate(f"{prefix}L1H2", -0.5, target)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "family", ["llama", "gemma3_text", "mistral", "gpt2", "deepseek_v3", "gpt_oss"]
)
def test_cached_steps_equal_the_whole_forward(build, family, target):
    model = build(family)
    inputs = random_inputs(family, "none")
    ids = inputs["input_ids"]
    own = output(model, ids)
    expected = output(model, ids, two_changes(target))
    cache, parts = None, []
    with torch.no_grad(), intervene(model, two_changes(target)):
        for start, end in ((0, 11), (11, 20), (20, 21), (21, 22), (22, LENGTH)):
            out = model(ids[:, start:end], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            parts.append(out.logits)
    assert relative_error(torch.cat(parts, 1), expected) <= TOLERANCE
    assert relative_error(expected, own) > 20 * TOLERANCE


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stack", ["dec", "cross"])
@pytest.mark.parametrize("family", SEQ2SEQ)
def test_cached_decoders(build, family, stack, target):
    model = build(family)
    inputs = random_inputs(family, "none")
    ids, decoder = inputs["input_ids"], inputs["decoder_input_ids"]
    changes = [gate(f"{stack}.L0H1", 0.3, target, positions=[2, 9, 13])]
    own = output(model, ids, decoder_ids=decoder)
    expected = output(model, ids, changes, decoder_ids=decoder)
    cache, parts = None, []
    with torch.no_grad(), intervene(model, changes):
        encoded = model.get_encoder()(ids)
        for start, end in ((0, 8), (8, 9), (9, 10), (10, 15)):
            out = model(
                encoder_outputs=encoded,
                decoder_input_ids=decoder[:, start:end],
                past_key_values=cache,
                use_cache=True,
            )
            cache = out.past_key_values
            parts.append(out.logits)
    assert relative_error(torch.cat(parts, 1), expected) <= TOLERANCE
    assert relative_error(expected, own) > 20 * TOLERANCE


@pytest.mark.parametrize("option", ["cached", "static", "beams"])
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2", "t5"])
def test_generation_with_and_without_a_cache(build, family, option):
    model = build(family)
    ids = random_inputs(family, "none", length=12)["input_ids"]
    stack = "dec" if family == "t5" else ""
    changes = [change for target in ("k", "scores", "z") for change in two_changes(target, stack)]
    options = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    if option == "beams":
        options["num_beams"] = 3
    kept = dict(options)
    if option == "static":
        kept |= {"cache_implementation": "static", "disable_compile": True}
    with intervene(model, changes):
        expected = model.generate(ids, use_cache=False, **options)
        seen = model.generate(ids, use_cache=True, **kept)
    assert torch.equal(seen, expected)
    assert not torch.equal(seen, model.generate(ids, **options))


def test_values_of_another_run_end_where_it_ended(build):
    """In generation a patch acts on the prompt; the columns after it are the model's own."""
    model = build("llama")
    source = patch(model, ["L0H1", "L1H2"], "k", tokens=IDS[:1])
    frozen = freeze(model, tokens=IDS[:1])
    longer = torch.cat([IDS[1:], torch.tensor([[50, 51]])], 1)
    expected = output(model, IDS[1:], [source, frozen])
    with torch.no_grad(), intervene(model, [source, frozen]):
        out = model(IDS[1:], use_cache=True)
        step = model(longer[:, 6:], past_key_values=out.past_key_values).logits
        whole = model(longer).logits
    assert relative_error(out.logits, expected) <= TOLERANCE
    assert relative_error(torch.cat([out.logits, step], 1), whole) <= TOLERANCE
    with torch.no_grad(), intervene(model, patch(model, "L0H1", tokens=IDS[:1], positions=5)):
        assert relative_error(model(IDS[1:, :5]).logits, output(model, IDS[1:, :5])) == 0
    encoder = build("bert")
    refused = pytest.raises(InputError, match="attends to keys that this run does not have")
    with torch.no_grad(), intervene(encoder, freeze(encoder, tokens=IDS[:1])), refused:
        encoder(IDS[:1, :4])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text", "bert"])
def test_positions_are_columns_under_left_padding(build, family, target):
    model = build(family)
    pad = 3
    mask = torch.ones(2, IDS.shape[1] + pad, dtype=torch.bool)
    mask[1, :pad] = False
    other = torch.cat([torch.tensor([[20, 21, 22, 23, 24, 25, 26, 27, 28]])])
    ids = torch.cat([other, torch.cat([torch.zeros(1, pad, dtype=torch.int64), IDS[:1]], 1)])
    tokens = Tokens(ids, mask, [[""] * ids.shape[1]] * 2, False)
    rows, moved = [1, 4], [1 + pad, 4 + pad]
    expected = output(model, IDS[:1], gate("L0H1", 0.3, target, positions=rows))
    seen = output(model, tokens, gate("L0H1", 0.3, target, positions=moved))[1:, pad:]
    assert relative_error(seen, expected) <= TOLERANCE
    assert relative_error(expected, output(model, IDS[:1])) > 20 * TOLERANCE


def test_generation_from_left_padded_prompts(build):
    """Each sequence as alone, positions moved by its padding."""
    model = build("llama")
    pad = 3
    ids = torch.cat([torch.zeros(1, pad, dtype=torch.int64), IDS[:1]], 1)
    mask = (ids > 0).long()
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with intervene(model, zero(["L0H1", "L1H2"], "k", positions=[2, 7])):
        alone = model.generate(IDS[:1], **options)
    with intervene(model, zero(["L0H1", "L1H2"], "k", positions=[2 + pad, 7 + pad])):
        seen = model.generate(ids, attention_mask=mask, **options)
    assert torch.equal(seen[:, pad:], alone)
    assert not torch.equal(alone, model.generate(IDS[:1], **options))


def test_a_mask_without_columns(build):
    model = build("llama")
    allowed = torch.ones(1, 1, 2, 6).bool()
    with torch.no_grad(), intervene(model, zero("L0H1", positions=5)):
        out = model(IDS[:1, :4], use_cache=True)
        with pytest.raises(InputError, match="does not tell which columns"):
            model(IDS[:1, 4:], attention_mask=allowed, past_key_values=out.past_key_values)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("family", "stack"), [("bert", ""), ("t5", "enc"), ("t5", "cross"), ("bart", "cross")]
)
def test_patching_everything_gives_the_other_runs_output(build, family, stack, target):
    """Encoders and cross-attention: all heads of a stack patched, one sequence for both."""
    model = build(family)
    sites = [site for site in attention_sites(model) if site.stack == stack]
    heads = [str(head) for site in sites for head in site.heads]
    source = OTHER if target != "scores" else IDS  # scores bring a mask along
    decoder = {"decoder_ids": IDS[:, :4]} if family != "bert" else {}
    options = {"tokens": source, "positions": [0, 1, 2, 3]}
    if decoder and stack == "cross" and target in ("q", "scores", "pattern", "z"):
        options["positions"] = None  # the source's decoder reads as many tokens as its encoder
        decoder = {}
    seen = output(model, IDS, patch(model, heads, target, **options), **decoder)
    own = output(model, IDS, **decoder)
    change = relative_error(seen, own)
    assert change > 20 * TOLERANCE if target != "scores" else change <= TOLERANCE


OTHER = torch.tensor([[30, 31, 32, 33, 34, 35], [60, 61, 62, 63, 64, 65]])


@pytest.mark.parametrize("family", ["bert", "llama", "deepseek_v3"])
def test_a_patched_layer_gives_the_other_runs_z(build, family):
    """Put in all q, k and v of a layer: its z is that of the other run, whatever it reads."""
    model = build(family)
    heads = [f"L1H{h}" for h in range(4)]
    whole = [patch(model, heads, target, tokens=OTHER) for target in ("q", "k", "v")]
    seen, expected = [], capture(model, None, OTHER, names_filter="z")["z", 1]
    with intervene(model, whole):
        seen = capture(model, None, IDS, names_filter="z")["z", 1]
    assert (seen - expected).abs().max() <= TOLERANCE * expected.abs().max()


@pytest.mark.parametrize("target", ["z", "v", "k"])
def test_means_in_decoders_leave_padding_out(build, target):
    model = build("t5")
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6], dtype=torch.bool)
    ids = IDS.masked_fill(~mask, 0)
    tokens = Tokens(ids, mask, [[""] * 6] * 2, False)
    made = mean(model, tokens, ["enc.L0H1", "dec.L0H1", "cross.L0H1"], target)
    for stack, kept in (("enc", 4), ("dec", 5), ("cross", 5 if target == "z" else 4)):
        alone = [
            capture(model, None, row, names_filter=target, decoder_ids=shifted)[target, 0, stack]
            for row, shifted in (
                (ids[:1, :4], torch.cat([torch.zeros(1, 1).long(), ids[:1, :4]], 1)),
                (ids[1:], torch.cat([torch.zeros(1, 1).long(), ids[1:, :5]], 1)),
            )
        ]
        assert alone[0].shape[1] == kept
        expected = torch.cat(alone, 1)[0, :, 1].mean(0)
        seen = made.values.tensors[stack, 0][0]
        seen = seen[0 if target == "z" else 1, 0].float()
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-5)


def test_threads_keep_to_themselves(build):
    model = build("llama")
    changes = {
        "zero": zero("L0H1"),
        "freeze": [freeze(model, tokens=OTHER), gate("L1H0", 2.0, "k")],
    }
    expected = {name: output(model, IDS, change) for name, change in changes.items()}
    results, errors = {}, []
    barrier = threading.Barrier(2, timeout=60)

    def work(name):
        try:
            with intervene(model, changes[name]), undisturbed(model), torch.no_grad():
                barrier.wait()
                results[name] = [model(IDS).logits for _ in range(10)]
                barrier.wait()
        except Exception as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(name,)) for name in changes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for name, outputs in results.items():
        assert all(relative_error(out, expected[name]) <= TOLERANCE for out in outputs)
    assert relative_error(expected["zero"], expected["freeze"]) > 20 * TOLERANCE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("family", ["llama", *EAGER_ONLY])
def test_other_dtypes(build, family, dtype):
    if family == "gpt_oss" and dtype == torch.float64:
        pytest.skip("transformers' grouped experts have no float64")
    model = build(family, dtype=dtype)
    own = output(model, IDS)
    for target in TARGETS:
        seen = output(model, IDS, [gate("L0H1", 1.0, target), zero("L1H1", target)])
        assert seen.dtype == dtype
        assert relative_error(seen, own) > 0


class TestGradients:
    @pytest.mark.parametrize("target", TARGETS)
    @pytest.mark.parametrize("family", ["gpt2", "bart"])  # LayerNorm; RMSNorm is float32 only
    def test_of_factors_are_finite_differences(self, build, family, target):
        model = build(family, dtype=torch.float64)
        prefix = "cross." if family == "bart" else ""
        heads = [f"{prefix}L0H1", f"{prefix}L1H3"]
        factor = torch.tensor([0.7, 1.2], dtype=torch.float64, requires_grad=True)

        def loss(values):
            change = gate(heads, values, target, positions=[1, 2, 4])
            return run(model, IDS[:1], change, grad=True).logits.pow(2).mean()

        (gradient,) = torch.autograd.grad(loss(factor), factor)
        step = 1e-5
        for place in (0, 1):
            shift = torch.zeros(2, dtype=torch.float64)
            shift[place] = step
            with torch.no_grad():
                slope = (loss(factor + shift) - loss(factor - shift)) / (2 * step)
            assert gradient[place].item() != 0.0
            # central differences err by O(step²) and by eps / step = 2e-11 of the loss
            assert abs(gradient[place] - slope) <= 1e-7 * max(gradient.abs().max(), 1e-3)

    @pytest.mark.parametrize("target", ["q", "k", "v", "scores", "z"])
    def test_of_vectors(self, build, target):
        model = build("gpt2", dtype=torch.float64)
        width = 3 if target == "scores" else 8
        vector = torch.randn(2, width, dtype=torch.float64, requires_grad=True)

        def output(u):
            return run(model, IDS[:1, :3], add(["L0H1", "L1H2"], u, target), grad=True).logits[
                ..., :5
            ]

        assert torch.autograd.gradcheck(output, vector)

    def test_a_factor_in_training_is_read_anew(self, build):
        model = build("llama")
        factor = torch.ones(2, requires_grad=True)
        change = gate(["L0H1", "L1H1"], factor)
        optimiser = torch.optim.SGD([factor], lr=0.1)
        losses = []
        for _ in range(3):
            loss = run(model, IDS, change, grad=True).logits.pow(2).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        assert losses[0] > losses[1] > losses[2]
