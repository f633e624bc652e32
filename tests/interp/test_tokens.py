import base64
import unicodedata
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headatlas.interp.errors import InputError
from headatlas.interp.tokens import Tokens, bos_token, context_length, fits, tokenize, windows
from headatlas.interp.visible import visible, visible_all

from .checkpoints import Letters, byte_level, unigram, word_piece

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
    habits = [bos_token(tokenizer, None) for tokenizer in (plain, with_bos, bert)]
    assert habits == [None, with_bos.bos_token_id, bert.cls_token_id]


@pytest.mark.parametrize("prepend_bos", [None, True, False])
def test_bos_is_there_exactly_when_asked_for_or_a_habit(plain, with_bos, prepend_bos):
    for tokenizer in (plain, with_bos):
        expected = tokenizer is with_bos if prepend_bos is None else prepend_bos
        tokens = tokenize(tokenizer, TEXTS, prepend_bos=prepend_bos)
        body = plain(TEXTS)["input_ids"]
        assert tokens.bos is expected
        assert bos_token(tokenizer, prepend_bos) == (1 if expected else None)
        assert rows(tokens) == [[1] * expected + ids for ids in body]


def test_the_tokenizers_own_ids_are_kept_by_default(with_bos, bert):
    for tokenizer in (with_bos, bert):
        assert rows(tokenize(tokenizer, TEXTS)) == tokenizer(TEXTS)["input_ids"]


def test_special_tokens_spelled_in_a_text_are_text(plain, with_bos, bert):
    for tokenizer, text, spelled in [
        (plain, "a <s> b</s>", ["a", "Ġ", "<", "s", ">", "Ġ", "b", "<", "/", "s", ">"]),
        (with_bos, "<s>a<pad>", ["<s>", *"<s>a<pad>"]),
        (bert, "the [SEP]", ["[CLS]", "the", "[UNK]", "[UNK]", "[UNK]", "[SEP]"]),
        (unigram(), "a</s>b <pad>", ["▁a", *"</s>b", "▁", "<", "<unk>", "a", "d", ">", "</s>"]),
        (Letters(), "a <s> b", ["<s>", *"a <s> b"]),
    ]:
        tokens = tokenize(tokenizer, text)
        assert tokens.strings == [spelled]
        assert windows(tokenizer, text, seq_len=60, limit=1).strings == [spelled]
        # the tokenizer's own reading is as it was
        assert tokenizer(tokenizer.all_special_tokens[0], add_special_tokens=False)[
            "input_ids"
        ] == [tokenizer.all_special_ids[0]]


def test_a_special_token_that_cannot_be_read_otherwise_is_refused():
    core = Tokenizer(models.WordLevel({"a": 0, "<s>": 1}))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>")
    with pytest.raises(InputError, match="spells '<s>'"):
        tokenize(tokenizer, "a <s> a")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["<s>", "</s>", "<pad>", "<unk>", " ", "a", "<", "s>"]), min_size=1)
)
def test_no_text_gives_a_special_token(parts):
    for tokenizer in (byte_level(), unigram(), Letters()):
        special = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
        text = "." + "".join(parts)  # never blanks alone, which give no tokens
        tokens = tokenize(tokenizer, text, prepend_bos=False)
        body = tokens.ids[0, :-1] if tokens.ids[0, -1] == tokenizer.eos_token_id else tokens.ids[0]
        assert special.isdisjoint(body.tolist())


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


class Counting:
    """A tokenizer that counts the characters it is given and the strings it is asked for."""

    def __init__(self, inner):
        self.inner, self.characters, self.spelled = inner, 0, 0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __call__(self, texts, **options):
        self.characters += sum(map(len, texts))
        return self.inner(texts, **options)

    def convert_ids_to_tokens(self, ids):
        self.spelled += len(ids)
        return self.inner.convert_ids_to_tokens(ids)


@pytest.mark.parametrize("unit", ["the cat sat on a mat.\n", "abc", "日本語", "a" * 5000 + " "])
@pytest.mark.parametrize("make", [byte_level, word_piece, unigram])
def test_limited_windows_are_those_of_the_whole_text(make, unit):
    text = unit * (60_000 // len(unit))
    whole = windows(make(), text, seq_len=12)
    for limit in (1, 7, 10**6):
        some = windows(make(), text, seq_len=12, limit=limit)
        torch.testing.assert_close(some.ids, whole.ids[:limit])


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(st.sampled_from("the cat\n"), min_size=2000, max_size=2000),
    seq_len=st.integers(3, 9),
    limit=st.integers(1, 40),
)
def test_limited_windows_of_any_text_are_those_of_the_whole(text, seq_len, limit):
    for tokenizer in (byte_level(bos=True), unigram()):
        some = windows(tokenizer, text, seq_len=seq_len, limit=limit)
        torch.testing.assert_close(some.ids, windows(tokenizer, text, seq_len=seq_len).ids[:limit])


def test_only_the_needed_beginning_of_a_long_text_is_encoded():
    text = "the cat sat on a mat " * 50_000
    for use in (
        lambda tokenizer: windows(tokenizer, text, seq_len=32, limit=8),
        lambda tokenizer: tokenize(tokenizer, text, seq_len=256),
        lambda tokenizer: fits(tokenizer, text, seq_len=256),
    ):
        tokenizer = Counting(byte_level())
        use(tokenizer)
        assert tokenizer.characters < 4000
        assert tokenizer.spelled == 0


def test_blanks_that_give_no_tokens_do_not_hide_the_text_behind_them():
    text = " " * 30_000 + "the cat"
    assert windows(word_piece(), text, seq_len=9, limit=1).strings == [
        ["[CLS]", "the", "cat", "[SEP]"]
    ]


@pytest.mark.parametrize("limit", [0, -3])
def test_a_limit_below_one_is_refused(bert, limit):
    with pytest.raises(InputError, match=f"limit={limit}"):
        windows(bert, "the cat", seq_len=9, limit=limit)


def test_fits_counts_the_special_tokens(bert):
    for seq_len in range(7):
        assert fits(bert, "the cat", seq_len=seq_len) is (seq_len >= 4)
        assert fits(bert, "the cat", seq_len=seq_len, prepend_bos=False) is (seq_len >= 3)


def test_strings_are_made_once_and_only_when_asked_for(plain):
    tokenizer = Counting(plain)
    tokens = tokenize(tokenizer, "the cat")
    assert tokenizer.spelled == 0
    assert tokens.strings is tokens.strings
    assert tokenizer.spelled == tokens.ids.numel()
    assert Tokens(tokens.ids, tokens.mask, [["x"]], False).strings == [["x"]]


def test_a_tokenizer_that_encodes_nothing_is_named_as_such():
    core = Tokenizer(models.WordLevel({"日": 0}))
    core.pre_tokenizer = pre_tokenizers.Split("日", "removed", invert=True)
    with pytest.raises(InputError, match=r"gives no tokens for 'a', .* of another alphabet"):
        tokenize(PreTrainedTokenizerFast(tokenizer_object=core), "日")


def test_a_tokenizer_that_knows_digits_alone_is_enough():
    core = Tokenizer(models.BPE({"1": 0, "2": 1}, []))
    assert tokenize(PreTrainedTokenizerFast(tokenizer_object=core), "21").ids.tolist() == [[1, 0]]


def test_a_tokenizer_that_fails_on_a_text_is_an_input_error():
    core = Tokenizer(models.WordLevel({"a": 0}, unk_token="[UNK]"))  # which is not in it
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    with pytest.raises(InputError, match="cannot encode the text"):
        tokenize(PreTrainedTokenizerFast(tokenizer_object=core), "b")


def test_a_tokenizer_that_panics_on_a_text_is_an_input_error():
    core = Tokenizer(models.BPE({"a": 0}, []))
    core.normalizer = normalizers.Precompiled(base64.b64decode("BAAAAP////8="))
    with pytest.raises(InputError, match="PanicException"):
        tokenize(PreTrainedTokenizerFast(tokenizer_object=core), "a")


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
