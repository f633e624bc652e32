"""The report of a check: it holds where a model is seen as it is, and each line can fail."""

import functools

import pytest
import torch
from torch import nn

import headatlas as ha
from headatlas.interp import switch
from headatlas.interp.attention_call import AttentionCall
from headatlas.interp.doctor.checks import CHECKS
from headatlas.interp.doctor.look import look
from headatlas.interp.doctor.output import Output, gap
from headatlas.interp.doctor.report import CheckReport, Finding
from headatlas.interp.doctor.runs import Runs
from headatlas.interp.errors import InputError
from headatlas.interp.sites import Site, attention_sites, check_model
from headatlas.kernels.api import Mask, Scores

FAMILIES = ("llama", "gpt2", "mistral", "gemma2", "gpt_oss", "bert", "t5")
EAGER_ONLY = ("gpt_oss", "gemma2")  # sinks and softcap, which transformers' SDPA does not have
ONE = {"num_hidden_layers": 1}
SURVEYED = 8  # tokens that the survey runs; what is wrong with longer texts only, it cannot see


def far_off(finding):
    return finding.measured > 100 * finding.limit


def failing(report):
    return [finding.name for finding in report.failed]


@pytest.fixture(scope="module")
def checked(tiny):
    """`checked("llama")`: the report of a model that nothing is wrong with, made once."""

    @functools.cache
    def made(family, dtype):
        attn = "eager" if family in EAGER_ONLY else "sdpa"
        return ha.check(tiny(family, attn=attn, dtype=dtype))

    return lambda family, dtype=torch.float32: made(family, dtype)


@pytest.mark.parametrize(
    ("family", "dtype"),
    [(family, torch.float32) for family in FAMILIES]
    + [(family, torch.bfloat16) for family in ("llama", "gemma2", "gpt_oss", "bert")],
)
def test_all_holds(checked, family, dtype):
    report = checked(family, dtype)
    assert report.ok, report
    assert [finding.name for finding in report.findings] == list(CHECKS)
    outcomes = {finding.name: finding.outcome for finding in report.findings}
    expected = dict.fromkeys(CHECKS, "holds") | {"weights": "told"}
    if family == "bert":
        expected["key-value cache"] = "skipped"
    assert outcomes == expected
    assert report["logits"].limit == max(torch.finfo(dtype).eps, 2**-23) ** 0.5
    if family in ("mistral", "gemma2", "gpt_oss"):
        assert "72 tokens, beyond the window of 8" in report["logits"].detail


class TestDetails:
    def test_calls_are_counted_by_stack(self, checked):
        detail = checked("t5")["attention calls"].detail
        assert detail.startswith("6 modules, each called once, in order: enc: 2 of 4 heads")
        assert "dec: 2 of 4 heads, 4 KV heads, d_head 8, causal" in detail
        assert "cross: 2 of 4 heads, 4 KV heads, d_head 8, not causal" in detail

    def test_widths_of_latent_attention(self, tiny):
        detail = ha.check(tiny("deepseek_v3", **ONE))["attention calls"].detail
        assert "4 heads, 4 KV heads, d_head 12, d_value 6, causal" in detail

    def test_a_window_out_of_reach_is_said(self, tiny):
        report = ha.check(tiny("mistral", sliding_window=4096, **ONE))
        assert "on 64 tokens, not beyond the window of 4,096" in report["logits"].detail

    def test_padding_that_cannot_be_told_is_no_pass(self, tiny):
        report = ha.check(tiny("bart", encoder_layers=1, decoder_layers=1))
        assert report.ok
        assert report["left padding"].outcome == "skipped"
        assert report["left padding"].detail.startswith("not possible: BartFor")
        assert report["right padding"].outcome == "holds"

    def test_weights_are_counted(self, checked):
        exact = checked("llama")["weights"].detail
        assert exact == (
            "of 2 modules: W_Q exact at 2; W_K exact at 2; W_V exact at 2; W_O exact at 2"
        )
        normed = checked("gemma2")["weights"].detail
        assert "W_V exact at 2; W_O exact at 0, up to a norm or a bound at 2 (exact for" in normed

    def test_the_text_is_the_tokenizers(self):
        loaded, tokenizer = ha.load("tiny")
        model = check_model(loaded)
        runs = Runs(model, attention_sites(model), tokenizer)
        text = tokenizer.decode(runs.text[0], skip_special_tokens=True)
        assert runs.text.shape == (1, 64)
        assert len({word for word in text.split() if word.isalpha()}) > 15
        with pytest.raises(InputError, match="what the tokenizer gives must lie in 0"):
            ha.check(small_vocabulary(model), tokenizer)

    def test_progress_is_told(self, tiny):
        told = []
        ha.check(tiny("llama", **ONE), progress=lambda *step: told.append(step))
        assert told == [("check", done, len(CHECKS)) for done in range(len(CHECKS))]


def small_vocabulary(model):
    config = type(model.config)(**{**model.config.to_dict(), "vocab_size": 200})
    return type(model)(config).eval()


def with_attention(model, change):
    """The model with the class of its attention modules derived by `change`."""
    for module in list(model.modules()):
        if hasattr(module, "is_causal") and next(module.children(), None) is not None:
            module.__class__ = change(type(module))
    return model


def beyond(hidden_states):
    return hidden_states.shape[1] > SURVEYED


def twice(base):
    class Twice(base):
        def forward(self, hidden_states, *args, **kwargs):
            if beyond(hidden_states):
                super().forward(hidden_states, *args, **kwargs)
            return super().forward(hidden_states, *args, **kwargs)

    return Twice


def seeing_later_keys(base):
    class Both(base):
        def forward(self, hidden_states, *args, **kwargs):
            self.is_causal = not beyond(hidden_states)
            return super().forward(hidden_states, *args, **{**kwargs, "attention_mask": None})

    return Both


def changed_by_hooks(base):
    class Scaled(base):
        def forward(self, hidden_states, *args, **kwargs):
            output, weights = super().forward(hidden_states, *args, **kwargs)
            hooked = self.config._attn_implementation == "headatlas"
            return output * (0.5 if hooked and beyond(hidden_states) else 1.0), weights

    return Scaled


def blind_to_padding(base):
    class Blind(base):
        def forward(self, hidden_states, *args, **kwargs):
            return super().forward(hidden_states, *args, **{**kwargs, "attention_mask": None})

    return Blind


def blind_to_padding_of_long_texts(base):
    class Blind(base):
        def forward(self, hidden_states, *args, **kwargs):
            if hidden_states.shape[1] > SURVEYED + 1:
                kwargs["attention_mask"] = None
            return super().forward(hidden_states, *args, **kwargs)

    return Blind


def of_infinite_scores(base):
    class Infinite(base):
        def forward(self, hidden_states, *args, **kwargs):
            before, self.scaling = self.scaling, float("inf")
            if not beyond(hidden_states):
                self.scaling = before
            try:
                return super().forward(hidden_states, *args, **kwargs)
            finally:
                self.scaling = before

    return Infinite


def adding_to_z(base):
    class Adding(base):
        def forward(self, hidden_states, *args, **kwargs):
            add = 0.1 * beyond(hidden_states)
            hook = self.o_proj.register_forward_pre_hook(lambda module, given: (given[0] + add,))
            try:
                return super().forward(hidden_states, *args, **kwargs)
            finally:
                hook.remove()

    return Adding


def of_a_wrong_cache(base):
    class Forgetful(base):
        def forward(self, hidden_states, *args, cache=None, **kwargs):
            output = super().forward(hidden_states, *args, cache=cache, **kwargs)
            if cache is not None and beyond(hidden_states):
                cache.layers[self.layer_idx].values.mul_(0.5)
            return output

    return Forgetful


def of_other_attentions(base):
    class Telling(base):
        def forward(self, *args, **kwargs):
            output, weights = super().forward(*args, **kwargs)
            return output, weights if weights is None else weights.flip(-1)

    return Telling


def using_its_weights(base):
    class Mixing(base):
        def forward(self, hidden_states, *args, **kwargs):
            kwargs["output_attentions"] = True
            output, weights = super().forward(hidden_states, *args, **kwargs)
            more = weights.mean(1) @ hidden_states
            return output + (more if beyond(hidden_states) else 0), weights

    return Mixing


class TestEachLineFails:
    def test_a_module_that_attends_twice(self, tiny):
        report = ha.check(with_attention(tiny("llama", **ONE), twice))
        assert failing(report)[0] == "attention calls"
        assert "64 tokens: model.layers.0.self_attn 2 times" in report["attention calls"].detail

    def test_a_causal_module_that_sees_later_keys(self, tiny):
        report = ha.check(with_attention(tiny("llama", **ONE), seeing_later_keys))
        assert {"attention calls", "rows of patterns"} <= {*failing(report)}
        assert "not causal, on 64 tokens; surveyed: 4 heads" in report["attention calls"].detail

    def test_attention_that_hooks_change(self, tiny):
        report = ha.check(with_attention(tiny("llama", **ONE), changed_by_hooks))
        assert failing(report) == ["logits", "key-value cache"]  # a step is no long text
        assert far_off(report["logits"])

    def test_weight_on_padding(self, tiny):
        report = ha.check(with_attention(tiny("llama", **ONE), blind_to_padding))
        assert failing(report) == ["rows of patterns", "own attentions"]  # no mask: eager sees all
        assert (report["rows of patterns"].measured or 0) > 0.01
        assert report["rows of patterns"].limit == 0
        assert report["left padding"].outcome == "skipped"  # no position makes up for it

    def test_rows_without_a_sum(self, tiny):
        report = ha.check(with_attention(tiny("llama", **ONE), of_infinite_scores))
        assert {"logits", "rows of patterns", "z", "own attentions", "edits"} <= {*failing(report)}
        assert report["rows of patterns"].measured is None

    def test_something_added_to_z(self, tiny):
        report = ha.check(with_attention(tiny("llama", **ONE), adding_to_z))
        assert failing(report) == ["z", "key-value cache"]  # nothing is added in a step
        assert "what the output projection gets" in report["z"].detail

    @pytest.mark.parametrize(
        ("family", "expected"),
        [
            ("llama", ["rows of patterns", "left padding", "own attentions"]),
            ("bert", ["rows of patterns", "left padding", "right padding"]),
        ],
    )
    def test_padding_that_changes_a_sequence(self, tiny, family, expected):
        report = ha.check(with_attention(tiny(family, **ONE), blind_to_padding_of_long_texts))
        assert failing(report) == expected

    def test_a_wrong_cache(self, tiny):
        report = ha.check(with_attention(tiny("llama", **ONE), of_a_wrong_cache))
        assert failing(report) == ["key-value cache"]
        told = report["key-value cache"]
        assert "the model's own steps against its own run: " in told.detail
        assert far_off(told)

    def test_other_attentions_than_it_uses(self, tiny):
        report = ha.check(with_attention(tiny("llama", **ONE), of_other_attentions))
        assert failing(report) == ["own attentions"]

    def test_attentions_that_are_not_offered(self, tiny):
        def silent(base):
            class Silent(base):
                def forward(self, *args, **kwargs):
                    return super().forward(*args, **kwargs)[0], None

            return Silent

        report = ha.check(with_attention(tiny("llama", **ONE), silent))
        assert report.ok
        assert report["own attentions"].outcome == "skipped"
        assert report["own attentions"].detail.startswith("not offered: output_attentions=True")

    def test_an_edit_that_does_not_reach_everything(self, tiny):
        report = ha.check(with_attention(tiny("llama", attn="eager", **ONE), using_its_weights))
        assert failing(report) == ["key-value cache", "edits"]  # nor is there in a step

    def test_a_forward_that_breaks(self, tiny):
        def breaking(base):
            class Breaking(base):
                def forward(self, hidden_states, *args, **kwargs):
                    if beyond(hidden_states):
                        raise RuntimeError("too long")
                    return super().forward(hidden_states, *args, **kwargs)

            return Breaking

        report = ha.check(with_attention(tiny("llama", **ONE), breaking))
        assert report["logits"].detail == "it could not run: RuntimeError: too long"
        assert report["own attentions"].detail == "not offered: RuntimeError: too long"
        left = {finding.name for finding in report.findings} - {*failing(report)}
        assert left == {"own attentions", "weights"}  # these are read on three tokens


def call(n=3):
    """A causal call of two heads whose pattern the caller may spoil."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, n, 4)
    made = AttentionCall(
        Site("a", "", 0, 2, 2, 4, 4, causal=True), q, k, v,
        Mask(causal=True, q_pos=torch.arange(n)[None]), Scores(),
    )  # fmt: skip
    made.compute()
    return made


class TestLook:
    def test_of_a_right_call(self):
        seen = look(call())
        assert seen.as_surveyed
        assert seen.hidden == 0
        assert seen.least == 0
        assert max(seen.rows, seen.z) < 1e-6

    @pytest.mark.parametrize(
        ("place", "change", "fault"),
        [((2, 1), 0.25, "rows"), ((0, 2), 0.25, "hidden"), ((2, 0), -2.0, "least")],
    )
    def test_of_a_spoilt_pattern(self, place, change, fault):
        spoilt = call()
        spoilt._pattern = spoilt.pattern.clone()
        spoilt._pattern[0, 1, place[0], place[1]] += change
        seen = look(spoilt)
        assert seen.rows == pytest.approx(abs(change), abs=1e-6)
        assert seen.hidden == (0.25 if fault == "hidden" else 0)
        assert (seen.least < -0.9) == (fault == "least")
        assert seen.head == 1
        assert seen.z > 0.01

    def test_of_a_spoilt_z(self):
        spoilt = call()
        spoilt._z = spoilt.z.clone()
        spoilt._z[0, 0, 1, 2] += 1
        seen = look(spoilt)
        assert seen.head == 0
        assert seen.z == pytest.approx((1 / spoilt.v[0, 0].abs().max()).item(), rel=1e-5)

    def test_padding_counts_as_hidden(self):
        mask = torch.tensor([[False, True, True]])
        seen = look(call(), (mask, mask))
        assert seen.hidden == pytest.approx(call().pattern[0, :, 1:, 0].max().item())


class TestGap:
    def test_tokens_of_other_experts_are_left_out(self):
        own = torch.randn(1, 40, 3)
        values = own.clone()
        values[0, 7] += 5
        chosen = torch.zeros(40, 2, dtype=torch.int64)
        other = chosen.clone()
        other[7, 1] = 1
        assert gap(Output(values, (other,)), Output(own, (chosen,))) == (0, 1)
        assert gap(Output(values, (chosen,)), Output(own, (chosen,)))[0] > 0.1

    def test_but_not_many(self):
        own, chosen = torch.ones(1, 40, 3), torch.zeros(40, 2, dtype=torch.int64)
        other = chosen.clone()
        other[:5] = 1
        values = own.clone()
        values[:, :5] = 2
        off, out = gap(Output(values, (other,)), Output(own, (chosen,)))
        assert out == 0
        assert off == pytest.approx((5 / 40) ** 0.5)


class TestRefusals:
    def test_a_model_that_cannot_be_hooked(self, tiny):
        model = tiny("llama")
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight[0, 0] = float("nan")
        report = ha.check(model)
        assert failing(report) == ["attention calls"]
        assert report.failed[0].detail.startswith("the weight model.layers.0.mlp.up_proj.weight")
        skipped = {f.outcome for f in report.findings[1:]}
        assert skipped == {"skipped"}
        assert [finding.name for finding in report.findings] == list(CHECKS)

    def test_no_model(self):
        with pytest.raises(InputError, match="expected a transformers PreTrainedModel; got Linear"):
            ha.check(nn.Linear(2, 2))

    def test_inside_a_block(self, tiny):
        model = tiny("llama")
        with ha.attach(model), pytest.raises(InputError, match="inside an attach block"):
            ha.check(model)


@pytest.mark.parametrize("change", [None, of_other_attentions])
def test_the_model_is_as_it_was(tiny, change):
    model = tiny("llama", **ONE).train()
    if change is not None:
        with_attention(model, change)
    names, state = sorted(model.__dict__), torch.get_rng_state()
    report = ha.check(model)
    assert report.ok == (change is None)
    assert model.config._attn_implementation == "sdpa"
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())
    assert sorted(model.__dict__) == names
    assert torch.equal(torch.get_rng_state(), state)
    assert switch._HELD == {}
    assert model(torch.tensor([[3, 4]]), output_attentions=True).attentions is not None


@pytest.fixture(scope="module")
def report(tiny):
    return ha.check(with_attention(tiny("llama", **ONE), of_other_attentions))


class TestReport:
    def test_json_and_back(self, report, tmp_path):
        assert CheckReport.from_json(report.to_json()) == report
        path = report.save(tmp_path / "report.json")
        assert CheckReport.load(path) == report
        with pytest.raises(InputError, match=r"written as \.json"):
            report.save(tmp_path / "report.txt")

    def test_of_another_schema(self, report):
        text = report.to_json().replace('"schema_version": 1', '"schema_version": 7')
        with pytest.raises(InputError, match="schema 7; this version reads 1"):
            CheckReport.from_json(text)

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 1}'])
    def test_of_something_else(self, text):
        with pytest.raises(InputError, match="not a report of a check"):
            CheckReport.from_json(text)

    def test_as_a_table(self, report, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        verdict, *rows = repr(report).splitlines()
        assert verdict == (
            "LlamaForCausalLM, sdpa, float32: NOT seen faithfully (8 checks hold, 1 fails)"
        )
        assert all(len(row) <= 80 for row in rows)
        assert sum("FAILS" in row for row in rows) == 1

    def test_findings_by_name(self, report):
        assert report["edits"].outcome == "holds"
        with pytest.raises(InputError, match="no check is called 'mask'; there are attention ca"):
            report["mask"]

    @pytest.mark.parametrize("changes", [{"outcome": "fine"}, {"limit": "1"}, {"detail": None}])
    def test_values_that_make_no_finding(self, as_users_call, changes):
        with pytest.raises(InputError):
            Finding(**{"name": "z", "outcome": "holds", "detail": "", **changes})
