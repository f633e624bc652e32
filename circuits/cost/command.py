"""The command `headatlas cost`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ...interp.errors import InputError


@dataclass(frozen=True)
class Numbers:
    """What the command line says of a model in numbers; None where it says nothing."""

    layers: int | None
    d_model: int | None
    heads: int | None
    kv_heads: int | None
    d_head: int | None
    d_value: int | None
    window: int | None
    latent: int | None
    rope_dim: int | None
    q_latent: int | None

    def given(self) -> list[str]:
        """The options that were given, as they are typed."""
        return [
            "--" + name.replace("_", "-") for name, value in vars(self).items() if value is not None
        ]

    def shapes(self) -> Any:
        """The attention shapes of these numbers.

        Raises:
            InputError: a number is missing or contradicts another.
        """
        from .shapes import LatentShape, uniform_shapes

        missing = [f"--{name}" for name in ("layers", "heads") if getattr(self, name) is None]
        if self.d_model is None and self.d_head is None:
            missing.append("--d-model or --d-head")
        if self.latent is None and (self.rope_dim is not None or self.q_latent is not None):
            missing.append("--latent")
        if self.latent is not None and self.rope_dim is None:
            missing.append("--rope-dim")
        layers, heads = self.layers, self.heads
        if missing or layers is None or heads is None:
            raise InputError(
                f"{', '.join(self.given())} alone say too little; add {' and '.join(missing)}."
            )
        latent = None
        if self.latent is not None:
            latent = LatentShape(self.latent, self.rope_dim or 0, self.q_latent)
        return uniform_shapes(
            layers, n_heads=heads, d_model=self.d_model, n_kv_heads=self.kv_heads,
            d_head=self.d_head, d_value=self.d_value, window=self.window, latent=latent,
        )  # fmt: skip


def _count(text: str) -> Any:
    return typer.Option(min=1, help=text)


def cost(
    model: Annotated[
        str | None,
        typer.Argument(
            help="tiny, smollm2-135m, a .gguf file, a local directory, or a hub id, of which only "
            "the config is read; tiny if neither a model nor numbers are given."
        ),
    ] = None,
    layers: Annotated[int | None, _count("Attention layers.")] = None,
    d_model: Annotated[int | None, _count("Width of the residual stream.")] = None,
    heads: Annotated[int | None, _count("Query heads.")] = None,
    kv_heads: Annotated[int | None, _count("Key-value heads; all heads if unsaid.")] = None,
    d_head: Annotated[int | None, _count("Width of a key; d_model / heads if unsaid.")] = None,
    d_value: Annotated[
        int | None, _count("Width of a value; if unsaid, a key without its --rope-dim.")
    ] = None,
    window: Annotated[int | None, _count("Keys a query sees at most.")] = None,
    latent: Annotated[int | None, _count("MLA: width of the latent of keys and values.")] = None,
    rope_dim: Annotated[
        int | None,
        typer.Option(min=0, help="MLA: width of the shared rotary key, a part of --d-head."),
    ] = None,
    q_latent: Annotated[int | None, _count("MLA: width of the queries' latent.")] = None,
    seq_len: Annotated[int, _count("Tokens of the prefill and of the decoding context.")] = 4096,
    batch: Annotated[int, _count("Sequences.")] = 1,
    dtype: Annotated[str, typer.Option(help="fp32, fp16, bf16 or fp8.")] = "fp16",
    device: Annotated[
        str, typer.Option(help="Whose roofline: a100, h100, h200, l4 or rtx4090.")
    ] = "h100",
    exact: Annotated[
        bool, typer.Option("--exact", help="Count the pairs the mask keeps, in place of all.")
    ] = False,
    mla: Annotated[
        str, typer.Option(help="MLA decoding: absorbed, or latents expanded at each step.")
    ] = "absorbed",
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write .json, .csv or .parquet.")
    ] = None,
) -> None:
    """Count what attention costs: FLOPs, bytes and regime of each operation, and the cache."""
    from ...interp.files import check_target
    from ..atlas_file import check_suffix
    from .devices import find_device
    from .report import CostReport
    from .totals import check_mla

    numbers = Numbers(
        layers, d_model, heads, kv_heads, d_head, d_value, window, latent, rope_dim, q_latent
    )
    if model is not None and numbers.given():
        raise InputError(
            f"give a model or its numbers, not both: {model!r} and {', '.join(numbers.given())}."
        )
    # everything that can be refused is refused before a config is fetched
    roof = find_device(device)
    roof.peak(dtype)
    check_mla(mla)
    if out is not None:
        check_suffix(out)
        check_target(out)
    if numbers.given():
        shapes = numbers.shapes()
    else:
        from .read import attention_shapes

        shapes = attention_shapes(model or "tiny")
    report = CostReport(shapes, seq_len, batch, dtype, roof, exact, mla)
    if out is not None:  # before anything is printed: a closed pipe must not cost the result
        report.save(out)

    from .show import show_cost

    show_cost(report)
    if out is not None:
        print(f"wrote {out}: {len(report.table())} rows")
