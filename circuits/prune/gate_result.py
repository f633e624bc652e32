"""What the training of gates gives: which heads it would cut, in which order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from torch import Tensor, nn

from ...interp.bridge import refuse_bridge
from ...interp.errors import InputError
from ...interp.heads import HeadId
from ...interp.sites import check_model
from ..arguments import whole_number
from .counts import nearest_count
from .gates import Gates
from .remove.remove import remove_heads
from .settings import GateTraining
from .trajectory import no_trajectory
from .working_copy import with_weights

if TYPE_CHECKING:
    from plotly.graph_objects import Figure
    from transformers import PreTrainedModel

_MISSED = 0.05  # of all heads: by how much expected and kept heads may differ without a word


@dataclass(frozen=True, eq=False, repr=False)
class GateResult:
    """Trained gates.

    Attributes:
        config: how they were trained.
        heads: all heads of the model.
        gates: one row per head: site, layer, head, kv_head, log_alpha, p_open, gate (without
            noise), kept.
        history: one row per update: update, stage (`gates` or `recover`), loss_nats (per token, of
            the drawn gates), penalty, expected_open, open_probability (its share of the heads),
            open_heads (whose gate without noise is not 0), target (that of the update), price_nats
            (what one more open head costs), gate_rate, gate_grad_norm, weight_grad_norm.
        state: the gates' parameters, to start another training from.
        weights: with `finetune` the trained weights, as the model's `load_state_dict` takes them;
            else None.
        trajectory: how the gates moved, at up to 200 evenly spaced updates: update (0: before the
            first), site, layer, head, p_open.
    """

    config: GateTraining
    heads: tuple[HeadId, ...]
    gates: pd.DataFrame
    history: pd.DataFrame = field(repr=False)
    state: Mapping[str, Tensor] = field(repr=False)
    weights: Mapping[str, Tensor] | None = field(repr=False)
    trajectory: pd.DataFrame = field(repr=False, default_factory=no_trajectory)

    @property
    def log_alpha(self) -> dict[HeadId, float]:
        """What heads are ranked by; with `both` as `Gates.ranks` says."""
        return dict(zip(self.heads, self.gates["log_alpha"].to_numpy().tolist(), strict=True))

    @property
    def expected_open(self) -> float:
        """Expected number of open heads, Σ P(open)."""
        return float(self.gates["p_open"].to_numpy().sum())

    @property
    def closed(self) -> tuple[HeadId, ...]:
        """Heads whose gate without noise is exactly 0, lowest log α first."""
        return tuple(self.heads[i] for i in self._order() if self.gates["gate"].iloc[i] == 0)

    def removed(self, n: int | None = None, *, sparsity: float | None = None) -> tuple[HeadId, ...]:
        """The heads to cut, lowest log α first.

        Args:
            n: how many; with gates per group only what whole groups add up to.
            sparsity: share of all heads instead, to the nearest number that can be reached. With
                neither: the target of the training, or without one the heads that are `closed`.

        Raises:
            InputError: both are given, more heads than there are, or a number that whole groups
                do not reach.

        Example:
            >>> from headatlas.interp.sites import Site
            >>> gates = Gates([Site("attn", "", 0, 4, 2, 8, 8, causal=True)], "group")
            >>> _ = gates.group_log_alpha.data.copy_(gates.group_log_alpha.new_tensor([1, -3]))
            >>> result = result_of(GateTraining(lam=0.1, per="group"), gates, pd.DataFrame(), None)
            >>> result.removed(), result.removed(sparsity=1.0)
            ((L0H2, L0H3), (L0H2, L0H3, L0H0, L0H1))
        """
        if n is not None and sparsity is not None:
            raise InputError(f"give n or sparsity, not both; got {n!r} and {sparsity!r}.")
        if n is None and sparsity is None:
            if self.config.target is None:
                return self.closed
            sparsity = self.config.target
        reached = self._reachable()
        if n is None:
            n = nearest_count(_share(sparsity), len(self.heads), reached)
        elif isinstance(n, float) and 0 < n < 1:
            raise InputError(f"n is a number of heads; for a share write sparsity={n:g}.")
        elif whole_number("n", n, 0) not in reached:
            near = sorted(reached, key=lambda count: abs(count - n))[:2]
            raise InputError(
                f"n is a number of heads that can be cut, such as "
                f"{' or '.join(map(str, sorted(near)))} of {len(self.heads)}; got {n}."
            )
        return tuple(self.heads[i] for i in self._order()[:n])

    def pruned(self, model: nn.Module) -> PreTrainedModel:
        """The model physically without the heads to cut, with the weights trained along if any.

        Args:
            model: the one that the gates were trained on. It is not changed.

        Raises:
            InputError: another model, one that cannot be cut, or a TransformerLens bridge.
        """
        refuse_bridge(model, "Cutting heads out")
        known = check_model(model)
        own = known if self.weights is None else with_weights(known, self.weights)
        return remove_heads(own, self.removed())

    @property
    def caveats(self) -> tuple[str, ...]:
        """What limits the choice of heads, in sentences."""
        n, target, left = len(self.heads), self.config.target, self.expected_open
        if target is None:
            if self.closed:
                return ()
            return (f"λ = {self.config.lam:g} closes no head; raise it, or train longer (steps).",)
        if abs(left - n * (1 - target)) <= max(1.0, _MISSED * n):
            return ()
        return (
            f"gates have not come to their target: {left:.1f} of {n} heads are open in expectation "
            f"and {n * (1 - target):.0f} are kept. Train longer (steps).",
        )

    def plot(self, *, title: str | None = None, theme: str = "light") -> Figure:
        """How likely each head's gate was to be open along the training, a line per head.

        Heads that are kept have one colour, those to cut (`removed()`) another.

        Args:
            title: of the figure; None says what is shown.
            theme: `light` or `dark`.

        Raises:
            InputError: there is no trajectory, or no such theme.
        """
        from .prune_plots import draw_trajectories  # plotly takes its time

        if self.trajectory.empty:
            raise InputError("nothing was recorded of how these gates moved, so there is no plot.")
        cut = frozenset(self.removed())
        kept = {head: head not in cut for head in self.heads}
        return draw_trajectories(self.trajectory, kept, title, theme)

    def __repr__(self) -> str:
        config, updates = self.config, len(self.history)
        wanted = f"λ = {config.lam:g}" if config.target is None else f"target {config.target:g}"
        kept = len(self.heads) - len(self.removed())
        tuned = "frozen weights" if config.finetune is None else f"finetune={config.finetune!r}"
        loss = f", loss {self.history['loss_nats'].iloc[-1]:.3f} nats/token" if updates else ""
        lines = [
            f"gates per {config.per}, {wanted}, {updates} updates, {tuned}: {kept} of "
            f"{len(self.heads)} heads kept, {self.expected_open:.1f} open in expectation{loss}",
            *self.caveats,
        ]
        return "\n  ".join(lines)

    def _order(self) -> np.ndarray:
        return np.argsort(self.gates["log_alpha"].to_numpy(), kind="stable")

    def _reachable(self) -> list[int]:
        """How many heads can be cut: any number, or the sums of the groups of lowest log α."""
        if self.config.per != "group":
            return list(range(len(self.heads) + 1))
        keys: list[Any] = [
            tuple(key) for key in self.gates[["site", "layer", "kv_head"]].to_numpy()
        ]
        ordered = [keys[i] for i in self._order()]
        ends = [i for i in range(1, len(ordered)) if ordered[i] != ordered[i - 1]]
        return [0, *ends, len(ordered)]


def reached_share(gates: Gates, target: float) -> float:
    """The share of heads that will be cut for a target: a whole number of heads, or of groups.

    Groups of unequal sizes add up to it as nearly as those of lowest log α do in the end; then the
    target itself is returned.

    Raises:
        InputError: none would be cut, or all.
    """
    n = len(gates)
    sizes = {s.n_heads // s.n_kv_heads for s in gates.sites} if gates.per == "group" else {1}
    if len(sizes) > 1:
        return target
    size = sizes.pop()
    cut = nearest_count(target, n, range(0, n + 1, size))
    if not 0 < cut < n:
        raise InputError(
            f"target {target:g} of {n} heads is {cut} heads; give one between "
            f"{size / n:.3g} and {1 - size / n:.3g}."
        )
    return cut / n


def result_of(
    config: GateTraining,
    gates: Gates,
    history: pd.DataFrame,
    weights: Mapping[str, Tensor] | None,
    trajectory: pd.DataFrame | None = None,
) -> GateResult:
    """The result of a training that has come to its end."""
    moved = no_trajectory() if trajectory is None else trajectory
    state = {name: value.detach().cpu().clone() for name, value in gates.state_dict().items()}
    rough = GateResult(config, gates.heads, gates.frame(), history, state, weights, moved)
    frame = gates.frame(removed=frozenset(rough.removed()))
    return GateResult(config, gates.heads, frame, history, state, weights, moved)


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f"sparsity is a share of the heads, from 0 to 1; got {value!r}.")
    return float(value)
