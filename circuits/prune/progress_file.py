"""What an unfinished comparison of methods has found, so that it can be taken up again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from ...interp.errors import InputError
from ...interp.files import atomic_write, check_target, read_json
from ...interp.heads import HeadId

_FORMAT = "headatlas prune progress 1"
MOST_MIB = 1024
"""Of a JSON file of results that is read."""


class ProgressFile:
    """Orders of heads and losses of cuts, in a JSON file that is replaced all at once.

    Args:
        path: of the file, which need not exist; None keeps everything in memory alone.
        identity: what the numbers depend on, by name; texts.

    Raises:
        InputError: the file cannot be read or written, is damaged, or is of another identity.
    """

    def __init__(self, path: Path | None, identity: Mapping[str, str]) -> None:
        self.path, self._identity = path, dict(identity)
        self._orders: dict[str, list[str]] = {}
        self._losses: dict[str, list[list[float]]] = {}
        if path is None:
            return
        check_target(path)
        if path.exists():
            self._read(path)

    def order(self, key: str) -> tuple[HeadId, ...] | None:
        """An order that was kept."""
        found = self._orders.get(key)
        return None if found is None else tuple(HeadId.parse(head) for head in found)

    def keep_order(self, key: str, heads: Iterable[HeadId]) -> None:
        """Keep an order."""
        self._orders[key] = [str(head) for head in heads]
        self._write()

    def losses(self, key: str, documents: int) -> np.ndarray | None:
        """Figures per document that were kept, [figure, document].

        Raises:
            InputError: they are of another number of documents.
        """
        found = self._losses.get(key)
        if found is None:
            return None
        if any(len(row) != documents for row in found):
            raise self._damaged("figures of another number of documents")
        return np.array(found, float)

    def keep_losses(self, found: Mapping[str, Sequence[np.ndarray]]) -> None:
        """Keep figures per document, several keys at once."""
        for key, figures in found.items():
            self._losses[key] = [np.asarray(figure, float).tolist() for figure in figures]
        self._write()

    def _write(self) -> None:
        if self.path is None:
            return
        content = {
            "format": _FORMAT, "identity": self._identity, "orders": self._orders,
            "losses": self._losses,
        }  # fmt: skip
        with atomic_write(self.path) as partial:
            partial.write_text(json.dumps(content, allow_nan=False), encoding="utf-8")

    def _read(self, path: Path) -> None:
        content = read_json(path, MOST_MIB)
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise self._damaged("another format")
        identity = content.get("identity")
        if not isinstance(identity, dict):
            raise self._damaged("no identity")
        other = [name for name, own in self._identity.items() if identity.get(name) != own]
        if other:
            raise InputError(
                f"{str(path)!r} is of an unfinished run with other {', '.join(other)}. Choose "
                "another folder, or delete it."
            )
        orders, losses = content.get("orders"), content.get("losses")
        if not _is_orders(orders) or not _is_losses(losses):
            raise self._damaged("what no run keeps")
        self._orders |= orders
        self._losses |= losses

    def _damaged(self, why: str) -> InputError:
        return InputError(f"{str(self.path)!r} is damaged ({why}). Delete it.")


def loss_key(documents: str, heads: Iterable[HeadId], weights: str = "") -> str:
    """Under which the losses of a cut are kept.

    Args:
        documents: the sort of documents.
        heads: the removed heads.
        weights: names the weights where they are not the model's own.
    """
    names = " ".join(sorted(str(head) for head in heads))
    return f"{documents} {hashlib.sha256(f'{weights} {names}'.encode()).hexdigest()[:32]}"


def _is_orders(orders: Any) -> TypeGuard[dict[str, list[str]]]:
    if not isinstance(orders, dict):
        return False
    try:
        for heads in orders.values():
            if not isinstance(heads, list) or len({HeadId.parse(h) for h in heads}) != len(heads):
                return False
    except (InputError, TypeError):
        return False
    return True


def _is_losses(losses: Any) -> TypeGuard[dict[str, list[list[float]]]]:
    return isinstance(losses, dict) and all(
        isinstance(rows, list)
        and all(isinstance(row, list) and all(map(_is_number, row)) for row in rows)
        and len(rows) == 2
        for rows in losses.values()
    )


def _is_number(value: Any) -> bool:
    # no infinity, which json reads too; a float's own bounds for whole numbers
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
