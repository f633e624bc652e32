"""What users give as text: files, strings, ids, datasets, and text that the model writes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import BertConfig, BertForMaskedLM

import headatlas as ha
from headatlas.circuits.fingerprint import fingerprint_prompts
from headatlas.interp.errors import InputError
from headatlas.interp.forward import run_whole
from headatlas.interp.grammar import natural_text
from headatlas.interp.probes import Prompts
from headatlas.interp.sampling import sample_documents
from headatlas.interp.texts import Documents, _numbers, read_documents
from headatlas.interp.tokens import tokenize, windows
from tests.circuits.causal.models import gemma2, gpt2, llama

FUZZ = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
RUNNING = natural_text(400, seed=5)


@pytest.fixture(scope="module")
def tiny():
    return ha.load("tiny")


@pytest.fixture(scope="module")
def model():
    return llama()


class Rows:
    """As much of a Hugging Face dataset as is read."""

    def __init__(self, rows, names=None):
        self.rows = rows
        self.column_names = [*rows[0]] if names is None and rows else names

    def __iter__(self):
        return iter(self.rows)

    def __len__(self):
        return len(self.rows)


class Stream:
    """A streamed dataset that never ends, and counts what is read of it."""

    column_names = None
    read = 0

    def __iter__(self):
        while True:
            self.read += 1
            yield {"text": f"a cat sat on mat {self.read}."}


def read(source, tiny, n=None, seq_len=16, **options):
    return read_documents(source, *tiny, n=n, seq_len=seq_len, **options)


def tokens_of(documents):
    return [
        row[own].tolist()
        for row, own in zip(documents.prompts.ids, documents.prompts.mask, strict=True)
    ]


@pytest.mark.parametrize("as_text", [str, Path])
def test_a_file_is_cut_into_windows(tmp_path, tiny, as_text):
    path = tmp_path / "run.txt"
    path.write_text(RUNNING, encoding="utf-8")
    documents = read(as_text(path), tiny)
    expected = windows(tiny[1], RUNNING, seq_len=16).ids
    assert np.array_equal(documents.prompts.ids, expected.numpy())
    assert documents.origin == "run.txt"
    assert documents.prompts.mask.all()
    assert documents.prompts.bos
    assert documents.prompts.causal


@pytest.mark.parametrize("n", [1, 3, 20])
def test_the_first_n_are_those_of_the_whole(tmp_path, tiny, n):
    path = tmp_path / "run.txt"
    path.write_text(RUNNING, encoding="utf-8")
    few, every = read(path, tiny, n), read(path, tiny)
    assert np.array_equal(few.prompts.ids, every.prompts.ids[:n])


def test_strings_are_documents_of_their_own(tiny):
    long = "the cat sat on the mat. " * 3
    documents = read([long, "a dog"], tiny, seq_len=20)
    cut = windows(tiny[1], long, seq_len=20).ids.tolist()
    short = tokenize(tiny[1], ["a dog"]).ids.tolist()
    assert tokens_of(documents) == [*cut, *short]
    assert documents.origin == "2 texts"
    assert not documents.prompts.mask[-1, -1]  # padded on the right
    assert read(["a dog"], tiny).origin == "1 text"


def test_repeated_windows_are_read_once_and_said(tiny):
    documents = read(["a dog", "a cat", "a dog"], tiny)
    assert len(documents) == 2
    assert documents.origin == "3 texts, 1 repeated window left out"
    again = read(["a dog", "a dog", "a dog"], tiny)
    assert again.origin == "3 texts, 2 repeated windows left out"


@pytest.mark.parametrize("bos", [True, False, None])
@pytest.mark.parametrize("side", ["left", "right"])
def test_tokens_and_ids_give_what_the_text_gives(tiny, bos, side):
    texts = ["a dog ran to the old house", "a cat"]
    tokens = tokenize(tiny[1], texts, prepend_bos=True, padding_side=side)
    ours = tokens_of(read(tokens, tiny, prepend_bos=bos))
    assert ours == tokens_of(read(texts, tiny, prepend_bos=bos))
    ids = tokenize(tiny[1], texts[:1]).ids
    documents = read(ids, tiny, prepend_bos=bos)
    assert tokens_of(documents) == tokens_of(read(texts[:1], tiny, prepend_bos=bos))
    assert documents.prompts.bos is (bos is not False)


@pytest.mark.parametrize("dtype", ["int64", "uint16", "uint64", ">i4", "int8"])
def test_arrays_of_ids_are_read_as_tensors_are(dtype):
    ids = torch.tensor([[0, 5, 6, 7], [0, 1, 2, 3]])
    array = ids.numpy().astype(dtype)
    read_only = array.copy()
    read_only.flags.writeable = False
    expected = read_documents(ids, llama(), None, n=None, seq_len=4)
    for source in (array, array[::-1][::-1], np.asfortranarray(array), read_only):
        documents = read_documents(source, llama(), None, n=None, seq_len=4)
        assert tokens_of(documents) == tokens_of(expected)
        assert documents.origin == "2 rows of ids"


def test_rows_of_ids_are_cut_and_each_window_gets_the_bos():
    model = llama()
    ids = torch.tensor([[0, 5, 6, 7, 8, 9], [0, 1, 2, 3, 4, 5]])
    documents = read_documents(ids, model, None, n=None, seq_len=3)
    expected = [[0, 5, 6], [0, 7, 8], [0, 1, 2], [0, 3, 4]]  # a BOS first, the short rest left out
    assert tokens_of(documents) == expected
    bare = read_documents(ids, model, None, n=3, seq_len=3, prepend_bos=False)
    assert tokens_of(bare) == [[5, 6, 7], [1, 2, 3]]  # no BOS
    assert not bare.prompts.bos


PACKED = {  # ids with BOS 0, prepend_bos, windows of 4 tokens
    "with": ([0, 5, 6, 7, 0, 8, 9, 10], None, [[0, 5, 6, 7], [0, 8, 9, 10]]),
    "asked": ([5, 6, 7, 0, 8, 9, 10, 0], True, [[0, 5, 6, 7], [0, 8, 9, 10]]),
    "without": ([0, 5, 6, 7, 0, 8, 9, 10, 11], False, [[5, 6, 7], [8, 9, 10, 11]]),
    "between": ([5, 6, 7, 0, 8, 9, 10, 0], None, [[5, 6, 7], [8, 9, 10]]),
    "twice": ([0, 0, 5, 6, 7, 8, 9, 10, 11, 0, 0, 0], None, [[0, 5, 6, 7], [0, 8, 9, 10]]),
    "only": ([0, 5, 0, 6, 7], None, [[0, 5], [0, 6, 7]]),
}


@pytest.mark.parametrize("name", PACKED)
def test_packed_rows_are_cut_where_a_text_begins(name):
    ids, bos, expected = PACKED[name]
    documents = read_documents(
        torch.tensor([ids]), llama(), None, n=None, seq_len=4, prepend_bos=bos
    )
    assert tokens_of(documents) == expected
    assert documents.prompts.bos is (expected[0][0] == 0)


@FUZZ
@given(
    rows=st.lists(st.lists(st.integers(0, 3), max_size=12), min_size=1, max_size=3),
    bos=st.booleans(),
    seq_len=st.integers(2, 6),
)
def test_no_window_runs_over_the_start_of_a_text(model, rows, bos, seq_len):
    texts = ["".join(map(str, row)).split("0") for row in rows]
    longest = max(len(text) for row in texts for text in row)
    source = Rows([{"input_ids": row} for row in rows])
    if longest + bos < 2:
        with pytest.raises(InputError, match="two tokens long"):
            read_documents(source, model, None, n=None, seq_len=seq_len, prepend_bos=bos)
        return
    documents = read_documents(source, model, None, n=None, seq_len=seq_len, prepend_bos=bos)
    for window in tokens_of(documents):
        assert [place for place, token in enumerate(window) if token == 0] == [0] * bos
        inside = "".join(map(str, window[bos:]))
        assert any(inside in text for row in texts for text in row)


def test_rows_that_begin_in_two_ways_are_refused():
    ids = torch.tensor([[0, 5, 6], [4, 5, 6]])
    with pytest.raises(InputError, match="some rows of ids begin with the BOS 0"):
        read_documents(ids, llama(), None, n=None, seq_len=3)


def test_datasets_of_text_and_of_ids(tiny):
    texts = ["", "a dog ran", "  \n", None, "a cat"]
    documents = read(Rows([{"text": text, "more": 1} for text in texts]), tiny)
    assert tokens_of(documents) == tokens_of(read(["a dog ran", "a cat"], tiny))
    assert documents.origin == "5 rows of a dataset"
    padded = Rows([{"input_ids": [5, 6, 7, 1], "attention_mask": [1, 1, 1, 0]}])
    assert tokens_of(read(padded, tiny)) == [[5, 6, 7]]
    both = Rows([{"text": "a dog", "input_ids": torch.tensor([5, 6])}])
    assert tokens_of(read_documents(both, tiny[0], None, n=1, seq_len=9)) == [[5, 6]]


def test_a_stream_is_read_no_further_than_needed(tiny):
    stream = Stream()
    assert len(read(stream, tiny, n=5)) == 5
    assert stream.read == 5
    with pytest.raises(InputError, match="a streamed dataset has no end"):
        read(stream, tiny)


def test_a_real_dataset(tiny):
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict({"text": ["a dog ran", "a cat sat"]})
    assert len(read(made, tiny)) == 2
    assert len(read(made.to_iterable_dataset(), tiny, n=2)) == 2
    with pytest.raises(InputError, match="splits train; pass one"):
        read(datasets.DatasetDict(train=made), tiny)


def test_fingerprints_find_the_same_text_under_another_bos_and_padding(tiny):
    one, two = (read(["a dog ran", "a cat"], tiny, prepend_bos=bos) for bos in (True, False))
    other = read(["a cat", "the moon"], tiny)
    assert one.fingerprints() == two.fingerprints()
    assert len(one.fingerprints() & other.fingerprints()) == 1


BAD = {
    "a dict": ({"text": "a"}, "Mapping|got dict"),
    "a number": (7, "got int"),
    "no texts": ([], "no texts"),
    "an empty text": (["a dog", ""], "text 1 is empty"),
    "a blank text": ([" \n"], "text 0 is empty"),
    "bytes": ([b"a dog"], "text 0 is a bytes"),
    "a surrogate": (["a dog", "a \ud800"], "text 1 holds a lone surrogate"),
    "a surrogate in a row": (Rows([{"text": "\udfff"}]), "text of row 0 holds a lone surrogate"),
    "a number among texts": (["a", 3], "text 1 is of type int, not a string"),
    "text for a path": ("a dog\nran", "passed as a list of strings"),
    "a missing file": ("no such file.txt", "no file 'no such file.txt'; a string is the path"),
    "text that names no file": ("a cat sat.", r"passed as a list of strings, \[text\]"),
    "text too long for a name": ("a cat sat. " * 99, r"passed as a list of strings, \[text\]"),
    "text with a NUL": ("a\0cat", r"no file 'a\\x00cat'; .* list of strings"),
    "a surrogate for a path": ("a\udfff", "passed as a list of strings"),
    "a missing path": (Path("no such file.txt"), "no file .* give the path of a UTF-8 text file"),
    "a folder": (str(Path(__file__).parent), "is a folder"),
    "lists of ids": ([[5, 6], [7]], "text 0 is of type list, not a string. Pass token ids"),
    "a list of ids": ((5, 6), "text 0 is of type int, not a string. Pass token ids"),
    "a list of arrays": ([np.array([5])], "text 0 is of type ndarray, not a string"),
    "a list of tensors": ([torch.tensor([5])], "text 0 is of type Tensor, not a string"),
    "an array of one axis": (np.array([5, 6]), r"whole numbers \[batch, pos\]; got int64 \(2,\)"),
    "an array of floats": (np.ones((1, 2)), r"got float64 \(1, 2\)"),
    "an array of truths": (np.ones((1, 2), bool), r"got bool \(1, 2\)"),
    "an array of texts": (np.array([["a dog"]]), "Texts are passed as a list of strings"),
    "a masked array": (np.ma.array([[5, 6]], mask=[[0, 1]]), "got masked int64"),
    "an array of nothing": (np.ones((0, 3), int), "integer ids"),
    "an array beyond the vocabulary": (np.array([[5, 5000]]), "must lie in 0..1023"),
    "records": ("rows.jsonl", "holds records"),
    "ids out of the vocabulary": (torch.tensor([[5, 5000]]), "must lie in 0..1023"),
    "negative ids": (torch.tensor([[5, -1]]), "must lie in 0..1023"),
    "ids of one axis": (torch.tensor([5, 6]), "integer ids"),
    "ids that are no integers": (torch.tensor([[5.0, 6.0]]), "integer ids"),
    "a single token": (torch.tensor([[5]]), "nothing in it is two tokens long"),
    "no rows": (Rows([], ["text"]), "has no rows"),
    "blank rows": (Rows([{"text": " "}]), "nothing in it is two tokens long"),
    "other columns": (Rows([{"sentence": "a"}]), "neither a column text nor input_ids"),
    "rows of no columns": (Rows(["a"], ["text"]), "neither a column text nor input_ids"),
    "text that is none": (Rows([{"text": 3}]), "text of row 0 is a int"),
    "ragged ids": (Rows([{"input_ids": [[1], [2, 3]]}]), "row 0 of the dataset"),
    "ids of text": (Rows([{"input_ids": "a"}]), "row 0 of the dataset"),
    "huge ids": (Rows([{"input_ids": [2**70, 1]}]), "row 0 of the dataset"),
    "ids too large": (Rows([{"input_ids": [2**63, 1]}]), "must lie in|row 0"),
    "masks that do not fit": (
        Rows([{"input_ids": [1, 2], "attention_mask": [1]}]), "row 0 of the dataset",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_sources_give_one_error(name, tiny):
    source, message = BAD[name]
    with pytest.raises(InputError, match=message):
        read(source, tiny)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n is a whole number"),
        ({"seq_len": 1}, "seq_len is a whole number"),
        ({"seq_len": 5000}, "longer than the model's context of 1024"),
    ],
)
def test_bad_numbers(options, message, tiny):
    with pytest.raises(InputError, match=message):
        read(["a dog"], tiny, **options)


@pytest.mark.parametrize("n", [2.5, True, "3"])
def test_numbers_that_are_none(n, tiny):
    with pytest.raises(InputError, match="n is a whole number of documents"):
        _numbers(tiny[0], n, 16)
    with pytest.raises(InputError, match="seq_len is a whole number of tokens"):
        _numbers(tiny[0], None, n)


def test_text_needs_a_tokenizer_and_a_bos_a_name(tiny):
    with pytest.raises(InputError, match="text needs the model's tokenizer"):
        read_documents(["a dog"], tiny[0], None, n=None, seq_len=16)
    model = llama()
    model.config.bos_token_id = None
    with pytest.raises(InputError, match="names no BOS"):
        read_documents(torch.tensor([[5, 6]]), model, None, n=1, seq_len=9, prepend_bos=True)


@FUZZ
@given(st.binary(max_size=200))
def test_any_file_is_read_or_refused(tmp_path, tiny, content):
    path = tmp_path / "any.txt"
    path.write_bytes(content)
    try:
        documents = read(path, tiny)
    except InputError:
        return
    ids = documents.prompts.ids
    assert ids.min() >= 0
    assert ids.max() < 1024
    assert documents.prompts.mask.sum(1).min() >= 2


@FUZZ
@given(st.lists(st.text(max_size=30), max_size=5), st.integers(2, 9))
def test_any_strings_are_read_or_refused(tiny, texts, seq_len):
    try:
        documents = read(texts, tiny, seq_len=seq_len)
    except InputError:
        return
    assert documents.prompts.ids.shape[1] <= seq_len
    assert len(documents.fingerprints()) == len(documents)


@FUZZ
@given(st.text(max_size=40))
def test_any_string_that_names_no_file_is_refused(tiny, text):
    with pytest.raises(InputError, match=r"is the path of a text file|holds records|is a folder"):
        read(text, tiny)


@FUZZ
@given(
    st.sampled_from(["int64", "uint8", "float32", "bool", "complex64", "U3", "S3", "O", "M8[s]"]),
    st.lists(st.integers(0, 3), max_size=3),
)
def test_any_array_is_read_or_refused(tiny, dtype, shape):
    array = np.full(shape, 5).astype(dtype)
    try:
        documents = read(array, tiny, n=3)
    except InputError:
        assert dtype not in ("int64", "uint8") or len(shape) != 2 or not shape[0] or shape[1] < 2
        return
    assert documents.prompts.ids.shape[1] > 1


CELLS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=6,
)
ROWS = st.dictionaries(st.sampled_from(["text", "input_ids", "attention_mask", "more"]), CELLS)


@FUZZ
@given(st.lists(ROWS | CELLS, max_size=4), st.booleans())
def test_any_rows_are_read_or_refused(tiny, rows, with_tokenizer):
    dataset = Rows(rows, ["text", "input_ids"])
    tokenizer = tiny[1] if with_tokenizer else None
    try:
        documents = read_documents(dataset, tiny[0], tokenizer, n=3, seq_len=5)
    except InputError:
        return
    ids = documents.prompts.ids
    assert 1 <= len(ids) <= 3
    assert 0 <= ids.min() <= ids.max() < 1024


# -- text that the model writes ------------------------------------------------------------------


@pytest.mark.parametrize("build", [llama, gpt2, gemma2])
def test_sampling_with_kept_keys_is_sampling_without(build, monkeypatch):
    model = build()
    ids, _ = sample_documents(model, None, n=3, seq_len=12, prepend_bos=False, seed=1)
    monkeypatch.setattr("headatlas.interp.sampling.cache_options", lambda *_: {})
    again, _ = sample_documents(model, None, n=3, seq_len=12, prepend_bos=False, seed=1)
    assert torch.equal(ids, again)


def test_sampling_follows_the_models_distribution():
    """First tokens of many documents, against p(· | BOS) without the special ones."""
    model = llama(layers=1)
    ids, _ = sample_documents(model, None, n=4000, seq_len=2, prepend_bos=False)
    logits = run_whole(model, torch.tensor([[0]])).logits[0, 0].double()
    logits[0] = float("-inf")  # the BOS, and end of text
    p = logits.softmax(0).numpy()
    seen = np.bincount(ids[:, 0].numpy(), minlength=len(p)) / len(ids)
    assert seen[0] == 0
    assert np.abs(seen - p).max() < 5 * np.sqrt(p.max() / len(ids))
    assert np.corrcoef(seen, p)[0, 1] > 0.99


def test_sampling_is_seeded_and_leaves_everything_as_it_was(tiny):
    model = tiny[0]
    model.train()
    state = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    first = read(None, tiny, n=4, seed=3)
    assert model.training
    model.eval()
    assert torch.equal(torch.random.get_rng_state(), state[0])
    assert np.array_equal(np.random.get_state()[1], state[1])
    again, other = read(None, tiny, n=4, seed=3), read(None, tiny, n=4, seed=4)
    assert np.array_equal(first.prompts.ids, again.prompts.ids)
    assert not np.array_equal(first.prompts.ids, other.prompts.ids)
    assert first.origin == "sampled from the model, seed 3"
    assert (first.prompts.ids[:, 0] == 0).all()
    assert not np.isin(first.prompts.ids[:, 1:], [0, 1, 2]).any()  # no special token


def test_without_a_bos_the_same_text_lacks_it(tiny):
    kept, _ = sample_documents(*tiny, n=2, seq_len=9, prepend_bos=True)
    bare, bos = sample_documents(*tiny, n=2, seq_len=8, prepend_bos=False)
    assert torch.equal(kept[:, 1:], bare)
    assert not bos


def test_what_cannot_write_text():
    config = BertConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=24,
    )  # fmt: skip
    with pytest.raises(InputError, match="takes a decoder"):
        read_documents(None, BertForMaskedLM(config).eval(), None, n=2, seq_len=8)
    with pytest.raises(InputError, match="has no end"):
        read_documents(None, llama(), None, n=None, seq_len=8)
    with pytest.raises(InputError, match="gives no next-token logits"):
        sample_documents(llama().model, None, n=1, seq_len=8)
    nameless = llama()
    nameless.config.bos_token_id = nameless.config.eos_token_id = None
    with pytest.raises(InputError, match="has no BOS to begin"):
        sample_documents(nameless, None, n=1, seq_len=8)
    broken = llama()
    torch.nn.init.constant_(broken.lm_head.weight, 1e38)
    with pytest.raises(InputError, match="not finite"):
        sample_documents(broken, None, n=1, seq_len=8)


def test_documents_say_what_they_are(tiny):
    documents = read(["a cat"], tiny)
    assert isinstance(documents, Documents)
    assert repr(documents) == "<1 document of up to 4 tokens, 4 in all, with a BOS; 1 text>"
    single = Documents(Prompts("text", np.ones((2, 1), int), np.ones((2, 1), bool), False), "a")
    assert repr(single) == "<2 documents of up to 1 token, 2 in all, without a BOS; a>"


def test_documents_of_two_sorts_go_together(tiny):
    text, probe = read(["a cat", "the dog ran home"], tiny), ha.repeated_probe(*tiny, prompts=16)
    both = text + probe
    assert both.origin == "2 texts; repeated random tokens, seed 0"
    assert len(both) == 18
    for own, part in (
        (both.prompts.select(slice(0, 2)), text),
        (both.prompts.select(slice(2, 18)), probe),
    ):
        assert own.ids.tolist() == part.prompts.ids.tolist()
        assert own.mask.tolist() == part.prompts.mask.tolist()
    assert both.prompts.counted[:2].tolist() == both.prompts.mask[:2].tolist()
    assert both.prompts.counted[2:].tolist() == probe.prompts.counted.tolist()
    assert both.fingerprints() == text.fingerprints() | probe.fingerprints()
    assert (text + text).prompts.counted is None
    with pytest.raises(InputError, match="with the same prepend_bos"):
        text + read(["a dog"], tiny, prepend_bos=False)
    with pytest.raises(TypeError, match="unsupported operand"):
        text + text.prompts


def test_what_counts_has_the_shape_of_the_ids(as_users_call):
    ids = np.ones((2, 4), int)
    with pytest.raises(InputError, match="counted has"):
        Prompts("text", ids, ids > 0, bos=False, counted=np.ones((2, 3), bool))
    prompts = Prompts("text", ids, ids > 0, bos=False, counted=np.eye(2, 4, dtype=bool))
    assert prompts.select([1]).counted.tolist() == [[False, True, False, False]]
    assert not prompts.read_only().counted.flags.writeable
    assert fingerprint_prompts(prompts) != fingerprint_prompts(replace(prompts, counted=None))
