"""One value per attention site of a model, found by the site, its module's name or its number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, SupportsIndex, TypeVar

from .errors import InputError, shown
from .plain_numbers import as_index
from .sites import Site

T = TypeVar("T")


class BySite(Mapping[Site, T]):
    """A read-only mapping from a model's sites, in call order.

    A key may also be the name of the attention module or, in a model of one stack, the number of an
    attention layer; negative ones count from the last.

    Args:
        found: the value of each site.

    Example:
        >>> site = Site("attn", "", 0, n_heads=2, n_kv_heads=2, d_head=4, d_value=4, causal=True)
        >>> found = BySite({site: "what it is"})
        >>> found[site] == found["attn"] == found[0] == found[-1]
        True
    """

    what = "values"  # what error messages call them

    def __init__(self, found: Mapping[Site, T]) -> None:
        self._found = dict(found)
        # a module that runs several times in a forward pass names none of its sites
        names = Counter(site.module for site in self._found)
        self._by_name = {site.module: site for site in self._found if names[site.module] == 1}

    def __getitem__(self, key: Site | str | SupportsIndex) -> T:
        site = self._site(key)
        if site is None:
            raise InputError(
                f"there are no {self.what} of {shown(key)}. A key is a Site of "
                f"attention_sites(model) or a module{self._example()}{self._numbers()}."
            )
        return self._found[site]

    def __contains__(self, key: object) -> bool:
        return self._site(key) is not None

    def __iter__(self) -> Iterator[Site]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of a site, or `default` where there is none."""
        site = self._site(key)
        return default if site is None else self._found[site]

    def _site(self, key: Any) -> Site | None:
        if isinstance(key, Site):
            return key if key in self._found else None
        if isinstance(key, str):
            return self._by_name.get(key)
        number = as_index(key)
        if number is None:
            return None
        number += len(self) if number < 0 else 0
        fits = [site for site in self._found if site.layer == number and not site.stack]
        return fits[0] if len(fits) == 1 else None

    def _example(self) -> str:
        return "".join(f" such as {name!r}" for name in list(self._by_name)[:1])

    def _numbers(self) -> str:
        stacks = list(dict.fromkeys(site.stack for site in self._found))
        if not stacks or stacks == [""]:
            return f", or a layer's number, 0 to {len(self) - 1}"
        return f"; a number does not tell the stacks {', '.join(stacks)} apart"
