import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headatlas.interp.errors import InputError
from headatlas.interp.explorer.window import Window
from headatlas.interp.heads import HeadId


@pytest.mark.parametrize(
    ("text", "rows", "keys", "heads"),
    [
        ("L1H2@3:9", (3, 9), (3, 9), ("L1H2",)),
        ("L1H2, L0H1, L1H2 @ 3:9, 0:2", (3, 9), (0, 2), ("L1H2", "L0H1")),
        ("all@0:64", (0, 64), (0, 64), None),
    ],
)
def test_forms(text, rows, keys, heads):
    named = None if heads is None else tuple(map(HeadId.parse, heads))
    assert Window.parse(text) == Window(rows, keys, named)
    assert Window.parse(Window.parse(text)) == Window.parse(text)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("L1H2", "a window is written"),
        ("L1H2@5", "a window is written"),
        ("@0:5", "a window is written"),
        ("L1H2@0:5,0:5,0:5", "a window is written"),
        ("L1H2@٣:5", "a window is written"),
        (7, "got 7"),
        ("L1H2@5:5", "START below STOP"),
        ("L1H2@9:5", "got 9:5"),
        ("L1@0:5", "a head is written"),
        ("all,L0H0@0:5", "a head is written"),
        ("all@0:4096", "16,777,216 weights per head"),
        ("all@0:1,0:9000", "at most 8,192 queries or keys long"),
    ],
)
def test_other_forms_are_refused(text, part):
    with pytest.raises(InputError, match=part):
        Window.parse(text)


@pytest.mark.parametrize(
    ("rows", "keys"), [((5, 3), (0, 1)), ((0, 1), (2, 2)), ((-3, 3), (0, 1)), ((0, 4096),) * 2]
)
def test_values_are_checked_like_texts(rows, keys):
    with pytest.raises(InputError, match=r"START below STOP|weights per head"):
        Window(rows, keys)


def test_a_window_must_lie_in_the_text_and_name_heads_of_the_page():
    heads = (HeadId("", 0, 0), HeadId("", 0, 1))
    Window.parse("L0H1@0:10").check(10, heads)
    with pytest.raises(InputError, match="queries 0:11, but the text has 10"):
        Window.parse("L0H1@0:11,0:2").check(10, heads)
    with pytest.raises(InputError, match="keys 0:11"):
        Window.parse("L0H1@0:2,0:11").check(10, heads)
    with pytest.raises(InputError, match="L0H2, which is not on the page of 2 heads"):
        Window.parse("L0H2@0:2").check(10, heads)


@settings(deadline=None)
@given(st.text(max_size=30) | st.from_regex(r"[LH0-9,@: al]{1,30}", fullmatch=True))
def test_any_text_is_read_or_refused(text):
    try:
        window = Window.parse(text)
    except InputError:
        return
    assert 0 <= window.rows[0] < window.rows[1]
    assert 0 <= window.keys[0] < window.keys[1]
    assert window.n_cells <= 2**22
