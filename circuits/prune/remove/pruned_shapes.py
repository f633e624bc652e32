"""The attention shapes of a pruned model, whose config is still that of the whole one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from ....interp.errors import InputError
from ...cost.shapes import AttentionShapes, LayerShape, check_count
from .cut import Cut


class UnevenShape(LayerShape):
    """A layer whose key-value heads serve unequal numbers of query heads.

    The formulas of cost use h and g alone, so that they hold for it as they stand.

    Example:
        >>> UnevenShape(16, n_heads=3, n_kv_heads=2, d_head=4, d_value=4).cache_width
        16
    """

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        LayerShape(**{**given, "n_kv_heads": self.n_heads})  # which checks all the rest
        check_count("n_kv_heads", self.n_kv_heads, self.n_heads)


def pruned_shapes(whole: AttentionShapes, cuts: Sequence[Cut]) -> AttentionShapes:
    """What is left of a model's attention layers; a layer without heads is none.

    Args:
        whole: the layers before the cut.
        cuts: what was cut out of each, in the same order.

    Raises:
        InputError: the cuts are not those of these layers, or no head is left at all.
    """
    if len(whole.layers) != len(cuts):
        raise InputError(
            f"{whole.name} has {len(whole.layers)} attention layers by its config, but the heads "
            f"of {len(cuts)} are said to be kept; they do not belong together. Save it again."
        )
    return AttentionShapes(tuple(_left(whole, cuts)), whole.name)


def _left(whole: AttentionShapes, cuts: Sequence[Cut]) -> Iterator[LayerShape]:
    for layer, cut in zip(whole.layers, cuts, strict=True):
        said, known = (
            (one.n_heads, one.n_kv_heads, one.d_head, one.d_value) for one in (cut, layer)
        )
        if said != known:
            raise InputError(
                f"{cut.module} of {whole.name} has {known[0]} heads, {known[1]} key-value heads "
                f"and widths {known[2]} and {known[3]} by the config; what is known of its cut "
                f"says {said}. Save the model again."
            )
        if not cut.kept:
            continue
        if layer.latent is not None:
            yield replace(layer, n_heads=len(cut.kept), n_kv_heads=len(cut.kept))
        elif cut.even:
            yield replace(layer, n_heads=len(cut.kept), n_kv_heads=len(cut.kv_kept))
        else:
            same = {field.name: getattr(layer, field.name) for field in fields(layer)}
            left = {"n_heads": len(cut.kept), "n_kv_heads": len(cut.kv_kept)}
            yield UnevenShape(**{**same, **left})
