"""The light set-up of a borrowed machine: hornbook from `src`, and wheels that were brought along.

torch is there and nothing is fetched. Missing packages may come as wheels in the folder `.whl` of the checkout, from a
machine that has a network: `wheels.txt` lists them, and `python3 -m benchmarks.gpu.setup` prints the command.
"""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

NEEDED = ("numpy", "numba", "pyarrow", "zstandard", "xxhash", "pydantic", "typer", "rich", "tokenizers", "safetensors")
NEEDED += ("fsspec", "jinja2", "tomli_w", "psutil", "jaxtyping", "pytest", "pytest_timeout", "hypothesis")
NEEDED += ("starlette", "uvicorn", "typing_inspection", "annotated_types")
"""Modules that hornbook and its tests import, besides torch."""
SITE = "build/gpu-site"
"""Where wheels are unpacked, in the checkout."""
ROOT = Path(__file__).parents[2]
WHEELS = "benchmarks/gpu/wheels.txt"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64")


def prepare(root: Path) -> dict[str, str]:
    """The environment of every part: hornbook from `src`, and the wheels that were brought along."""
    site, wheels = root / SITE, root / ".whl"
    places = [Path(__file__).parent / "site", root / "src", root, site]
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
    listed = {word.replace("-", "_") for word in (ROOT / WHEELS).read_text().split()}
    return (
        f"Missing here (Python {version}, torch {torch}): {', '.join(names)}.\n"
        "With a network: pip install them. Without one: on a machine that has a network, in this checkout,\n"
        f"  {download(version, [name for name in names if name not in listed])}\n"
        "and take the folder .whl along."
    )


def download(version: str, others: list[str]) -> str:
    """The command that fetches the wheels of the list, and others, for a version of Python."""
    words = ["python3 -m pip download --no-deps --only-binary=:all: -d .whl", f"-r {WHEELS} -c constraints.txt"]
    words += [f"--python-version {version} --implementation cp", *(f"--platform {each}" for each in PLATFORMS)]
    return " ".join([*words, *others])


if __name__ == "__main__":
    print(download("3.12", []))
