"""The command `headatlas cost`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ...interp.errors import InputError
from .shapes import MOST, MOST_LAYERS


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


def _count(text: str, most: int = MOST) -> Any:
    return typer.Option(min=1, max=most, help=text)


Model = Annotated[
    str | None,
    typer.Argument(
        help="tiny, smollm2-135m, a .gguf file, a local directory, or a hub id, of which only "
        "the config is read; tiny if neither a model nor numbers are given."
    ),
]
Layers = Annotated[int | None, _count("Attention layers.", MOST_LAYERS)]
ModelWidth = Annotated[int | None, _count("Width of the residual stream.")]
Heads = Annotated[int | None, _count("Query heads.")]
KvHeads = Annotated[int | None, _count("Key-value heads; all heads if unsaid.")]
KeyWidth = Annotated[int | None, _count("Width of a key; d_model / heads if unsaid.")]
ValueWidth = Annotated[
    int | None, _count("Width of a value; if unsaid, a key without its --rope-dim.")
]
Window = Annotated[int | None, _count("Keys a query sees at most.")]
Latent = Annotated[int | None, _count("MLA: width of the latent of keys and values.")]
RopeWidth = Annotated[
    int | None,
    typer.Option(
        min=0, max=MOST,
        help="MLA: width of the shared rotary key, a part of --d-head.",
    ),
]  # fmt: skip
QueryLatent = Annotated[int | None, _count("MLA: width of the queries' latent.")]
Length = Annotated[int, _count("Tokens of the prefill and of the decoding context.")]
Batch = Annotated[int, _count("Sequences.")]
Dtype = Annotated[str, typer.Option(help="fp32, fp16, bf16 or fp8.")]
DeviceName = Annotated[str, typer.Option(help="Whose roofline: a100, h100, h200, l4 or rtx4090.")]
Exact = Annotated[
    bool, typer.Option("--exact", help="Count the pairs the mask keeps, in place of all.")
]
Mla = Annotated[str, typer.Option(help="MLA decoding: absorbed, or latents expanded at each step.")]
Out = Annotated[Path | None, typer.Option("-o", "--out", help="Write .json, .csv or .parquet.")]


def cost(
    model: Model = None,
    layers: Layers = None,
    d_model: ModelWidth = None,
    heads: Heads = None,
    kv_heads: KvHeads = None,
    d_head: KeyWidth = None,
    d_value: ValueWidth = None,
    window: Window = None,
    latent: Latent = None,
    rope_dim: RopeWidth = None,
    q_latent: QueryLatent = None,
    seq_len: Length = 4096,
    batch: Batch = 1,
    dtype: Dtype = "fp16",
    device: DeviceName = "h100",
    exact: Exact = False,
    mla: Mla = "absorbed",
    out: Out = None,
) -> None:
    """Count what attention costs: FLOPs, bytes and regime of each operation, and the cache."""
    numbers = Numbers(
        layers, d_model, heads, kv_heads, d_head, d_value, window, latent, rope_dim, q_latent
    )
    # everything that can be refused is refused before a config is fetched
    roof = _checked(model, numbers, device, dtype, mla, out)
    from .report import CostReport

    report = CostReport(_shapes(model, numbers), seq_len, batch, dtype, roof, exact, mla)
    if out is not None:  # before anything is printed: a closed pipe must not cost the result
        report.save(out)
    from .show import show_cost

    show_cost(report)
    if out is not None:
        print(f"wrote {out}: {len(report.table())} rows")


def _checked(
    model: str | None, numbers: Numbers, device: str, dtype: str, mla: str, out: Path | None
) -> Any:
    """The device, after all other arguments were found to make sense."""
    from ...interp.files import check_target
    from ..table_file import check_suffix
    from .devices import find_device
    from .totals import check_mla

    if model is not None and numbers.given():
        raise InputError(
            f"give a model or its numbers, not both: {model!r} and {', '.join(numbers.given())}."
        )
    roof = find_device(device)
    roof.peak(dtype)
    check_mla(mla)
    if out is not None:
        check_suffix(out)
        check_target(out)
    return roof


def _shapes(model: str | None, numbers: Numbers) -> Any:
    if numbers.given():
        return numbers.shapes()
    from .read import attention_shapes

    return attention_shapes(model or "tiny")
