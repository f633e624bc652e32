"""Reading a plan from TOML: every wrong field is named, with what arrived and what is allowed."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...interp.errors import InputError, one_line
from ...interp.files import read_text
from ...interp.probes import MIN_PROMPTS, MIN_TOKENS
from ..asked import ask
from ..battery import Battery
from ..causal.stand_in import ABLATIONS
from .plan import Plan, PlanModel, PlanPrompts

DTYPES = ("float32", "bfloat16", "float16")
_MOST_MIB = 4
_MOST_UNITS = 100_000
_LARGEST = 2**31
_Field = Callable[[str, Any], Any]


def read_plan(path: str | Path) -> Plan:
    """Read a plan.

    Raises:
        InputError: no such file, no TOML, or a field that is unknown or wrong.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "plan.toml"
        >>> _ = path.write_text('lengths = [64, 128]\\nmodels = [{name = "tiny"}]')
        >>> [str(unit) for unit in read_plan(path).units]
        ['tiny · made · 64', 'tiny · made · 128']
    """
    return parse_plan(read_text(path), Path(path).absolute().parent, str(path))


def parse_plan(text: str, base: Path, name: str = "the plan") -> Plan:
    """The plan that a text says.

    Args:
        text: TOML.
        base: the folder that its paths count from.
        name: what messages call it.

    Raises:
        InputError: as `read_plan`.
    """
    if len(text) > _MOST_MIB * 2**20:
        raise InputError(f"{name!r} is larger than {_MOST_MIB} MiB, which no plan is.")
    try:
        told = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # deep nesting ends tomllib's recursion
        raise InputError(f"{name!r} is not valid TOML: {one_line(error)}.") from error
    try:
        return _plan(told, base)
    except InputError as error:
        raise InputError(f"{name!r}: {error}") from None


def _plan(told: Mapping[str, Any], base: Path) -> Plan:
    values = _fields(told, "", _TOP)
    if "models" not in values:
        raise InputError("models is missing; give a table [[models]] with a name.")
    kinds = values.get("kinds")
    if kinds is not None and ask(kinds, Battery()).words:
        raise InputError("kinds between words are not part of plans; name kinds on tokens.")
    if values.get("ablations") and "mean" not in values["ablations"]:
        raise InputError("ablations: the evidence rests on mean ablation; add mean, or none.")
    plan = Plan(**values, base=base)
    _check_different("models", [model.name for model in plan.models])
    _check_different("prompts", [prompts.name for prompts in plan.prompts])
    count = (
        sum(max(1, len(model.checkpoints)) for model in plan.models)
        * len(plan.prompts)
        * len(plan.lengths)
    )
    if count > _MOST_UNITS:
        raise InputError(f"the plan has {count} units; at most {_MOST_UNITS}.")
    reads_text = kinds is None or any("natural" in k.reads for k in ask(kinds, Battery()).kinds)
    unread = [prompts.text for prompts in plan.prompts if prompts.text is not None]
    if unread and not reads_text:
        raise InputError(
            f"prompts.text: no kind among {', '.join(kinds or ())} is scored on natural text, so "
            f"{unread[0]!r} would go unread; leave it out, or add a kind such as delimiter."
        )
    return plan


def _check_different(name: str, values: list[Any]) -> None:
    twice = [value for value in dict.fromkeys(values) if values.count(value) > 1]
    if twice:
        raise InputError(f"{name} holds {twice[0]!r} twice; once is enough.")


def _fields(told: Any, where: str, allowed: Mapping[str, _Field]) -> dict[str, Any]:
    if not isinstance(told, Mapping):
        raise InputError(f"{where} is a table with {', '.join(allowed)}; got {_short(told)}.")
    for key in told:
        if key not in allowed:
            at = f"{where}.{_plain(key)}" if where else _plain(key)
            raise InputError(f"{at} is unknown; allowed: {', '.join(allowed)}.")
    return {
        key: allowed[key](f"{where}.{key}" if where else key, value) for key, value in told.items()
    }


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InputError(f"{name} is a text of one line; got {_short(value)}.")
    return value


def _whole(least: int) -> _Field:
    def read(name: str, value: Any) -> int:
        if type(value) is not int or not least <= value < _LARGEST:
            raise InputError(
                f"{name} is a whole number of at least {least} and below 2³¹; got {_short(value)}."
            )
        return value

    return read


def _one_of(*allowed: str) -> _Field:
    def read(name: str, value: Any) -> str:
        if value not in allowed:
            raise InputError(f"{name} is one of {', '.join(allowed)}; got {_short(value)}.")
        return value

    return read


def _list(entry: _Field, *, empty: bool = False) -> _Field:
    def read(name: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or not (value or empty):
            least = "" if empty else ", at least one entry"
            raise InputError(f"{name} is a list{least}; got {_short(value)}.")
        found = [entry(f"{name}[{place}]", one) for place, one in enumerate(value)]
        if not any(isinstance(one, dict) for one in value):  # tables differ by their names
            _check_different(name, found)
        return tuple(found)

    return read


def _model(name: str, value: Any) -> PlanModel:
    values = _fields(value, name, {"name": _text, "checkpoints": _list(_text)})
    if "name" not in values:
        raise InputError(f"{name}.name is missing; give a built-in name, a folder or a hub id.")
    return PlanModel(**values)


def _prompts(name: str, value: Any) -> PlanPrompts:
    allowed = {"name": _text, "count": _whole(MIN_PROMPTS), "seed": _whole(0), "text": _text}
    return PlanPrompts(**_fields(value, name, allowed))


def _device(name: str, value: Any) -> str:
    import torch

    try:
        torch.device(_text(name, value))
    except RuntimeError as error:
        raise InputError(f"{name} is such as cpu or cuda:0; got {_short(value)}.") from error
    return value


_TOP: Mapping[str, _Field] = {
    "models": _list(_model),
    "prompts": _list(_prompts),
    "lengths": _list(_whole(MIN_TOKENS)),
    "kinds": _list(_text),
    "ablations": _list(_one_of(*ABLATIONS), empty=True),
    "batch_tokens": _whole(1),
    "dtype": _one_of(*DTYPES),
    "device": _device,
}


def _short(value: Any) -> str:
    told = repr(value)
    return told if len(told) <= 60 else f"{told[:57]}…"


def _plain(key: str) -> str:
    return key if key.isprintable() and len(key) <= 60 else repr(key[:60])
