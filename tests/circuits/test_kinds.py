"""Label vectors by hand, on documents small enough to read."""

import numpy as np
import pytest

from headatlas.circuits.kind import Legacy
from headatlas.circuits.kinds import KINDS, Kind, choose_kinds, register
from headatlas.circuits.label_vectors import (
    Labels,
    delimiter_labels,
    duplicate_labels,
    first_position_labels,
    induction_labels,
    offset_labels,
    previous_copy,
    recent_duplicate_labels,
)
from headatlas.interp.errors import InputError
from headatlas.interp.probes import Prompts

BOS, A, B, C = 9, 1, 2, 3


def prompts(*rows, bos=True, causal=True, delimiter=None):
    """Documents padded with 0 on the right, or on the left where a row starts with 0."""
    ids = np.array(rows)
    mark = None if delimiter is None else np.array(delimiter, bool)
    return Prompts("natural", ids, ids != 0, bos, mark, causal)


def relation(labels, document=0, *, causal=True):
    """The (row, column) pairs that label pairs match, by comparing every cell."""
    found = {}
    for pair in labels if isinstance(labels, tuple) else (labels,):
        q, k = pair.q[document], pair.k[document]
        for row in range(len(q)):
            for column in range(len(k)):
                if q[row] < 0 or q[row] != k[column]:
                    continue
                if (causal and column > row) or (pair.strict and row == column):
                    continue
                found[row, column] = found.get((row, column), 0) + pair.sign
    return {cell for cell, count in found.items() if count}


def test_previous_token():
    p = prompts([BOS, A, B, C])
    assert relation(offset_labels(p, -1)) == {(1, 0), (2, 1), (3, 2)}


def test_current_token_leaves_the_first_row_out():
    p = prompts([BOS, A, B, 0])
    assert relation(offset_labels(p, 0)) == {(1, 1), (2, 2)}


def test_offsets_need_the_key_to_exist():
    p = prompts([BOS, A, B, C])
    labels = offset_labels(p, -3)
    assert relation(labels) == {(3, 0)}
    assert (labels.q[0] >= 0).sum() == 1


def test_offsets_ahead_exist_in_encoders_only_within_the_document():
    p = prompts([BOS, A, B, 0], causal=False)
    assert relation(offset_labels(p, 1), causal=False) == {(0, 1), (1, 2)}


def test_left_padding_moves_columns_not_positions():
    p = prompts([0, 0, BOS, A, B])
    assert relation(offset_labels(p, -1)) == {(3, 2), (4, 3)}
    assert relation(first_position_labels(p)) == {(3, 2), (4, 2)}


def test_sink_metric_counts_the_first_row():
    p = prompts([BOS, A, B, C])
    assert relation(first_position_labels(p, rows=slice(0, 2))) == {(0, 0), (1, 0)}


def test_duplicates_are_all_earlier_copies_without_bos():
    p = prompts([BOS, A, B, A, A, BOS])
    assert relation(duplicate_labels(p)) == {(3, 1), (4, 1), (4, 3)}
    assert relation(recent_duplicate_labels(p)) == {(3, 1), (4, 3)}
    # the second BOS is a token like any other and has no earlier copy: the first does not count
    assert previous_copy(p)[0].tolist() == [-1, -1, -1, 1, 3, -1]


def test_induction_looks_after_the_earlier_copies():
    p = prompts([BOS, A, B, C, A, B])
    assert relation(induction_labels(p)) == {(4, 2), (5, 3)}


def test_induction_in_an_encoder_takes_the_trivial_match_off():
    p = prompts([BOS, A, B, A, C], causal=False)
    # row 3 (A): after the copy at 1 stands column 2; column 4 follows the row's own token
    assert relation(induction_labels(p), causal=False) == {(3, 2)}


def test_induction_row_may_match_itself_after_a_double():
    p = prompts([BOS, A, A])
    assert relation(induction_labels(p)) == {(2, 2)}


def test_delimiters():
    p = prompts([BOS, A, B, C], delimiter=[[1, 0, 1, 0]])
    assert relation(delimiter_labels(p)) == {(2, 2), (3, 2)}  # the BOS is no delimiter


def test_delimiters_need_a_tokenizer():
    with pytest.raises(InputError, match="needs a tokenizer"):
        delimiter_labels(prompts([BOS, A]))


def test_without_bos_the_first_token_counts():
    p = prompts([A, B, A], bos=False)
    assert relation(duplicate_labels(p)) == {(2, 0)}


def test_every_kind_has_a_written_definition():
    names = ["previous_token", "offset", "first_position", "current_token", "duplicate_token"]
    further = ["rare_token", "ngram_induction", "semantic"]
    images = ["grid_neighbour", "grid_surround", "grid_row", "grid_column", "outside_grid"]
    assert [*KINDS] == [*names, "induction", "delimiter", *further, *images]
    assert [name for name, kind in KINDS.items() if kind.of_signals] == images
    assert all(len(kind.definition) > 40 for kind in KINDS.values())


def test_choose_keeps_the_registry_order_and_names_the_unknown():
    assert [k.name for k in choose_kinds("delimiter, previous_token")] == [
        "previous_token",
        "delimiter",
    ]
    with pytest.raises(InputError, match=r"unknown kind nonsense; known: previous_token"):
        choose_kinds("nonsense")
    assert [k.name for k in choose_kinds("induction,")] == ["induction"]
    for empty in ("", " ,", []):
        with pytest.raises(InputError, match="no kind is named; known: previous_token"):
            choose_kinds(empty)


def test_register_refuses_a_taken_name_and_a_bad_kind():
    kind = KINDS["induction"]
    with pytest.raises(InputError, match="exists"):
        register(kind)
    with pytest.raises(InputError, match="lower-case"):
        Kind("Two words", "x", kind.labels)
    with pytest.raises(InputError, match="uniform"):
        Kind("two_back", "x", kind.labels, null="gauss")
    for prompts in (("wikipedia",), (), ("random", "random")):
        with pytest.raises(InputError, match="topics or signals, each once"):
            Kind("two_back", "x", kind.labels, prompts=prompts)
    with pytest.raises(InputError, match=r"reads one of random, .*; got 'nonsense'"):
        Legacy("", "nonsense", 0.4, "x")


def test_kinds_and_names_may_be_mixed():
    own = kind_of({})
    assert [k.name for k in choose_kinds([own, "induction"])] == ["induction", "own"]
    assert choose_kinds(own) == (own,)
    with pytest.raises(InputError, match="two kinds have the same name among induction, induc"):
        choose_kinds(["induction", KINDS["induction"]])


def kind_of(variants, **options):
    return Kind("own", "A kind under test.", lambda prompts: variants, **options)


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        ({}, "must return a dict of variants"),
        ((), "must return a dict"),
        (None, "must return a dict"),
        ({"": ()}, "expected a tuple of Labels"),
        ({"": "labels"}, "expected a tuple of Labels"),
        ({"other": "pair"}, "the variant named ''"),
        ({"": "short"}, "must have the prompts' shape"),
        ({"": "padded"}, "padding has a label"),
        ({"": "unequal"}, "a later pair scores rows that the first does not"),
        ({"": "pair", "\x1b": "pair"}, "printable text"),
    ],
)
def test_a_kind_that_cannot_be_scored_is_named(variants, message):
    p = prompts([BOS, A, B, 0])
    good = Labels(np.array([[-1, 0, 0, -1]]), np.array([[0, 1, 2, -2]]))
    named = {
        "pair": (good,),
        "short": (Labels(good.q[:, :2], good.k[:, :2]),),
        "padded": (Labels(np.zeros((1, 4), int), good.k),),
        "unequal": (good, Labels(np.array([[0, 0, 0, -1]]), good.k)),
    }
    if isinstance(variants, dict):
        variants = {
            name: named.get(pairs, pairs) if isinstance(pairs, str) else pairs
            for name, pairs in variants.items()
        }
    with pytest.raises(InputError, match=f"kind own.*{message}"):
        kind_of(variants).variants(p)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["best", "worst"], r"offsets, -8 to \+8; got 'best'"),
        (["-1", "+9"], r"offsets, -8 to \+8; got '\+9'"),
        (["-1", "2"], r"offsets, -8 to \+8; got '2'"),
        (["-1", ""], "the variant named '', which competing variants"),
    ],
)
def test_an_argmax_verdict_reads_offsets(names, message):
    rule = Legacy("argmax", "natural", 0.9, "x")
    pair = Labels(np.array([[-1, 0, 0, -1]]), np.array([[0, 1, 2, -2]]))
    p = prompts([BOS, A, B, 0])
    with pytest.raises(InputError, match=message):
        kind_of(dict.fromkeys(names, (pair,)), candidates=True, legacy=rule).variants(p)
    offsets = {"-1": (pair,), "+0": (pair,), "+8": (pair,)}
    assert kind_of(offsets, candidates=True, legacy=rule).variants(p) == offsets
    with pytest.raises(InputError, match="needs competing offsets"):
        kind_of(offsets, legacy=rule)


def test_a_legacy_verdict_reads_a_variant_that_is_there():
    pair = Labels(np.array([[-1, 0, 0, -1]]), np.array([[0, 1, 2, -2]]))
    kind = kind_of({"": (pair,)}, legacy=Legacy("other", "natural", 0.4, "x"))
    with pytest.raises(InputError, match="its legacy verdict reads 'other'"):
        kind.variants(prompts([BOS, A, B, 0]))


def test_a_builder_cannot_change_the_prompts_of_other_kinds():
    p = prompts([BOS, A, B, C], delimiter=[[0, 1, 0, 0]])
    before = p.ids.copy(), p.mask.copy(), p.delimiter.copy()
    for name in ("ids", "mask", "delimiter"):

        def spoil(given, name=name):
            getattr(given, name)[:] = 0
            return {}

        with pytest.raises(ValueError, match="read-only"):
            Kind("own", "A kind under test.", spoil).variants(p)
    assert all(
        (old == new).all() for old, new in zip(before, (p.ids, p.mask, p.delimiter), strict=True)
    )
    p.ids[0, 1] = C  # their owner may still write to them
    assert p.ids[0, 1] == C


def test_the_sink_metric_reads_documents_of_64_tokens_or_more():
    ids = np.full((2, 80), A)
    ids[0, 63:] = 0
    labels = KINDS["first_position"].variants(prompts(*ids))["alpha64"][0]
    assert (labels.q >= 0).sum(1).tolist() == [0, 64]  # 63 tokens are one too few


def test_labels_too_large_for_int64_are_refused():
    small = np.ones((1, 4), np.uint64)
    assert Labels(small, small).q.tolist() == [[1, 1, 1, 1]]
    largest = small * np.uint64(2**63 - 1)
    assert Labels(largest, small).q[0, 0] == 2**63 - 1
    with pytest.raises(InputError, match=r"below 2\*\*63.* k has 9223372036854775808"):
        Labels(small, largest + np.uint64(1))


def test_labels_are_whole_numbers_of_two_axes():
    whole = np.zeros((1, 4), np.int32)
    assert Labels(whole, whole).q.dtype == np.int64
    for bad in (np.zeros((1, 4)), np.zeros(4, int)):
        with pytest.raises(Exception, match=r"whole numbers|Type-check"):
            Labels(bad, bad)
    with pytest.raises(InputError, match="1 or -1"):
        Labels(whole, whole, sign=5)


def test_prompts_without_holes():
    ids = np.array([[1, 2, 3]])
    for mask in ([[True, False, True]], [[False, False, False]]):
        with pytest.raises(InputError, match="has a hole or is empty"):
            Prompts("natural", ids, np.array(mask), False)
    with pytest.raises(Exception, match=r"one shape|Type-check"):
        Prompts("natural", ids, np.ones((1, 2), bool), False)
