"""Reading a plan: what is wrong is named, and nothing but an InputError ever comes out."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headatlas as ha
from headatlas.circuits.plans.plan_file import parse_plan

from ...test_readme import blocks

MODELS = 'models = [{name = "tiny"}]\n'
HERE = Path("/plans")


def test_units_are_all_combinations_in_the_order_of_the_plan():
    plan = parse_plan(
        'lengths = [32, 64]\n[[models]]\nname = "run"\ncheckpoints = ["a", "b"]\n'
        '[[models]]\nname = "tiny"\n[[prompts]]\nname = "x"\n[[prompts]]\nname = "y"\nseed = 3\n',
        HERE,
    )
    assert len(plan.units) == (2 + 1) * 2 * 2
    assert [str(unit) for unit in plan.units[:3]] == [
        "run@a · x · 32", "run@a · x · 64", "run@a · y · 32",
    ]  # fmt: skip
    assert len({unit.folder for unit in plan.units}) == len(plan.units)
    assert plan.path("book.txt") == HERE / "book.txt"


def test_the_hash_follows_the_content_and_not_the_writing_or_the_place():
    one = parse_plan(MODELS + "lengths = [32]", HERE)
    assert one.sha256 == parse_plan("lengths=[32] # short\n" + MODELS, Path("/other")).sha256
    assert one.sha256 != parse_plan(MODELS + "lengths = [33]", HERE).sha256


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("lengths = [32]", "models is missing; give a table [[models]] with a name."),
        ("models = []", "models is a list, at least one entry; got []."),
        ("models = [3]", "models[0] is a table with name, checkpoints; got 3."),
        ("models = [{}]", "models[0].name is missing"),
        ('models = [{name = "a", size = 3}]', "models[0].size is unknown; allowed: name, checkpo"),
        (MODELS + "lengths = [8]", "lengths[0] is a whole number of at least 16"),
        (MODELS + "lengths = [32, 32]", "lengths holds 32 twice"),
        (MODELS + "lengths = 32", "lengths is a list, at least one entry; got 32."),
        (MODELS + "lengths = [true]", "lengths[0] is a whole number of at least 16"),
        (MODELS + "prompts = [{count = 3}]", "prompts[0].count is a whole number of at least 16"),
        (MODELS + "prompts = [{}, {}]", "prompts holds 'made' twice"),
        (MODELS + 'kinds = ["indcution"]', "unknown kind indcution; known: previous_token"),
        (MODELS + 'kinds = ["coreference"]', "kinds between words are not part of plans"),
        (MODELS + 'ablations = ["zero"]', "the evidence rests on mean ablation"),
        (MODELS + 'ablations = ["nul"]', "ablations[0] is one of zero, mean, resample; got 'nul'"),
        (MODELS + 'dtype = "int8"', "dtype is one of float32, bfloat16, float16; got 'int8'."),
        (MODELS + 'device = "gpu"', "device is such as cpu or cuda:0; got 'gpu'."),
        (MODELS + "batch_tokens = 0", "batch_tokens is a whole number of at least 1"),
        (MODELS + "colour = 1", "colour is unknown; allowed: models, prompts, lengths"),
        ("models = [", "is not valid TOML"),
        (
            MODELS + 'kinds = ["induction"]\nprompts = [{text = "a.txt"}]',
            "'a.txt' would go unread",
        ),
    ],
)
def test_what_is_wrong_is_named_with_what_is_allowed(text, told):
    with pytest.raises(ha.InputError) as refused:
        parse_plan(text, HERE, "p.toml")
    assert told in str(refused.value)
    assert str(refused.value).startswith("'p.toml'")


KEYS = st.sampled_from(
    ["models", "prompts", "lengths", "kinds", "ablations", "dtype", "device", "name", "count", "x"]
)
VALUES = st.recursive(
    st.one_of(st.integers(), st.booleans(), st.sampled_from(['"tiny"', '"mean"', "1e9", "nan"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda xs: "[" + ", ".join(map(_toml, xs)) + "]"),
        st.dictionaries(KEYS, inner, max_size=3).map(
            lambda d: "{" + ", ".join(f"{k} = {_toml(v)}" for k, v in d.items()) + "}"
        ),
    ),
    max_leaves=6,
)


def _toml(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


@settings(max_examples=150, deadline=None)
@given(st.one_of(
    st.text(),
    st.dictionaries(KEYS, VALUES).map(
        lambda d: "\n".join(f"{k} = {_toml(v)}" for k, v in d.items())
    ),
    st.dictionaries(KEYS, VALUES).map(
        lambda d: MODELS + "\n".join(f"{k} = {_toml(v)}" for k, v in d.items() if k != "models")
    ),
))  # fmt: skip
def test_any_text_is_a_plan_or_is_refused(text):
    try:
        plan = parse_plan(text, HERE)
    except ha.InputError:
        return
    assert plan.units


def test_the_plan_of_the_page_is_one():
    page = Path(__file__).parents[3] / "docs" / "sweeps.md"
    (text,) = blocks("toml", page)
    assert len(parse_plan(text, HERE).units) == 3 * 2 * 2


@settings(max_examples=50, deadline=None)
@given(st.binary())
def test_any_file_is_a_plan_or_is_refused(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("plan") / "p.toml"
    path.write_bytes(data)
    with pytest.raises(ha.InputError):  # few bytes say no model
        ha.read_plan(path)
