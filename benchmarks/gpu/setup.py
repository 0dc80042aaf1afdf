"""The light set-up of a borrowed machine: where hornbook is, what is missing, and wheels that were brought along.

torch is there and nothing is fetched. Packages that are missing may come as wheels in the folder `.whl` of the
checkout, from a machine that has a network:

    python -m pip download --no-deps --only-binary=:all: -d .whl pydantic pydantic-core ...
"""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

NEEDED = ("numpy", "numba", "pyarrow", "zstandard", "xxhash", "pydantic", "typer", "rich", "tokenizers", "safetensors")
NEEDED += ("fsspec", "jinja2", "tomli_w", "psutil", "jaxtyping", "pytest", "pytest_timeout", "hypothesis")
"""Modules that hornbook and its tests import, besides torch."""
SITE = "build/gpu-site"
"""Where wheels are unpacked, in the checkout."""


def prepare(root: Path) -> dict[str, str]:
    """The environment of every part: hornbook from `src`, and the wheels that were brought along."""
    site, wheels = root / SITE, root / ".whl"
    places = [root / "src", root, site]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, places), os.environ.get("PYTHONPATH", "")])}
    if wheels.is_dir() and missing(environment):
        files = [str(wheel) for wheel in wheels.glob("*.whl")]
        words = ["install", "--quiet", "--no-index", "--no-deps", "--upgrade", "--target", str(site), *files]
        subprocess.run([sys.executable, "-m", "pip", *words], check=False)
    return environment


def missing(environment: dict[str, str]) -> list[str]:
    """Modules of `NEEDED` that parts could not import."""
    code = "import importlib.util, sys; print(*(n for n in sys.argv[1:] if importlib.util.find_spec(n) is None))"
    words = [sys.executable, "-c", code, *NEEDED]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.split()


def remedy(names: list[str]) -> str:
    """What to do about missing modules."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = "missing"
    return (
        f"Missing here (Python {version}, torch {torch}): {', '.join(names)}.\n"
        "With a network: pip install them. Without: on a machine that has one, in this checkout,\n"
        f"  python -m pip download --only-binary=:all: --python-version {version} --platform manylinux_2_28_x86_64 "
        f"--platform manylinux2014_x86_64 --no-deps -d .whl {' '.join(names)} (and what these need: pydantic_core, "
        "typing_inspection, annotated_types)\n"
        "and take the folder .whl along."
    )
