"""A cost report on a terminal: operations, totals, the crossover and the cache, in 80 columns."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .operations import Cost, Operation
from .report import CostReport
from .shapes import LayerShape, uniform_shapes

_NAMES = {
    "qkv": "Q, K, V projections", "scores": "scores", "softmax": "softmax",
    "av": "values (AV)", "output": "output projection",
}  # fmt: skip
_COLUMNS: tuple[tuple[str, Any], ...] = (
    ("", "left"), ("FLOP", "right"), ("share", "right"), ("bytes", "right"),
    ("FLOP/B", "right"), ("bound by", "left"), ("≥ ms", "right"),
)  # fmt: skip
_WIDTH = 80  # columns of a terminal that nobody made wider
_LEGEND = (
    "Bytes: every input read and output written once. Unfused kernels write scores and pattern "
    "to memory, a fused one neither. ≥ ms: the larger of FLOP / peak and bytes / bandwidth. "
    "Softmax: 5 FLOP per score."
)
_LLAMA = uniform_shapes(80, d_model=8192, n_heads=64).layers


def show_cost(report: CostReport, console: Console | None = None) -> None:
    """Print a report: one table per phase, then the crossover and the cache."""
    console = console or Console()
    console.print(escape(f"Attention of {report.shapes.name}"), style="bold", highlight=False)
    for layer, count in report.shapes.counts.items():
        console.print(_layer_line(layer, count), highlight=False)
    console.print(_device_line(report), style="dim", highlight=False)
    console.print()
    pairs = "pairs the mask keeps" if report.exact else "all N² pairs"
    batch = f", batch {report.batch}" if report.batch > 1 else ""
    title = f"Prefill of {report.seq_len:,} tokens{batch}, {pairs}"
    console.print(_phase_table(title, report.prefill, report))
    console.print()
    if report.decode is not None:
        title = f"One token at a context of {report.seq_len:,}{batch}{_mla_note(report)}"
        console.print(_phase_table(title, report.decode, report))
        console.print()
    console.print(_LEGEND, style="dim", highlight=False)
    console.print()
    console.print(_crossover_line(report), highlight=False)
    if report.shapes.causal:
        console.print()
        console.print(_cache_table(report))
    if report.shapes.layers == _LLAMA:
        console.print(
            "These are Llama-2-70B's numbers with 64 KV heads. It ships with 8, an eighth of this "
            "cache: --kv-heads 8.",
            highlight=False,
        )


def as_text(report: CostReport) -> str:
    """What `show_cost` prints, plain.

    Example:
        >>> from headatlas.circuits.cost.report import cost
        >>> as_text(cost("tiny", seq_len=256)).splitlines()[0]
        'Attention of tiny'
    """
    page = io.StringIO()
    show_cost(report, Console(file=page, width=_WIDTH, color_system=None))
    return page.getvalue().rstrip()


def as_html(report: CostReport) -> str:
    """What `show_cost` prints, for a notebook; whatever the report holds is escaped."""
    console = Console(file=io.StringIO(), width=_WIDTH, record=True)
    show_cost(report, console)
    page = '<pre style="font-family: monospace; line-height: 1.2">{code}</pre>'
    return console.export_html(code_format=page, inline_styles=True)


def si(value: int | float, unit: str = "") -> str:
    """A number with three digits and a decimal prefix, such as `2.62 MB`."""
    prefix, whole = "", value
    for larger in "kMGTPEZYRQ":
        if value < 999.5:
            break
        value, prefix = value / 1000, larger
    if value >= 999.5:  # beyond the prefixes
        return f"{whole:.1e} {unit}".rstrip()
    digits = 0 if not prefix or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {prefix}{unit}".rstrip()


def _layer_line(layer: LayerShape, count: int) -> str:
    width = f"{layer.d_head}" if layer.d_head == layer.d_value else (
        f"{layer.d_head} (keys), {layer.d_value} (values)"
    )  # fmt: skip
    parts = [
        f"{count} × {layer.kind}", f"d_model {layer.d_model:,}", f"{layer.n_heads} heads of {width}"
    ]  # fmt: skip
    if layer.latent is not None:
        parts.append(f"latent {layer.latent.d_latent} + {layer.latent.d_rope} rotary")
        if layer.latent.q_rank is not None:
            parts.append(f"query latent {layer.latent.q_rank}")
    elif layer.n_kv_heads != layer.n_heads:
        parts.append(f"{layer.n_kv_heads} KV heads")
    if layer.window is not None:
        parts.append(f"window {layer.window:,}")
    if not layer.causal:
        parts.append("sees both ways")
    return ", ".join(parts)


def _device_line(report: CostReport) -> str:
    device, dtype = report.device, report.dtype
    return (
        f"{device.name}, {dtype}: {device.peak(dtype) / 1e12:.4g} TFLOP/s, "
        f"{device.bandwidth / 1e9:.4g} GB/s; memory-bound below {device.ridge(dtype):.0f} FLOP/B"
    )


def _mla_note(report: CostReport) -> str:
    has_latent = any(layer.latent is not None for layer in report.shapes.layers)
    return f", latents {report.mla}" if has_latent else ""


def _phase_table(title: str, cost: Cost, report: CostReport) -> Table:
    table = _plain_table(title, _COLUMNS)
    for one in cost.operations:
        table.add_row(*_cells(_NAMES[one.name], one, cost, report))
    table.add_row(*_whole("all, unfused", cost, report, fused=False), style="bold")
    table.add_row(*_cells("scores to AV, fused", cost.fused, cost, report))
    table.add_row(*_whole("all, fused", cost, report, fused=True), style="bold")
    return table


def _cells(name: str, one: Operation, cost: Cost, report: CostReport) -> tuple[str, ...]:
    return (
        name,
        si(one.flops),
        f"{one.flops / cost.flops:.1%}",
        si(one.bytes, "B"),
        _ratio(one.intensity),
        one.regime(report.device, report.dtype).removesuffix("-bound"),
        _milliseconds(one.time_ms(report.device, report.dtype)),
    )


def _whole(name: str, cost: Cost, report: CostReport, *, fused: bool) -> tuple[str, ...]:
    """The sum of the kernels; what binds differs between them."""
    moved = cost.fused_bytes if fused else cost.unfused_bytes
    time = cost.time_ms(report.device, report.dtype, fused=fused)
    return (
        name,
        si(cost.flops),
        "",
        si(moved, "B"),
        _ratio(cost.flops / moved),
        "",
        _milliseconds(time),
    )


def _ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}"


def _milliseconds(value: float) -> str:
    if value >= 1e7:
        return f"{value:.1e}"
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def _crossover_line(report: CostReport) -> str:
    layers, length = report.shapes.counts, report.crossover
    if length is None:
        return (
            "Windows keep scores and AV below the projections at every length: no crossover, and "
            "the quadratic term never dominates."
        )
    plain = not report.exact and all(
        layer.kind == "MHA" and layer.weights == 4 * layer.d_model**2 for layer in layers
    )
    rule = " (2·d_model)" if plain and len({layer.d_model for layer in layers}) == 1 else ""
    side = "above" if report.seq_len > length else "below" if report.seq_len < length else "at"
    return (
        f"Scores and AV outweigh the projections beyond N = {length:,.0f}{rule}; "
        f"{report.seq_len:,} tokens are {side} it."
    )


def _cache_table(report: CostReport) -> Table:
    batch = f" × {report.batch}" if report.batch > 1 else ""
    columns = [
        ("", "left"), ("numbers/layer", "right"), ("bytes/token", "right"),
        (f"{report.seq_len:,} tokens{batch}", "right"), ("of MHA", "right"), ("", "left"),
    ]  # fmt: skip
    table = _plain_table(f"Cache in {report.dtype}, kept for the next token", columns)
    for row in report.cache_table().to_dict("records"):
        table.add_row(
            row["kind"], f"{row['numbers']:,.0f}", si(row["bytes_per_token"], "B"),
            si(row["bytes"], "B"), f"{row['of_mha']:.1%}",
            "this model" if row["own"] else "what if", style="bold" if row["own"] else "",
        )  # fmt: skip
    return table


def _plain_table(title: str, columns: Any) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, padding=(0, 1, 0, 0),
        header_style="underline",
    )  # fmt: skip
    for name, justify in columns:
        table.add_column(name, justify=justify, no_wrap=True)
    return table
