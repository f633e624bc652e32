"""Models of images and sounds: sites, captures, edits, weights, removal, and where tokens stand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import headatlas as ha
from headatlas.interp.errors import InputError
from headatlas.interp.signal_prompts import pink_noise
from headatlas.interp.signals import read_signal

from .signal_models import MODELS, WINDOWED, build, signals

ALONE = [name for name in MODELS if name != "whisper"]


@pytest.fixture(scope="module", params=ALONE)
def made(request):
    return request.param, build(request.param)


class TestModels:
    def test_captures_are_the_models_own_attentions(self, made):
        name, model = made
        x = signals(name, 3)
        cache = ha.capture(model, None, x)
        twin = build(name, attn_implementation="eager")
        own = twin(**{model.main_input_name: x}, output_attentions=True).attentions
        for layer in range(2):
            pattern = cache["pattern", layer]
            assert pattern.shape == (3, 4, *[MODELS[name][4]] * 2)
            torch.testing.assert_close(pattern, own[layer], rtol=1e-4, atol=1e-6)
        assert cache.mask.shape == cache.token_ids.shape == (3, MODELS[name][4])
        assert cache.mask.all()
        assert len(cache.tokens) == 3

    def test_tokens_stand_where_they_do(self, made):
        name, model = made
        n, grid, outside = MODELS[name][4:]
        cells = ha.token_cells(model, signals(name))
        if grid is None:
            assert (cells == -1).all()
            assert cells.shape == (n, 2)
            return
        inside = np.setdiff1d(np.arange(n), outside)
        assert (cells[outside] == -1).all()
        rows, columns = np.divmod(np.arange(math.prod(grid)), grid[1])
        if name == "spectrogram":  # whose patches are laid out mel band by mel band
            columns, rows = np.divmod(np.arange(math.prod(grid)), grid[0])
        assert np.array_equal(cells[inside], np.stack([rows, columns], 1))

    def test_one_patch_reaches_its_token_alone(self, made):
        """The cells once more, by another way: a changed patch and what the first layer reads."""
        name, model = made
        *_, grid, _ = MODELS[name]
        if grid is None or name == "spectrogram":  # whose patches overlap
            return
        x = signals(name, 1)
        cells = ha.token_cells(model, x)
        other = x.clone()
        other[..., 8:16, 16:24] = 0  # the patch in row 1, column 2
        first, second = (ha.capture(model, None, one)["v", 0] for one in (x, other))
        moved = (first != second).flatten(2).any(-1)[0].numpy()
        assert np.array_equal(np.flatnonzero(moved), np.flatnonzero((cells == (1, 2)).all(1)))

    def test_edits_and_runs(self, made):
        name, model = made
        x, zero = signals(name), ha.interventions.zero("L0H1")
        plain, same, other = (
            ha.run(model, x, edit)[0] for edit in ([], ha.interventions.gate("L0H1", 1.0), zero)
        )
        torch.testing.assert_close(same, plain)
        torch.testing.assert_close(plain, model(**{model.main_input_name: x})[0])
        assert not torch.equal(other, plain)
        with ha.intervene(model, zero):
            torch.testing.assert_close(model(**{model.main_input_name: x})[0], other)
        mean = ha.interventions.mean(model, signals(name, 4), "L1H0")
        assert not torch.equal(ha.run(model, x, mean)[0], plain)

    def test_check(self, made):
        report = ha.check(made[1])
        assert report.ok, report
        assert report["own attentions"].outcome == "holds"
        assert "without padding" in report["left padding"].detail

    def test_weights_and_removal(self, made):
        name, model = made
        found = ha.head_weights(model)
        for one in found.values():
            assert one.v.weight is not None
            assert not one.o.inexact
            assert (one.q.weight is None) == (name == "rotary")
        if name == "rotary":
            with pytest.raises(InputError, match="cannot be cut out"):
                ha.remove_heads(model, ["L0H1"])
            return
        x = signals(name)
        smaller = ha.remove_heads(model, ["L0H1", "L1H2"])
        less = ha.run(model, x, ha.interventions.zero(["L0H1", "L1H2"]))[0]
        torch.testing.assert_close(
            smaller(**{model.main_input_name: x})[0], less, rtol=1e-4, atol=1e-5
        )

    def test_statistics(self, made):
        name, model = made
        table = ha.head_statistics(model, None, signals(name))
        assert len(table) == 8
        assert (table["sink"] <= table["top_weight"] + 1e-6).all()


@pytest.fixture(scope="module")
def model():
    return build("whisper")


class TestWhisper:
    """An encoder of sounds and a decoder of text."""

    def test_the_whole_model_takes_decoder_ids(self, model):
        x, ids = signals("whisper"), torch.tensor([[1, 5, 6], [1, 7, 8]])
        cache = ha.capture(model, None, x, decoder_ids=ids)
        own = build("whisper", attn_implementation="eager")(
            input_features=x, decoder_input_ids=ids, output_attentions=True
        )
        for stack, theirs in (
            ("enc", own.encoder_attentions), ("dec", own.decoder_attentions),
            ("cross", own.cross_attentions),
        ):  # fmt: skip
            for layer in range(2):
                pattern = cache["pattern", layer, stack]
                torch.testing.assert_close(pattern, theirs[layer], rtol=1e-4, atol=1e-6)
        assert ha.check(model).ok

    def test_without_them_it_is_refused(self, model):
        with pytest.raises(InputError, match=r"decoder_input_ids.*get_encoder"):
            ha.capture(model, None, signals("whisper"))

    def test_ids_of_the_decoder_come_with_the_sounds(self, model):
        given = {
            "input_features": signals("whisper"),
            "decoder_input_ids": torch.tensor([[1, 5]] * 2),
        }
        whole = ha.capture(model, None, given)
        apart = ha.capture(
            model, None, given["input_features"], decoder_ids=given["decoder_input_ids"]
        )
        torch.testing.assert_close(whole["z", 1, "cross"], apart["z", 1, "cross"])
        assert len(ha.head_statistics(model, None, given)) == 24
        mean = ha.interventions.mean(model, given, "cross.L1H2")
        assert ha.run(model, given, mean).logits.shape == (2, 2, 97)

    def test_its_encoder_alone(self, model):
        encoder = model.get_encoder()
        cache = ha.capture(encoder, None, signals("whisper"))
        assert cache["pattern", 0].shape == (2, 4, 24, 24)
        with pytest.raises(InputError, match="no decoder"):
            ha.capture(encoder, None, signals("whisper"), decoder_ids=torch.tensor([[1], [1]]))


class TestOtherSizes:
    def test_a_larger_image(self):
        """Position embeddings are stretched where the model offers it."""
        model = build("vit")
        cells = ha.token_cells(model, torch.zeros(1, 3, 48, 32))
        assert cells.max(0).tolist() == [5, 3]
        assert ha.capture(model, None, torch.zeros(2, 3, 48, 32))["pattern", 1].shape[-1] == 25

    def test_narrow_dtypes(self):
        model = build("vit").to(torch.bfloat16)
        assert ha.token_cells(model, torch.zeros(1, 3, 32, 32)).max(0).tolist() == [3, 3]
        assert ha.capture(model, None, signals("vit"))["pattern", 0].dtype == torch.bfloat16

    def test_in_float64(self):
        model = build("vit").double()
        assert ha.check(model).ok


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("swin", "8 parts of 2 inputs"),
            ("sam", "parts of the tokens, such as windows"),
            ("pooled keys", "rows and columns are not tokens"),
            ("side by side", "1 parts of 2 inputs"),
            ("masked at random", "another output each time it runs"),
        ],
    )
    def test_what_attends_from_no_token(self, name, why):
        assert name in WINDOWED
        with pytest.raises(InputError, match=why):
            ha.attention_sites(build(name, attn_implementation="eager"))

    def test_other_inputs(self):
        model, x = build("vit"), signals("vit")
        for wrong, why in (
            ("a cat", "got str"),
            (torch.tensor([[1, 2]]), r"int64 \(1, 2\)"),
            ({"pixel_values": x, "labels": 1}, "holds labels besides"),
            ({"pixel_values": x, "pixel_mask": torch.tensor([[1, 0]])}, "holds pixel_mask"),
            ({}, "Got NoneType"),
            (x * math.nan, "not finite"),
            (x[:0], "empty"),
        ):
            with pytest.raises(InputError, match=why):
                ha.capture(model, None, wrong)
        with pytest.raises(InputError, match="no decoder"):
            ha.capture(model, None, x, decoder_ids=torch.tensor([[1]]))

    def test_a_full_mask_is_none(self):
        x = signals("vit")
        given = {"pixel_values": x, "pixel_mask": torch.ones(2, 32, 32, dtype=torch.int64)}
        assert ha.capture(build("vit"), None, given)["pattern", 0].shape[0] == 2

    def test_a_shape_that_the_model_does_not_take(self):
        with pytest.raises(InputError, match=r"could not read pixel_values \[1, 3, 4, 4\]"):
            ha.capture(build("registers"), None, torch.zeros(2, 3, 4, 4))

    def test_models_of_text(self, tiny):
        with pytest.raises(InputError, match="neither images nor sounds"):
            ha.token_cells(tiny("llama"), torch.zeros(1, 3, 8, 8))

    def test_models_of_several_modalities(self):
        from transformers import CLIPConfig, CLIPModel

        tower = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        model = CLIPModel(
            CLIPConfig(
                text_config={**tower, "intermediate_size": 16, "vocab_size": 50},
                vision_config={**tower, "intermediate_size": 16, "image_size": 8, "patch_size": 4},
            )
        ).eval()
        with pytest.raises(InputError, match=r"can be passed alone: text_model, vision_model"):
            ha.attention_sites(model)
        assert len(ha.attention_sites(model.vision_model)) == 1

    def test_losses_on_text(self):
        model = build("vit")
        for run, why in (
            (lambda: ha.ablate_heads(model, None, ["L0H0"]), "predicts no next token"),
            (
                lambda: ha.read_documents(signals("vit"), model, None, n=2, seq_len=16),
                "reads pixel_values, not text",
            ),
            (lambda: ha.composition(model), "reads pixel_values and has no token embeddings"),
            (lambda: ha.capture(model, None, ["a cat"]), "reads pixel_values: .* got list"),
        ):
            with pytest.raises(InputError, match=why):
                run()


ANYTHING = st.one_of(
    st.none(),
    st.text(),
    st.lists(st.floats()),
    st.dictionaries(st.text(), st.integers()),
    *(
        arrays.arrays(kind, arrays.array_shapes(max_dims=5, max_side=3)).map(torch.from_numpy)
        for kind in (np.float32, np.int64)
    ),
)


@given(ANYTHING)
@settings(deadline=None, max_examples=60)
def test_whatever_is_given_is_read_or_refused(value):
    try:
        read = read_signal(_VIT, value)
    except InputError:
        return
    assert read.values.shape[0] >= 1
    assert read.values.isfinite().all()


_VIT = build("vit")


class TestPinkNoise:
    @pytest.mark.parametrize("shape", [(4, 2, 64, 64), (4, 4096), (4, 1, 4096)])
    def test_power_falls_as_it_should(self, shape):
        """As 1/f along a line: in a plane of 1/f² the sum over the other axis takes one away."""
        made = pink_noise(shape, 0)
        spectrum = torch.fft.rfft(made.double(), dim=-1).abs() ** 2
        power = spectrum.flatten(0, -2).mean(0)[2 : shape[-1] // 4]
        frequency = torch.arange(2, 2 + len(power), dtype=torch.float64)
        slope = np.polyfit(frequency.log().numpy(), power.log().numpy(), 1)[0]
        assert abs(slope + 1) < 0.25
        assert torch.allclose(made.flatten(1).std(1), torch.ones(4), atol=1e-3)
        assert made.flatten(1).mean(1).abs().max() < 0.1

    def test_it_is_the_same_each_time(self):
        assert torch.equal(pink_noise((2, 1, 8, 8), 3), pink_noise((2, 1, 8, 8), 3))
        assert not torch.equal(pink_noise((2, 1, 8, 8), 3), pink_noise((2, 1, 8, 8), 4))
