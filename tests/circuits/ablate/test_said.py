"""What is said of results: numbers and their nouns, a BOS, sizes other than asked."""

import numpy as np
import pytest

from headatlas.circuits.ablate.ablate import ablate_heads, ablation_sweep
from headatlas.circuits.ablate.intervals import FIGURES
from headatlas.circuits.ablate.plan import with_an_equal
from headatlas.interp.probes import Prompts
from headatlas.interp.texts import Documents
from tests.circuits.ablate.conftest import SMALL

TEXT = ["a cat sat."]


def test_the_first_method_and_the_figures_that_are_said(swept):
    text = repr(swept)
    assert text.startswith("12 heads removed one at a time (mean, zero)\n")
    assert text.count("certainly above 0") == 4
    assert list(swept.rows.columns[-len(FIGURES) :]) == list(FIGURES)


def test_numbers_agree_with_their_nouns(tiny):
    alone = ablate_heads(*tiny, ["L1H1"], TEXT, method="zero", **SMALL)
    assert "; 1 document with a BOS, 1 text\n" in repr(alone)
    assert alone.caveats[0].startswith("1 document of text:")
    sweep = ablation_sweep(*tiny, TEXT, heads=["L1H1"], methods="zero", **SMALL)
    text = repr(sweep)
    assert text.startswith("1 head removed (zero)\n")
    first, second = (line for line in text.splitlines() if "zero: most" in line)
    assert first.endswith(f"most without L1H1 {sweep.table()['delta_loss_nats'][0]:+.3f}")
    assert second.endswith("; 1 head certainly above 0")
    assert (second in text, "certainly" in first) == (True, False)  # no interval, no certainty
    ids = np.arange(12).reshape(2, 6)
    cut = with_an_equal(Documents(Prompts("text", ids, ids != 5, bos=False), "made"))
    assert cut.origin == "made, the last token of document 1 left out (no other is as long)"


@pytest.mark.parametrize("bos", [True, False])
def test_every_sort_of_documents_says_whether_it_has_a_bos(tiny, bos):
    told = f"16 documents {'with' if bos else 'without'} a BOS, "
    options = {"prepend_bos": bos, "method": "zero", **SMALL}
    found = repr(ablate_heads(*tiny, ["L1H1"], **options)).splitlines()
    assert [line.count(told) for line in found] == [0, 1, 1]
    nothing_tells = ablate_heads(tiny[0], None, ["L1H1"], method="zero", **SMALL)
    assert repr(nothing_tells).count("without a BOS") == 2
    options = {"prepend_bos": bos, "methods": "zero", "heads": ["L1H1"], **SMALL}
    assert repr(ablation_sweep(*tiny, **options)).count(told) == 2


@pytest.mark.parametrize(
    ("prompts", "seq_len", "told"),
    [
        (16, 16, None),
        (4, 24, "on 16 documents of 24 tokens, not on 4 of 24: 16 of 16 are the fewest"),
        (20, 8, "on 20 documents of 16 tokens, not on 20 of 8: 16 of 16 are the fewest"),
        (4, 8, "on 16 documents of 16 tokens, not on 4 of 8: 16 of 16 are the fewest"),
    ],
)
def test_second_copies_of_other_sizes_than_asked_are_said(tiny, prompts, seq_len, told):
    options = {"prompts": prompts, "seq_len": seq_len}
    for found in (
        ablate_heads(*tiny, ["L1H1"], **options),
        ablation_sweep(*tiny, heads=["L1H1"], **options),
    ):
        read = found.evaluations["repeated"]["mean"].documents.prompts.ids
        assert read.shape == (max(prompts, 16), max(seq_len, 16))
        said = [one for one in found.caveats if one.startswith("second copies")]
        assert (told is None) == (said == [])
        assert told is None or told in said[0]
        assert all(one in repr(found) for one in said)
