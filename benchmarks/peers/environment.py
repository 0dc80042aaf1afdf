"""The environment of peers that the development environment does not hold: `.venv-peers`, made at first use."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def peer_python() -> Path:
    """Its interpreter; the environment is made, or mended where the requirements have changed since."""
    folder = ROOT / ".venv-peers"
    python, made = folder / "bin" / "python", folder / "requirements.txt"
    if not made.exists() or made.read_text() != REQUIREMENTS.read_text():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", REQUIREMENTS], check=True)
        made.write_text(REQUIREMENTS.read_text())
    return python
