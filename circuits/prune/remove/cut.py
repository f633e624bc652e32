"""What is cut out of one attention module, as plain numbers that a JSON file can hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ....interp.errors import InputError, shown

_MOST = 2**20  # widths, rows: far beyond any model's
_MOST_HEADS = 4096
_MOST_VALUES = 8  # that an attention module returns


@dataclass(frozen=True)
class Cut:
    """The heads that one attention module keeps, and the sizes of its parts after the cut.

    Attributes:
        module: its name in `model.named_modules()`.
        stack, layer: its address in the whole model, as in `Site`.
        n_heads, n_kv_heads: heads before the cut.
        d_head, d_value: widths of a query and of a value.
        kept: the query heads that stay, in order.
        output: the projection that reads z.
        returns: how many values the module returns; 0: one, not in a tuple.
        projections: projection -> outputs that stay.
        rows: parameter or buffer -> length of its first dimension that stays.
    """

    module: str
    stack: str
    layer: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_value: int
    kept: tuple[int, ...]
    output: str
    returns: int
    projections: Mapping[str, int]
    rows: Mapping[str, int]

    @property
    def groups(self) -> tuple[int, ...]:
        """The key-value head of each query head that stays, numbered as before the cut."""
        return tuple(head * self.n_kv_heads // self.n_heads for head in self.kept)

    @property
    def kv_kept(self) -> tuple[int, ...]:
        """The key-value heads that stay: those that a query head still reads."""
        return tuple(sorted(set(self.groups)))

    @property
    def kv_of(self) -> tuple[int, ...]:
        """The key-value head of each query head that stays, numbered as after the cut."""
        places = {group: place for place, group in enumerate(self.kv_kept)}
        return tuple(places[group] for group in self.groups)

    @property
    def even(self) -> bool:
        """Whether all key-value heads that stay serve equally many query heads."""
        return len(set(Counter(self.groups).values())) <= 1

    @property
    def whole(self) -> bool:
        """Whether every head stays."""
        return len(self.kept) == self.n_heads

    def as_record(self) -> dict[str, Any]:
        """Its fields as JSON values."""
        return {**asdict(self), "kept": list(self.kept)}


def read_cut(record: Any, name: str) -> Cut:
    """A cut from the entry of a JSON file.

    Raises:
        InputError: fields are missing or unknown, of another type, or contradict each other.

    Example:
        >>> read_cut({"module": "attn"}, "pruned.json")
        Traceback (most recent call last):
        ...
        headatlas.interp.errors.InputError: pruned.json: a site must have the entries module, \
stack, layer, n_heads, n_kv_heads, d_head, d_value, kept, output, returns, projections, rows; got \
module. Save the model again.
    """
    wanted = [field.name for field in fields(Cut)]
    if not isinstance(record, dict) or set(record) != set(wanted):
        got = ", ".join(map(str, record))[:80] if isinstance(record, dict) else shown(record)
        raise InputError(
            f"{name}: a site must have the entries {', '.join(wanted)}; got {got}. "
            "Save the model again."
        )
    for key in ("module", "stack", "output"):
        _check(isinstance(record[key], str) and len(record[key]) < 1000, key, record, name)
    _check(record["stack"] in ("", "enc", "dec", "cross"), "stack", record, name)
    for key in ("layer", "n_heads", "n_kv_heads", "d_head", "d_value", "returns"):
        low = 0 if key in ("layer", "returns") else 1
        _check(_is_count(record[key]) and record[key] >= low, key, record, name)
    _check(record["n_heads"] <= _MOST_HEADS, "n_heads", record, name)
    _check(record["returns"] <= _MOST_VALUES, "returns", record, name)
    _check(record["n_heads"] % record["n_kv_heads"] == 0, "n_kv_heads", record, name)
    kept = record["kept"]
    _check(isinstance(kept, list) and all(map(_is_count, kept)), "kept", record, name)
    _check(sorted(set(kept)) == kept, "kept", record, name)
    _check(not kept or kept[-1] < record["n_heads"], "kept", record, name)
    for key in ("projections", "rows"):
        sizes = record[key]
        _check(isinstance(sizes, dict) and all(map(_is_count, sizes.values())), key, record, name)
    return Cut(**{**record, "kept": tuple(kept)})


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _check(holds: bool, key: str, record: dict[str, Any], name: str) -> None:
    if not holds:
        raise InputError(
            f"{name}: {key} of {shown(record['module'])} cannot be {shown(record[key])}. "
            "Save the model again."
        )
