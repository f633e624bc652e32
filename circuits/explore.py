"""Look at heads on one offline page: their map, their cards, their patterns on a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..interp.errors import InputError, shown
from ..interp.explorer.explorer import MAX_MIB, Explorer, make_explorer
from ..interp.explorer.facts import Card, Facts, HeadMap
from ..interp.explorer.read import Patterns, read_patterns
from ..interp.explorer.window import Window
from ..interp.heads import HeadId, Heads
from ..interp.model_names import name_of
from ..interp.plain_text import checked_text, counted
from ..interp.sites import attention_sites, hook_drift, unbridged
from .arguments import whole_number
from .atlas_file import with_natural
from .card_text import best_first
from .same_weights import check_weights
from .show import COLUMNS, head_cells, provenance

if TYPE_CHECKING:
    from .atlas import HeadAtlas

Progress = Callable[[str, int, int], None]

_MIB = 2**20


def explore(
    model: Any = None,
    tokenizer: Any = None,
    text_or_ids: Any = None,
    *,
    atlas: HeadAtlas | None = None,
    heads: Heads | None = None,
    windows: str | Window | Sequence[str | Window] = (),
    prepend_bos: bool | None = None,
    title: str | None = None,
    max_mib: int = MAX_MIB,
    progress: Progress | None = None,
) -> Explorer:
    """Make a page on which to look at heads: one file, no network, no server.

    A text of up to 512 tokens has every weight on the page, at most 0.002 off (0.0004 where it is
    below 0.01). A longer one has, of each head, the largest weight of each cell of a grid of at
    most 128 × 128, and the four strongest keys of each query, to 1/65535; `windows` adds all
    weights of some parts.

    Args:
        model: a transformers model of one stack; None: no patterns, the atlas alone.
        tokenizer: its tokenizer; may be None when ids are passed.
        text_or_ids: one text, or one sequence of token ids [1, pos]; at most 65,534 tokens.
        atlas: what is known of the heads: it colours their map, and gives each a card. Without one
            the map shows what the text alone says: entropy, weight on the first token and on the
            previous one.
        heads: whose patterns to keep; None: all. The map and the cards have all heads of the atlas.
        windows: parts of a long text to keep whole, such as `"L18H6,L17H3@1024:1280,0:256"`
            (queries 1024 to 1279, keys 0 to 255), or `"all@0:256"`.
        prepend_bos: whether the text starts with a BOS token; None leaves it to the tokenizer.
        title: of the page; None: the model's name.
        max_mib: the largest page, in MiB.
        progress: called with ("reading", layers done, layers).

    Returns:
        The page: `.save("page.html")` writes it, a notebook shows it, `.size_bytes` is its size.

    Raises:
        InputError: neither a model with a text nor an atlas, an atlas of another model, several
            texts, unknown heads or windows, too long a text, or a page over `max_mib`.

    Example:
        >>> import headatlas as ha
        >>> model, tokenizer = ha.load("tiny")
        >>> explore(model, tokenizer, "the cat sat. the cat", heads=["L0H0"])
        <Explorer: 1 head × 11 tokens, 0.1 MiB>
    """
    model = unbridged(model)
    max_mib = whole_number("max_mib", max_mib, 1)
    if atlas is not None and not hasattr(atlas, "tables"):
        raise InputError(
            f"atlas is a HeadAtlas; got {shown(atlas)}. Read a file with HeadAtlas.load."
        )
    if title is not None:
        checked_text(title, "title")
    if model is None:
        if atlas is None or any(
            given is not None and given != ()
            for given in (tokenizer, text_or_ids, heads, windows, prepend_bos)
        ):
            raise InputError(
                "explore takes a model, its tokenizer and a text; or an atlas alone, whose page "
                "has no patterns and takes no options about them."
            )
        return page_of(None, None, atlas=atlas, title=title, max_mib=max_mib)
    if text_or_ids is None:
        raise InputError(
            "explore needs a text (or token ids, or an image) to show the model's patterns on: "
            "explore(model, tokenizer, text); the tokenizer may be None for ids and images."
        )
    if atlas is not None:
        check_atlas(model, atlas)
    patterns = read_patterns(
        model, tokenizer, text_or_ids, heads=heads, windows=windows, prepend_bos=prepend_bos,
        max_bytes=max_mib * _MIB, progress=progress,
    )  # fmt: skip
    return page_of(model, patterns, atlas=atlas, title=title, max_mib=max_mib)


def page_of(
    model: Any,
    patterns: Patterns | None,
    *,
    atlas: HeadAtlas | None,
    title: str | None,
    max_mib: int,
) -> Explorer:
    """Put a page together from patterns that were read and what is known of the heads.

    Args:
        model: that was read; None: no patterns.
        patterns: of some or all of its heads.
        atlas: of the same model.
        title: as in `explore`, like `max_mib`.
        max_mib: the largest page.

    Raises:
        InputError: the page is larger.
    """
    drawn = set() if patterns is None else {data.head for data in patterns.heads}
    heads = tuple(sorted(drawn | set(atlas or ())))
    facts = Facts(
        title=_name(model, atlas) if title is None else title,
        lines=(*_about_page(model, patterns), *_about_atlas(atlas)),
        maps=() if atlas is None else tuple(_maps(atlas)),
        cards={} if atlas is None else {head: _card(atlas, head) for head in heads},
        columns=COLUMNS[1:],
    )
    return make_explorer(facts, patterns, heads, max_mib=max_mib)


def check_atlas(model: Any, atlas: HeadAtlas) -> None:
    """Refuse an atlas that is not of this model.

    Raises:
        InputError: it is of other weights, or of heads that the model does not have.
    """
    check_weights(model, atlas.model)
    known = {head for site in attention_sites(model) for head in site.heads}
    strange = [head for head in atlas if head not in known]
    if strange:
        raise InputError(
            f"the atlas has a head {strange[0]}, which this {type(model).__name__} of "
            f"{len(known)} heads does not have; it is of another model."
        )


def _name(model: Any, atlas: HeadAtlas | None) -> str:
    if atlas is not None:
        return str(atlas.model["name"])
    return name_of(model)


def _about_page(model: Any, patterns: Patterns | None) -> list[str]:
    if patterns is None:
        return ["No patterns on this page: it was made of an atlas alone."]
    dtype = str(model.dtype).removeprefix("torch.")
    lines = [
        f"{type(model).__name__}, {dtype}, hook drift {hook_drift(model):.1e}; "
        f"{counted(len(patterns.heads), 'head')} on a text of {len(patterns.tokens):,} tokens"
    ]
    if patterns.cell > 1:
        lines.append(
            f"patterns pooled: the largest weight of each {patterns.cell} × {patterns.cell} cell, "
            "and the four strongest keys of each query"
        )
    return lines


def _about_atlas(atlas: HeadAtlas | None) -> list[str]:
    if atlas is None:
        return []
    version = atlas.versions.get("headatlas", "")
    return [f"Labels by headatlas {version}: {line}" for line in provenance(atlas).split("\n")]


def _maps(atlas: HeadAtlas) -> list[HeadMap]:
    """The best label of each head, the score of every kind, and what removal does."""
    labelled = atlas.table()
    # of nearly equal excess the kind that comes first: offset -1 is the previous token again
    rounded = labelled.assign(excess=labelled["excess"].round(2))
    best = rounded.sort_values("excess", ascending=False, kind="stable")
    best = best.drop_duplicates("address")
    words = dict(zip(map(HeadId.parse, best["address"]), best["kind"], strict=True))
    grades = dict(zip(map(HeadId.parse, best["address"]), best["grade"], strict=True))
    maps = [HeadMap(":label", "its strongest label", words, grades=grades)]
    for kind in atlas.kinds:
        rows = atlas.rows[atlas.rows["kind"] == kind]
        maps.append(
            HeadMap(
                kind, f"score: {kind}", _by_head(rows, "score"), top=1.0,
                signed=bool((rows["score"] < 0).any()), grades=_by_head(rows, "grade"),
            )
        )  # fmt: skip
    causal = atlas.tables.get("causal")
    if causal is not None and {"kind", "ablation", "effect"} <= set(causal):
        pairs = causal[["kind", "ablation"]].drop_duplicates()
        for kind, ablation in pairs.itertuples(index=False, name=None):
            rows = causal[(causal["kind"] == kind) & (causal["ablation"] == ablation)]
            title = f"harm of removal ({ablation}) to what {kind} predicts"
            name = f":removal.{kind}.{ablation}"
            maps.append(HeadMap(name, title, _by_head(rows, "effect"), signed=True))
    return maps


def _by_head(rows: Any, column: str) -> dict[HeadId, Any]:
    places = zip(rows["site"], rows["layer"], rows["head"], rows[column], strict=True)
    return {HeadId(str(site), int(layer), int(head)): value for site, layer, head, value in places}


def _card(atlas: HeadAtlas, head: HeadId) -> Card:
    if head not in atlas:
        return Card((), f"{head} is not in the atlas.")
    card = atlas[head]
    named = [row for row in card.rows.to_dict("records") if row["kind"] in card.labels]
    labels = tuple(f"{row['kind']} ({row['grade']})" for row in best_first(named))
    given = [
        head_cells({**row, "address": str(head)})
        for row in with_natural(card.rows).to_dict("records")
    ]
    rows = tuple(tuple(cells[name] for name in COLUMNS[1:]) for cells in given)
    return Card(labels, str(card), rows)
