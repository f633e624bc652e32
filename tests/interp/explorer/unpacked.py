"""A page's numbers, read back the way its script does."""

import base64
import json
import re
import zlib
from types import SimpleNamespace

import numpy as np

from headatlas.interp.explorer.blocks import STRONGEST


def inflated(text, dtype=np.uint8):
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype)


def head_numbers(blocks, windows, n_tokens, cell):
    """Cells, strongest keys, their weights and windows of one head's blocks."""
    side = -(-n_tokens // cell)
    exact = [
        inflated(block).reshape(w["rows"][1] - w["rows"][0], w["keys"][1] - w["keys"][0])
        for block, w in zip(blocks[3:], windows, strict=True)
    ]
    return SimpleNamespace(
        cells=(inflated(blocks[0]).reshape(side, side) / 255) ** 2,
        keys=inflated(blocks[1], "<u2").reshape(n_tokens, STRONGEST),
        weights=inflated(blocks[2], "<u2").reshape(n_tokens, STRONGEST) / 65535,
        windows=[(window / 255) ** 2 for window in exact],
    )


def page_data(html):
    """The page's own data, and the blocks of each of its heads."""
    data = json.loads(re.search(r'id="data">(.*?)</script>', html)[1])
    found = re.findall(r'<script type="text/plain" id="b(\d+)-(\d+)">([^<]*)</script>', html)
    blocks = {}
    for number, place, text in found:
        assert len(blocks.setdefault(int(number), [])) == int(place)
        blocks[int(number)].append(text)
    return data, blocks
