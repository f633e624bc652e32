"""The pages of the API: every name of the front door, by the room that it lives in."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import headatlas

ROOT = Path(__file__).parents[2]
TITLES = {
    "circuits": ("Labels and circuits", "What heads do: labels, evidence, weights, pruning, cost."),
    "interp": ("Models and hooks", "Load, tokenize, hook, change, capture, draw."),
    "kernels": ("The attention probe", "Attention and its statistics in one pass."),
}
# part of a name's home -> the section it stands in; what is not here comes first
_SECTIONS = {
    "ablate": "The loss without heads",
    "causal": "Evidence by removal",
    "cost": "Cost",
    "prune": "Pruning",
    "weights": "What weights say",
    "words": "Links between words",
    "load": "Load and tokenize",
    "tokens": "Load and tokenize",
    "texts": "Load and tokenize",
    "doctor": "Hook and change",
    "sites": "Hook and change",
    "heads": "Hook and change",
    "attach": "Hook and change",
    "interventions": "Hook and change",
    "intervention": "Hook and change",
    "intervene": "Hook and change",
    "capture": "Capture",
    "statistics": "Capture",
    "plots": "Plots",
    "explorer": "Plots",
    "layers": "Layers from first principles",
    "grammar": "Parsed text",
    "parsed": "Parsed text",
    "conllu": "Parsed text",
    "mentions": "Parsed text",
    "winogender": "Parsed text",
    "spacy_text": "Parsed text",
}


def api_pages() -> Iterator[tuple[str, str]]:
    """The name and the text of each page.

    Example:
        >>> dict(api_pages())["api/kernels.md"].splitlines()[0]
        '# The attention probe'
    """
    homes: dict[str, str] = headatlas._HOMES
    for room, (title, about) in TITLES.items():
        own = [(name, home) for name, home in homes.items() if home.split(".")[0] == room]
        sections = {_section(home): [] for _, home in sorted(own, key=lambda one: _place(one[1]))}
        for name, home in own:
            sections[_section(home)].append(_entry(name, home))
        parts = [f"# {title}", f"{about} All names come with `import headatlas as ha`."]
        for section, entries in sections.items():
            parts += [f"## {section}", *entries] if section else entries
        yield f"api/{room}.md", "\n\n".join(parts) + "\n"


def _section(home: str) -> str:
    return _SECTIONS.get(home.split(".")[1], "")


def _place(home: str) -> int:
    section = _section(home)
    return 1 + [*_SECTIONS.values()].index(section) if section else 0


def _entry(name: str, home: str) -> str:
    path, options = f"headatlas.{home}.{name}", [f"heading: ha.{name}", f"toc_label: {name}"]
    if name in headatlas._WHOLE:  # a module: what it defines, not what it passes on
        path = f"headatlas.{home}"
        members = [own for own in _public(path) if own not in headatlas._HOMES]
        options.append(f"members: [{', '.join(members)}]")
    return "\n".join([f"::: {path}", "    options:", *(f"      {line}" for line in options)])


def _public(module: str) -> list[str]:
    """A module's `__all__`, read without importing it."""
    file = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    for line in ast.parse(file.read_text("utf-8")).body:
        if isinstance(line, ast.Assign) and getattr(line.targets[0], "id", "") == "__all__":
            return ast.literal_eval(line.value)
    raise ValueError(f"{module} does not say what it offers: it has no __all__")
