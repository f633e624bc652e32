"""What tests of plots share."""

import re

import torch
from hypothesis import strategies as st

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<b>",
    "<s>",
    "a & b",
    "\u202eabc",
    "$x^2$",
    "%{z}",
]
# what is meant for tags, formulas, templates, right-to-left text and broken encodings
WORDS = st.text(st.characters(), max_size=12) | st.sampled_from(
    [*HOSTILE, "", "\ud800", "שלום", "👩‍🚀"]
)


def causal(*shape, seed=0):
    scores = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    future = torch.ones(shape[-2:]).triu(1 + shape[-1] - shape[-2]).bool()
    return scores.masked_fill(future, float("-inf")).softmax(dim=-1)


def texts_of(figure):
    """Every text that plotly would read tags in."""
    found = []

    def gather(value, key=""):
        if isinstance(value, dict):
            for name, part in value.items():
                gather(part, name)
        elif isinstance(value, list | tuple):
            for part in value:
                gather(part, key)
        elif isinstance(value, str):
            found.append(value)

    gather(figure.to_dict())
    return found


def assert_safe(figure):
    """No tag but plotly's own, nothing that cannot be written, no formula, no direction change."""
    figure.to_json().encode("utf-8")
    for text in texts_of(figure):
        tags = set(re.findall("<[^>]*>?", text))
        assert not {tag for tag in tags if not re.fullmatch("<br>|</?extra>", tag)}, text
        assert "$" not in text
        assert not set(text) & {"\u202e", "\u200b", "\0"}
