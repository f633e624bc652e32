import unicodedata
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headatlas.interp.errors import InputError
from headatlas.interp.tokens import context_length, habit_of_bos, tokenize, windows
from headatlas.interp.visible import visible, visible_all

from .checkpoints import byte_level, word_piece

TEXTS = ["the cat", "the"]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


@pytest.fixture(scope="module")
def plain():
    return byte_level()


@pytest.fixture(scope="module")
def with_bos():
    return byte_level(bos=True)


@pytest.fixture(scope="module")
def bert():
    return word_piece()


def rows(tokens):
    return [ids[mask].tolist() for ids, mask in zip(tokens.ids, tokens.mask, strict=True)]


def test_habits(plain, with_bos, bert):
    assert [habit_of_bos(tokenizer) for tokenizer in (plain, with_bos, bert)] == [False, True, True]


@pytest.mark.parametrize("prepend_bos", [None, True, False])
def test_bos_is_there_exactly_when_asked_for_or_a_habit(plain, with_bos, prepend_bos):
    for tokenizer in (plain, with_bos):
        expected = habit_of_bos(tokenizer) if prepend_bos is None else prepend_bos
        tokens = tokenize(tokenizer, TEXTS, prepend_bos=prepend_bos)
        body = plain(TEXTS)["input_ids"]
        assert tokens.bos is expected
        assert rows(tokens) == [[1] * expected + ids for ids in body]


def test_the_tokenizers_own_ids_are_kept_by_default(with_bos, bert):
    for tokenizer in (with_bos, bert):
        assert rows(tokenize(tokenizer, TEXTS)) == tokenizer(TEXTS)["input_ids"]


def test_a_bos_written_in_the_text_is_text(with_bos):
    assert rows(tokenize(with_bos, "<s>a", prepend_bos=False)) == [
        with_bos("<s>a")["input_ids"][1:]
    ]


def test_bert_loses_its_cls_and_keeps_its_sep(bert):
    tokens = tokenize(bert, "the cats", prepend_bos=False)
    assert tokens.strings == [["the", "cat", "##s", "[SEP]"]]
    assert not tokens.bos


def test_no_bos_token_to_prepend():
    with pytest.raises(InputError, match="no BOS or CLS"):
        tokenize(word_piece(cls=False), "the cat", prepend_bos=True)
    assert not tokenize(word_piece(cls=False), "the cat").bos


@pytest.mark.parametrize(
    ("side", "mask"), [("right", [[1, 1], [1, 0]]), ("left", [[1, 1], [0, 1]])]
)
def test_padding_sides(bert, side, mask):
    bare = word_piece(cls=False)  # no padding token either: id 0 stands in
    for tokenizer in (bert, bare):
        tokens = tokenize(tokenizer, ["the cat", "the"], padding_side=side)
        extra = tokens.ids.shape[1] - 2
        wanted = torch.tensor(mask, dtype=torch.bool)
        ones = torch.ones(2, extra, dtype=torch.bool)
        parts = [wanted, ones] if side == "left" else [ones, wanted]
        torch.testing.assert_close(tokens.mask, torch.cat(parts, dim=1))
        assert tokens.ids[~tokens.mask].tolist() == [0]
        assert [len(strings) for strings in tokens.strings] == [tokens.ids.shape[1]] * 2
        assert tokens.lengths == [2 + extra, 1 + extra]


def test_seq_len_cuts_the_text_and_keeps_the_special_tokens(bert):
    tokens = tokenize(bert, "the cat sat on a mat", seq_len=5)
    assert tokens.strings == [["[CLS]", "the", "cat", "sat", "[SEP]"]]
    assert tokenize(bert, "the", seq_len=50).strings == [["[CLS]", "the", "[SEP]"]]


@pytest.mark.parametrize("seq_len", [-1, 0, 2])
def test_seq_len_must_leave_room(bert, seq_len):
    for function in (tokenize, windows):
        with pytest.raises(InputError, match="give at least 3"):
            function(bert, "the cat", seq_len=seq_len)


def test_windows_follow_each_other(bert):
    tokens = windows(bert, "the cat sat on a mat and dog ran", seq_len=6)
    assert [row[1:-1] for row in tokens.strings] == [
        ["the", "cat", "sat", "on"],
        ["a", "mat", "and", "dog"],
    ]  # the rest, "ran", fills no window
    assert tokens.mask.all()
    assert tokens.bos


def test_a_text_shorter_than_a_window_is_one_row(bert):
    assert windows(bert, "the cat", seq_len=60).strings == [["[CLS]", "the", "cat", "[SEP]"]]


@settings(max_examples=30, deadline=None)
@given(text=TEXT, seq_len=st.integers(2, 9))
def test_windows_hold_the_text_in_order(text, seq_len):
    tokenizer = byte_level()
    body = tokenizer(text)["input_ids"]
    got = windows(tokenizer, text, seq_len=seq_len, prepend_bos=True)
    flat = [i for row in rows(got) for i in row[1:]]
    assert flat == body[: len(flat)]
    assert len(body) - len(flat) < seq_len - 1
    assert {row[0] for row in rows(got)} == {1}


@pytest.mark.parametrize(
    ("texts", "part"),
    [
        ("", "text 0 is empty"),
        ([], "no texts"),
        (["a", ""], "text 1 is empty"),
        ("\ud800", "surrogate"),
        (["a", " "], "text 1 gives no tokens"),
    ],
)
def test_texts_without_content_are_refused(bert, texts, part):
    with pytest.raises(InputError, match=part):
        tokenize(bert, texts)


def test_a_wrong_padding_side_is_refused(bert):
    with pytest.raises(InputError, match="'left' or 'right'; got 'top'"):
        tokenize(bert, "the", padding_side="top")


@pytest.mark.parametrize(
    ("family", "changes", "length"),
    [("llama", {}, 128), ("bert", {}, 128), ("gpt2", {"n_positions": 64}, 64), ("t5", {}, None)],
)
def test_context_length(tiny, family, changes, length):
    assert context_length(tiny(family, **changes)) == length


def test_context_length_of_roberta_leaves_out_its_padding_rows():
    import transformers

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.RobertaConfig(
        **sizes, max_position_embeddings=34, pad_token_id=1, vocab_size=9, intermediate_size=8
    )
    model = transformers.RobertaModel(config)
    assert context_length(model) == 32
    model(torch.full((1, 32), 3))
    with pytest.raises((IndexError, RuntimeError)):
        model(torch.full((1, 33), 3))


def test_context_length_of_a_module_without_a_config():
    assert context_length(torch.nn.Linear(1, 1)) is None


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("Ġthe", "·the"),
        ("▁the", "·the"),
        ("##ing", "##ing"),
        ("Ċ", "⏎"),
        ("ĊĊ", "⏎⏎"),
        ("ĉ", "⇥"),
        ("\n", "⏎"),
        ("\t", "⇥"),
        (" a b", "·a·b"),
        ("<0x0A>", "⏎"),
        ("<0xE2>", "<0xE2>"),
        ("\x00", "␀"),
        ("\x7f", "␡"),
        ("\u202e", "<U+202E>"),
        ("\u200b", "<U+200B>"),
        ("\u00a0", "<U+00A0>"),
        ("\u0301", "◌\u0301"),
        ("", "∅"),
        ("ĠcafÃ©", "·café"),
        ("Ã©", "é"),
        ("é", "é"),
        ("âĢĵ", "–"),
        ("âĢ", "<0xE2><0x80>"),
        ("ðŁĻĤ", "🙂"),
        ("<|im_start|>", "<|im_start|>"),
        ("</script><script>", "</script><script>"),
        ("日本", "日本"),
    ],
)
def test_visible(token, shown):
    assert visible(token) == shown


@given(TEXT)
def test_visible_byte_level_tokens_read_as_the_text(text):
    tokenizer = byte_level()
    strings = ["Ġ", *tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])]
    shown = visible_all(strings)
    hidden = ("Cc", "Cf", "Cn", "Co", "Zs", "Zl", "Zp")
    if text.isascii() and not any(unicodedata.category(c) in hidden for c in text):
        assert "".join(shown) == "·" + text


@given(st.lists(st.text(max_size=12), max_size=8))
def test_visible_never_leaves_a_character_that_hides(tokens):
    for shown in (*visible_all(tokens), *map(visible, tokens)):
        assert shown
        assert not any(unicodedata.category(c)[0] in "CZ" for c in shown)


def test_holes_in_a_vocabulary_get_a_name():
    tokenizer = SimpleNamespace(pad_token_id=None, bos_token_id=None)
    tokenizer.convert_ids_to_tokens = lambda ids: [None if i == 7 else b"\xe2" for i in ids]

    class Fake:
        pad_token_id = None
        convert_ids_to_tokens = staticmethod(tokenizer.convert_ids_to_tokens)

        def __call__(self, texts, **_):
            return {"input_ids": [7] if isinstance(texts, str) else [[7]] * len(texts)}

    assert tokenize(Fake(), ["x"]).strings == [["<id 7>"]]
