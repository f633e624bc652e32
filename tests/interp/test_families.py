"""Hooked models against the same models unhooked: logits, cache, generation, patterns."""

import pytest
import torch

from headatlas.interp.attach import attach
from headatlas.interp.capture import capture
from headatlas.interp.sites import attention_sites, hook_drift
from headatlas.interp.tokens import Tokens

EAGER_ONLY = ("gpt_oss", "gemma2")  # sinks and softcap, which transformers' SDPA does not have
DECODERS = (
    *("llama", "gpt2", "mistral", "gemma2", "gemma3_text", "qwen3", "phi3", "gpt_neox", "opt"),
    *("gpt_oss", "deepseek_v3"),
)
SEQ2SEQ = ("t5", "bart")
ALL = (*DECODERS, "bert", *SEQ2SEQ)
LENGTH = 24  # three sliding windows

# Two exact implementations sum in different orders: each of the L layers adds an error of a few
# eps relative to its own output, and the residual stream passes earlier ones on. With L <= 6
# attention calls, sums of <= 48 terms (random signs: sqrt(48) ~ 7 roundings) and a factor 4 of
# headroom: 6 * 7 * 4 * eps = 170 eps = 2e-5 of the logits' scale.
TOLERANCE = 170 * torch.finfo(torch.float32).eps


def own_implementation(family):
    return "eager" if family in EAGER_ONLY else "sdpa"


def random_inputs(family, padding, length=LENGTH):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 97, (2, length), generator=generator)
    mask = torch.ones(2, length, dtype=torch.int64)
    if padding == "left":
        mask[0, :7] = 0
    elif padding == "right":
        mask[0, -7:] = 0
    inputs = {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}
    if family in SEQ2SEQ:
        inputs["decoder_input_ids"] = torch.randint(3, 97, (2, 15), generator=generator)
    return inputs


def logits(model, inputs):
    with torch.no_grad():
        output = model(**inputs)
    return output.logits if "logits" in output else output.last_hidden_state


def relative_error(seen, own, where=None):
    scale = own.abs().max()
    gap = (seen - own).abs()
    return ((gap if where is None else gap[where]).max() / scale).item()


def live(inputs, values):
    """Where logits belong to a token: at padded queries implementations differ by design."""
    mask = inputs["attention_mask"].bool()
    return mask if values.shape[:2] == mask.shape else None


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("family", ALL)
def test_hooked_logits_are_the_models_own(tiny, family, padding):
    model = tiny(family, attn=own_implementation(family))
    inputs = random_inputs(family, padding)
    own = logits(model, inputs)
    with attach(model):
        seen = logits(model, inputs)
    assert relative_error(seen, own, live(inputs, own)) <= TOLERANCE
    assert hook_drift(model) <= TOLERANCE
    # A hook that was never called would pass the lines above.
    assert len(attention_sites(model)) == (6 if family in SEQ2SEQ else 2)


@pytest.mark.parametrize("family", ["llama", "bert", "t5", "gemma3_text"])
def test_the_models_own_logits_depend_on_the_mask(tiny, family):
    """The comparison above is not blind: without its padding mask the model says otherwise."""
    model = tiny(family)
    inputs = random_inputs(family, "left")
    own = logits(model, inputs)
    inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
    with attach(model):
        seen = logits(model, inputs)
    assert relative_error(seen, own) > 100 * TOLERANCE


@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("family", DECODERS)
def test_cached_steps(tiny, family, padding):
    model = tiny(family, attn=own_implementation(family))
    inputs = random_inputs(family, padding)

    def run():
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        position = (mask.cumsum(1) - 1).clamp(min=0)
        cache, parts = None, []
        for start, end in ((0, 11), (11, 20), (20, 21), (21, 22), (22, LENGTH)):
            output = model(
                ids[:, start:end],
                attention_mask=mask[:, :end],
                position_ids=position[:, start:end],
                past_key_values=cache,
                use_cache=True,
            )
            cache = output.past_key_values
            parts.append(output.logits)
        return torch.cat(parts, 1)

    with torch.no_grad():
        own = run()
        with attach(model):
            seen = run()
    assert relative_error(seen, own, inputs["attention_mask"].bool()) <= TOLERANCE


@pytest.mark.parametrize("family", [*DECODERS, *SEQ2SEQ])
def test_generated_tokens(tiny, family):
    model = tiny(family, attn=own_implementation(family))
    inputs = random_inputs(family, "left", length=12)
    inputs.pop("decoder_input_ids", None)
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    own = model.generate(**inputs, **options)
    calls = []
    with attach(model, observers=[lambda call: calls.append(call.q.shape[2])]):
        seen = model.generate(**inputs, **options)
    assert torch.equal(seen, own)
    assert calls.count(1) >= 2 * 5  # the steps came through the hook


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2", "mistral"])
@pytest.mark.parametrize("option", ["static", "beams"])
def test_other_ways_to_generate(tiny, family, option):
    model = tiny(family)
    inputs = random_inputs(family, "left", length=12)
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    if option == "static":
        options |= {"cache_implementation": "static", "disable_compile": True}
    else:
        options |= {"num_beams": 3}
    own = model.generate(**inputs, **options)
    with attach(model):
        seen = model.generate(**inputs, **options)
    assert torch.equal(seen, own)


@pytest.mark.parametrize(
    ("family", "padding"),
    [
        (family, padding)
        for family in ALL
        for padding in ("none", "left", "right")
        if (family, padding) != ("bart", "left")  # refused: its positions cannot be shifted
    ],
)
def test_captured_patterns_are_eager_attentions(tiny, family, padding):
    model = tiny(family, attn="eager")
    inputs = random_inputs(family, padding)
    mask = inputs["attention_mask"].bool()
    places = {}
    if padding == "left" and family in ("gpt2", "bert"):  # they count positions from the padding
        places["position_ids"] = (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        output = model(**inputs, **places, output_attentions=True)
    tokens = Tokens(inputs["input_ids"], mask, [[""] * LENGTH] * 2, False)
    cache = capture(
        model,
        None,
        tokens,
        names_filter="pattern",
        decoder_ids=inputs.get("decoder_input_ids"),
    )
    if family in SEQ2SEQ:
        expected = {
            "enc.": output.encoder_attentions,
            "dec.": output.decoder_attentions,
            "cross.": output.cross_attentions,
        }
    else:
        expected = {"": output.attentions}
    for prefix, attentions in expected.items():
        assert len(attentions) == 2
        for layer, own in enumerate(attentions):
            seen = cache[f"{prefix}blocks.{layer}.attn.hook_pattern"]
            gap = (seen - own).abs().amax((1, 3))
            gap = gap[mask] if gap.shape == mask.shape and prefix in ("", "enc.") else gap
            # as above, times the spread of pattern entries (at most 1) over inputs of scale ~ 10
            assert gap.max().item() <= 10 * TOLERANCE


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "t5"])
def test_other_dtypes(tiny, family, dtype):
    if family == "gpt_oss" and dtype == torch.float64:
        pytest.skip("transformers' grouped experts have no float64")
    model = tiny(family, attn=own_implementation(family), dtype=dtype)
    inputs = random_inputs(family, "none")
    own = logits(model, inputs)
    with attach(model):
        seen = logits(model, inputs)
    assert seen.dtype == own.dtype
    # Every layer rounds to the dtype, and eager softmax is float32 at best.
    eps = torch.finfo(dtype).eps
    eps = max(eps, torch.finfo(torch.float32).eps) if family in EAGER_ONLY else eps
    assert relative_error(seen, own) <= 170 * eps
