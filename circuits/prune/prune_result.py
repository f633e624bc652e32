"""The result of pruning: which heads go, what that costs, which kinds of heads survive."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ...interp.bridge import refuse_bridge
from ...interp.errors import InputError
from ...interp.heads import HeadId
from ...interp.plain_text import counted
from ...interp.plots import write_figure
from ..atlas import HeadAtlas
from .curve import SECOND, Cut
from .gate_result import GateResult
from .prune_file import MODEL, check_folder, read_result, write_result
from .remove.files import save_pruned
from .remove.remove import remove_heads
from .survivors import labels_of, survivors_of
from .working_copy import with_weights

if TYPE_CHECKING:
    from plotly.graph_objects import Figure
    from transformers import PreTrainedModel

Row = Mapping[Any, Any]


@dataclass(frozen=True, eq=False, repr=False)
class Source:
    """What a result needs to give the model without the heads; not part of its files."""

    model: PreTrainedModel
    tokenizer: Any
    trained: Mapping[float, GateResult]


@dataclass(frozen=True, eq=False, repr=False)
class PruneResult:
    """What `prune_heads` found.

    Args:
        heads: all heads of the model.
        cuts: the sets of heads that were removed, each in order of removal.
        curve: one row per cut after one for the whole model (`CURVE_COLUMNS`): method, draw, asked
            (the sparsity or λ asked for), sparsity (reached), n_removed, finetuned, then tokens,
            losses in nats/token, Δ loss, perplexity ratio and KL on held-out text with their
            intervals, and the same with `second_copy_` in front at the second copies of repeated
            random tokens.
        gates: of `l0`, one row per asked × head: log_alpha, p_open, gate (without noise), kept.
        differences: how the first method's loss differs from each other's: difference_nats with
            its interval, below 0 where the first does better (mean over the other's draws).
        labels: what heads did before, if an atlas was given: one row per head × kind.
        caveats: what limits the figures, in sentences.
        settings: everything needed to run it again.
        finished: whether all methods were measured.
        source: the model, in the run that made this; None for a result that was loaded.
    """

    heads: tuple[HeadId, ...]
    cuts: tuple[Cut, ...]
    curve: pd.DataFrame
    gates: pd.DataFrame
    differences: pd.DataFrame
    labels: pd.DataFrame
    caveats: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    finished: bool = True
    source: Source | None = None

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods, in the order asked for."""
        return tuple(dict.fromkeys(cut.method for cut in self.cuts))

    def removed(
        self, method: str | None = None, sparsity: float | None = None, *, draw: int = 0
    ) -> tuple[HeadId, ...]:
        """The heads that a method removes, the first to go first.

        Args:
            method: one of `methods`; None: the first.
            sparsity: as it was asked for (the λ, where that was); None: the largest cut.
            draw: of a random method.

        Raises:
            InputError: there is no such cut.
        """
        return self.cut(method, sparsity, draw).heads

    def pruned(self, method: str | None = None, sparsity: float | None = None) -> PreTrainedModel:
        """The model physically without the heads, with the weights trained along if there are any.

        Args:
            method: as in `removed`.
            sparsity: likewise.

        Raises:
            InputError: there is no such cut, the result was loaded from a folder, it is of a
                TransformerLens bridge, or the model cannot be cut.
        """
        cut, source = self.cut(method, sparsity, 0), self.source
        if source is None:
            raise InputError(
                "a loaded result has no model with it. Load the one in its folder with "
                f"load_pruned(folder / {MODEL!r}), or cut yours: remove_heads(model, "
                "result.removed())."
            )
        if cut.finetuned and cut.asked not in source.trained:
            raise InputError(
                "this result was found finished in its folder, and the weights trained along are "
                f"in the model there alone: load_pruned(folder / {MODEL!r})."
            )
        refuse_bridge(
            source.model,
            "Cutting heads out",
            "call remove_heads(model, result.removed()) with that",
        )
        weights = source.trained[cut.asked].weights if cut.finetuned else None
        model = source.model if weights is None else with_weights(source.model, weights)
        return remove_heads(model, cut.heads)

    def survivors(
        self, atlas: HeadAtlas | None = None, *, method: str | None = None, grade: str = "weak"
    ) -> pd.DataFrame:
        """Which kinds of heads are left after each cut (the table of Voita's figure).

        Args:
            atlas: the labels of the whole model; None: the one that `prune_heads` was given.
            method: one of `methods`; None: all.
            grade: the least grade of a label that counts.

        Returns:
            One row per method × asked × kind: n_removed, n_labelled (before), n_surviving, share.

        Raises:
            InputError: no labels are known, the atlas is of another model, or no such method.

        Reference:
            Voita 2019, figure 7.
        """
        labels = self.labels if atlas is None else labels_of(atlas, self.heads)
        if atlas is None and not self.settings.get("atlas"):
            raise InputError(
                "nothing is known of what heads do; pass the model's atlas, "
                "survivors(classify(model, tokenizer))."
            )
        wanted = self.methods if method is None else (self._known(method),)
        cuts = [cut for cut in self.cuts if cut.method in wanted]
        return survivors_of(labels, self.heads, cuts, grade=grade)

    def plot(
        self,
        value: str = "delta_loss_nats",
        *,
        title: str | None = None,
        theme: str = "light",
    ) -> Figure:
        """The curve: loss against heads removed, a line per method, with intervals.

        Args:
            value: `delta_loss_nats`, `perplexity_ratio`, `kl_nats` or
                `second_copy_delta_loss_nats`.
            title: of the figure; None says what is shown.
            theme: `light` or `dark`.

        Raises:
            InputError: no such value or theme.
        """
        from .prune_plots import VALUES, draw_curve  # plotly takes its time

        if value not in VALUES:
            raise InputError(f"the curve shows {', '.join(VALUES)}; got {value!r}.")
        return draw_curve(self.curve, value, title, theme)

    def plot_survivors(
        self,
        atlas: HeadAtlas | None = None,
        *,
        method: str | None = None,
        grade: str = "weak",
        title: str | None = None,
        theme: str = "light",
    ) -> Figure:
        """Which kinds of heads are left after each cut of one method, as bars.

        Args:
            atlas: as in `survivors`.
            method: None: the first.
            grade: as in `survivors`.
            title: of the figure.
            theme: `light` or `dark`.

        Raises:
            InputError: as `survivors`, or no such theme.
        """
        from .prune_plots import draw_survivors

        found = self.survivors(atlas, method=method or self.methods[0], grade=grade)
        return draw_survivors(found, title, theme)

    def save(
        self,
        folder: str | Path,
        *,
        model: bool = True,
        method: str | None = None,
        sparsity: float | None = None,
    ) -> Path:
        """Write a folder: `result.json`, tables as Parquet, plots, and the model without the heads.

        Args:
            folder: made if it does not exist.
            model: whether to write the model of one cut too, to `model/` in it (`save_pruned`); a
                cut without heads has none.
            method: which cut; None: of the first method.
            sparsity: None: the largest cut.

        Returns:
            The folder.

        Raises:
            InputError: it cannot be written, there is no such cut, or the model cannot be cut.
        """
        cut = self.cut(method, sparsity, 0) if model else None
        pruned = None  # made before anything is written
        if cut is not None and cut.heads:
            pruned = self.pruned(method, sparsity)
        self.write(folder, cut, pruned)
        return Path(folder)

    def write(self, folder: str | Path, cut: Cut | None, pruned: PreTrainedModel | None) -> None:
        """Write a folder: what was found, plots of a finished result, and the model of one cut.

        Args:
            folder: made if it does not exist.
            cut: which one `pruned` is of.
            pruned: the model; None: none is left in the folder.

        Raises:
            InputError: the folder is of something else, or cannot be written.
        """
        target = check_folder(folder)
        written = None if pruned is None else cut
        write_result(target, {**self.__dict__, "summary": repr(self)}, written)
        if pruned is None and (target / MODEL).is_dir():  # of an earlier result in this folder
            shutil.rmtree(target / MODEL)
        if self.finished:
            self._save_plots(target)
        if pruned is not None and self.source is not None:
            save_pruned(pruned, target / MODEL, tokenizer=self.source.tokenizer)

    def _save_plots(self, folder: Path) -> None:
        write_figure(self.plot(), folder / "curve.html")
        if self.settings.get("atlas"):
            write_figure(self.plot_survivors(), folder / "survivors.html")

    @classmethod
    def load(cls, folder: str | Path) -> PruneResult:
        """Read the folder of a pruning, finished or not.

        Raises:
            InputError: no result in it, or one that is damaged.
        """
        return cls(**read_result(Path(folder)))

    def _known(self, method: Any) -> str:
        if method not in self.methods:
            raise InputError(f"heads were removed by {', '.join(self.methods)}; got {method!r}.")
        return method

    def cut(self, method: str | None = None, sparsity: float | None = None, draw: int = 0) -> Cut:
        """One of `cuts`, named as in `removed`.

        Raises:
            InputError: there is no such cut.
        """
        if not self.cuts:
            raise InputError("nothing was cut yet; run it to its end.")
        name = self.methods[0] if method is None else self._known(method)
        own = [cut for cut in self.cuts if cut.method == name]
        if sparsity is None:
            sparsity = max(own, key=lambda cut: len(cut.heads)).asked
        for cut in own:
            if cut.draw == draw and math.isclose(cut.asked, sparsity, rel_tol=1e-9):
                return cut
        asked = ", ".join(f"{value:g}" for value in dict.fromkeys(cut.asked for cut in own))
        raise InputError(
            f"{name} was asked for {asked} ({max(cut.draw for cut in own) + 1} draws); got "
            f"sparsity={sparsity!r}, draw={draw!r}."
        )

    def __repr__(self) -> str:
        state = "" if self.finished else "unfinished: "
        lines = [
            f"{state}{counted(len(self.heads), 'head')}, {counted(len(self.cuts), 'cut')} by "
            f"{', '.join(self.methods)}"
        ]
        whole = self.curve.iloc[0].to_dict()
        lines.append(
            f"  {'whole model':24} loss {whole['base_loss_nats']:.3f}, second copies "
            f"{whole[f'{SECOND}base_loss_nats']:.3f} nats/token"
        )
        groups: dict[Any, list[Row]] = {}
        for row in self.curve.to_dict("records")[1:]:
            groups.setdefault((row["method"], row["asked"]), []).append(row)
        lines += [f"  {_line(own, self.settings.get('asked'))}" for own in groups.values()]
        return "\n".join([*lines, *(f"  {sentence}" for sentence in self.caveats)])


def _line(own: Sequence[Row], kind: Any) -> str:
    """One cut with its interval, or the mean over draws and what they range over."""
    first, n = own[0], len(own)
    deltas = [row["delta_loss_nats"] for row in own]
    delta = sum(deltas) / n
    draws = f" ({n} draws)" if n > 1 else ""
    ends = (min(deltas), max(deltas)) if n > 1 else (first["delta_low"], first["delta_high"])
    interval = "" if math.isnan(ends[0]) else f" [{ends[0]:+.4f}, {ends[1]:+.4f}]"
    if n > 1:
        interval = f" (from {ends[0]:+.4f} to {ends[1]:+.4f})"
    second = sum(row[f"{SECOND}delta_loss_nats"] for row in own) / n
    with np.errstate(over="ignore"):
        perplexity = np.exp(delta)
    price = f" λ {first['asked']:g}" if kind == "lam" else ""
    said = f"{first['method']}{draws}{price} −{first['n_removed']}"
    return (
        f"{said:24} loss {delta:+.4f}{interval}, perplexity × {perplexity:.4g}, second copies "
        f"{second:+.4f}{', fine-tuned' * first['finetuned']}"
    )
