"""What a caller passes by mistake, without the type checks that other tests run under."""

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json
import sys
import numpy as np
import headatlas as ha
from headatlas.circuits.battery import Battery
from headatlas.circuits.kinds import KINDS, Kind, choose_kinds
from headatlas.circuits.kind import Legacy
from headatlas.interp.errors import InputError
from headatlas.interp.probes import random_prompts

model, tokenizer = ha.load("tiny")
prompts = random_prompts(np.arange(100, 900), 2, 40)
labels = KINDS["induction"].labels
found = []
for case in json.loads(sys.argv[1]):
    try:
        found.append(["passed", repr(eval(case))])
    except InputError as error:
        found.append(["refused", str(error)])
    except Exception as error:
        found.append([type(error).__name__, str(error)])
print(json.dumps(found))
"""

REFUSED = {
    "ha.classify('tiny')": "got 'tiny'. Load one first: model, tokenizer = headatlas.load('tiny')",
    "ha.attention_sites('tiny')": "expected a transformers model; got 'tiny'. Load one first",
    "ha.score('tiny', prompts)": "expected a transformers model; got 'tiny'",
    "ha.classify(None)": "expected a transformers model; got NoneType",
    "ha.classify(3, tokenizer)": "expected a transformers model; got int",
    "ha.classify(tokenizer, model)": "the model comes first and its tokenizer second",
    "ha.classify(tokenizer)": "the model comes first and its tokenizer second",
    "ha.classify(model, 'tiny')": "the model's tokenizer, or None; got 'tiny'",
    "ha.classify(model, model)": "the model's tokenizer, or None; got LlamaForCausalLM",
    "ha.classify(model, tokenizer, rule=0.1)": "rule is a Rule or None; got float",
    "ha.classify(model, tokenizer, kinds=5)": "a list of them; got int",
    "ha.classify(model, tokenizer, kinds=[5])": "unknown kind 5",
    "ha.score(model, 'text')": "prompts are a Prompts; got str",
    "ha.score(model, prompts, seed=0.5)": "seed is a whole number of at least 0; got 0.5",
    "Kind(None, 'x', labels)": "a kind's name is a lower-case identifier; got None",
    "Kind('own', None, labels)": "kind own: definition is a sentence; got None",
    "Kind('own', 'x', None)": "kind own: labels is a function that builds label vectors; got None",
    "Kind('own', 'x', labels, prompts='natural')": "kind own: prompts are random, natural, cl",
    "Kind('own', 'x', labels, prompts=None)": "kind own: prompts are random, natural, classic,",
    "Kind('own', 'x', labels, candidates=1)": "candidates is True or False; got 1",
    "Kind('own', 'x', labels, legacy=0.4)": "legacy is a Legacy or None; got 0.4",
    "Battery(prepend_bos=0)": "prepend_bos is True, False or None; got 0",
    "Battery(prepend_bos='no')": "prepend_bos is True, False or None; got 'no'",
    "Battery(seed=True)": "seed is a whole number of at least 0; got True",
    "Battery(prompts=np.True_)": "prompts is a whole number",
    "Battery(prompts=16.0)": "prompts is a whole number of at least 16; got 16.0",
    "Battery(text=b'x')": "text is a str; got bytes",
}
PASSED = {
    "Kind('own', 'x', labels, prompts=['natural']).prompts": "('natural',)",
    "Battery(prepend_bos=np.False_).prepend_bos": "False",
    "vars(Battery(np.int64(20), np.uint8(32), seed=np.int32(3)))": (
        "{'prompts': 20, 'seq_len': 32, 'text': None, 'prepend_bos': None, 'null_draws': 0, "
        "'seed': 3, 'treebank': None}"
    ),
}


@pytest.fixture(scope="module")
def outcomes():
    """One process for all: importing torch takes longer than each refusal."""
    cases = [*REFUSED, *PASSED]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(cases)],
        capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(zip(cases, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_object_is_refused_in_words(outcomes, case):
    outcome, message = outcomes[case]
    assert outcome == "refused", message
    assert REFUSED[case] in message


@pytest.mark.parametrize("case", PASSED)
def test_what_plainly_means_the_right_thing_is_taken(outcomes, case):
    assert outcomes[case] == ["passed", PASSED[case]]
