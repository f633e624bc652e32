"""The checkout's own `kernels` folder must not get in the way of Hugging Face's package."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["headatlas.kernels", "headatlas.kernels.api"])
def test_transformers_then_kernels(module: str) -> None:
    assert run(f"import transformers, {module}; print({module}.__name__)") == module


def test_kernels_import_nothing_of_hugging_face() -> None:
    code = (
        "import sys, headatlas.kernels.api, headatlas.kernels.cpu, headatlas.kernels.reference\n"
        "print([m for m in ('transformers', 'huggingface_hub', 'triton') if m in sys.modules])"
    )
    assert run(code) == "[]"


def test_the_package_itself_is_empty() -> None:
    code = (
        "import sys; before = set(sys.modules); import headatlas.kernels\n"
        "print(sorted(m for m in set(sys.modules) - before if m.split('.')[0] != 'headatlas'))"
    )
    assert "torch" not in run(code)
