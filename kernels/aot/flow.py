"""Cycles of a control flow, and the cycles in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

Graph = Mapping[int, Sequence[int]]  # the successors of each node; each successor is a node too
DEEPEST = 32


@dataclass(frozen=True)
class Cycle:
    """Nodes that can all reach each other.

    Args:
        nodes: All of them, those of inner cycles included.
        inner: What still goes round in it when it cannot be entered again.

    Example:
        >>> Cycle(frozenset({1, 2})).inner
        ()
    """

    nodes: frozenset[int]
    inner: tuple[Cycle, ...] = ()


def nested(graph: Graph, depth: int = 0) -> tuple[Cycle, ...]:
    """The outermost cycles, in the order of their first nodes; they hold the inner ones.

    A cycle is cut where it is entered, be it at several nodes; what is left are inner cycles.
    Below 32 levels, which no program of people has, none are looked for.

    Args:
        graph: The successors of each node.
        depth: How many cycles it lies in.

    Example:
        >>> outer, own = nested({0: (1,), 1: (2,), 2: (2, 1, 3), 3: (3,)})
        >>> sorted(outer.nodes), sorted(outer.inner[0].nodes), sorted(own.nodes)
        ([1, 2], [2], [3])

    Reference: Steensgaard 1993.
    """
    if depth == DEEPEST:
        return ()
    parts = sorted(_cycles(graph), key=min)
    return tuple(Cycle(part, nested(_cut(graph, part), depth + 1)) for part in parts)


def _cycles(graph: Graph) -> Iterator[frozenset[int]]:
    """The strongly connected parts, without single nodes at rest (Kosaraju's algorithm)."""
    before: dict[int, list[int]] = {node: [] for node in graph}
    for node, following in graph.items():
        for successor in following:
            before[successor].append(node)
    seen: set[int] = set()
    order = [node for start in graph for node in _postorder(graph, start, seen)]
    seen = set()
    for start in reversed(order):
        part = frozenset(_postorder(before, start, seen))
        if len(part) > 1 or any(node in graph[node] for node in part):
            yield part


def _cut(graph: Graph, part: frozenset[int]) -> dict[int, list[int]]:
    entries = {
        successor
        for node, following in graph.items()
        if node not in part
        for successor in following
        if successor in part
    }
    entries = entries or {min(part)}  # the program begins with it
    return {
        node: [next for next in graph[node] if next in part and next not in entries]
        for node in sorted(part)
    }


def _postorder(graph: Graph, start: int, seen: set[int]) -> Iterator[int]:
    """Nodes reached from `start` and not yet seen, each after what it leads to."""
    if start in seen:
        return
    seen.add(start)
    path = [(start, iter(graph[start]))]
    while path:
        node, following = path[-1]
        for successor in following:
            if successor not in seen:
                seen.add(successor)
                path.append((successor, iter(graph[successor])))
                break
        else:
            path.pop()
            yield node
