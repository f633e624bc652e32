"""The state of a training as named tensors, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...interp.errors import InputError

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
_HISTORY, _TRAJECTORY = "history", "trajectory"


def state_of(
    modules: Mapping[str, nn.Module],
    optimiser: Optimizer,
    rows: Sequence[Sequence[float]],
    trajectory: Sequence[Tensor],
) -> dict[str, Tensor]:
    """Trained parameters, their moments in the optimiser, the history and the trajectory.

    Args:
        modules: whose parameters are trained, by name.
        optimiser: an Adam over them.
        rows: the history, one row per update.
        trajectory: P(open) of every head, of the updates that were recorded.

    Returns:
        Tensors by name, as a file keeps them.
    """
    found = {
        _HISTORY: torch.tensor(rows, dtype=torch.float64),
        _TRAJECTORY: torch.stack([*trajectory]),
    }
    for name, weight in _trained(modules).items():
        found[f"value.{name}"] = weight.detach()
        known = optimiser.state.get(weight, {})
        found.update({f"{moment}.{name}": known[moment] for moment in _MOMENTS if known})
    return found


def load_state(
    modules: Mapping[str, nn.Module],
    optimiser: Optimizer,
    state: Mapping[str, Tensor],
    path: str,
) -> tuple[list[list[float]], list[Tensor]]:
    """Put a state back, after checking that it fits.

    Args:
        modules: as in `state_of`.
        optimiser: likewise.
        state: what `state_of` gave.
        path: what messages call the file.

    Returns:
        The history and the trajectory.

    Raises:
        InputError: a tensor is missing, is one too many, or has another shape or dtype.
    """
    trained, left = _trained(modules), dict(state)
    history = left.pop(_HISTORY, None)
    if history is None or history.dtype != torch.float64 or history.ndim != 2:
        raise InputError(f"{path!r} is damaged: it holds no history. Delete it.")
    trajectory = left.pop(_TRAJECTORY, None)
    if trajectory is None or trajectory.dtype != torch.float32 or trajectory.ndim != 2:
        raise InputError(f"{path!r} is damaged: it holds no trajectory of gates. Delete it.")
    loaded = dict[str, dict[str, Tensor]]()
    for name, weight in trained.items():
        parts = {key: left.pop(f"{key}.{name}", None) for key in ("value", *_MOMENTS)}
        given = {key: part for key, part in parts.items() if part is not None}
        shaped = all(
            part.dtype == (torch.float32 if key == "step" else weight.dtype)
            and part.shape == (() if key == "step" else weight.shape)
            for key, part in given.items()
        )
        if "value" not in given or len(given) not in (1, 4) or not shaped:
            raise InputError(f"{path!r} is damaged: its {name} does not fit. Delete it.")
        loaded[name] = given
    if left:
        raise InputError(f"{path!r} is damaged: {len(left)} tensors too many. Delete it.")
    with torch.no_grad():
        for name, weight in trained.items():
            weight.copy_(loaded[name].pop("value"))
            if loaded[name]:
                optimiser.state[weight] = {
                    key: part if key == "step" else part.to(weight.device)
                    for key, part in loaded[name].items()
                }
    return history.tolist(), [*trajectory]


def _trained(modules: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    return {
        f"{owner}.{name}": weight
        for owner, module in modules.items()
        for name, weight in module.named_parameters()
        if weight.requires_grad
    }
