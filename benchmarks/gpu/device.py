"""The device: its name, the facts that figures depend on, signs that it is lost, and a probe."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LOST = re.compile(
    r"CUDA error: (?!out of memory|invalid (argument|configuration)|no kernel image)|device-side assert"
    r"|illegal memory access|illegal instruction|unspecified launch failure|uncorrectable ECC|fallen off the bus"
    r"|CU(BLAS|DNN)_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR)"
)
"""In what a failed process said: no later call of this process reaches the device."""
PROBE_SECONDS = 45.0
PROBE = "import sys, torch; x = torch.ones(512, 512, device=sys.argv[1]); assert (x @ x).sum().item() == 512**3"
CARD = {"card": "name", "driver": "driver_version", "memory": "memory.total", "power_limit": "power.limit"}
"""Facts of the card, and what nvidia-smi calls them."""


def gpu_name(known: dict[str, Any]) -> str | None:
    """`h200`, `h100-80gb-hbm3`, ...; None without a GPU that torch can use."""
    return re.sub(r"[^a-z0-9]+", "-", known.get("gpu", "").strip().lower().removeprefix("nvidia ")).strip("-") or None


def problem_of(environment: dict[str, str], device: str) -> str:
    """Why a fresh process cannot compute on the device; "" if it can."""
    words = [sys.executable, "-c", PROBE, device]
    try:
        answer = subprocess.run(
            words, env=environment, capture_output=True, text=True, check=False, timeout=PROBE_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"a product of two matrices took more than {PROBE_SECONDS:.0f} s in a fresh process"
    return (answer.stderr.strip() or f"exit code {answer.returncode}")[-500:] if answer.returncode else ""


def facts(environment: dict[str, str]) -> dict[str, Any]:
    """Facts of the machine and the code, by a process that may import torch; `problem` alone if it cannot."""
    words = [sys.executable, "-m", "benchmarks.gpu.device"]
    answer = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    return json.loads(answer.stdout) if answer.returncode == 0 else {"problem": answer.stderr[-2000:]}


def revision(root: Path) -> dict[str, Any]:
    """`commit` and changed files of a checkout; `commit` None and the reason where there is none."""
    if shutil.which("git") is None:
        return {"commit": None, "reason": "git is not installed here"}
    if not (root / ".git").exists():
        return {"commit": None, "reason": "no .git here: the files came without their history"}
    try:
        commit, changed = (_git(root, *words) for words in (("rev-parse", "HEAD"), ("status", "--porcelain")))
    except subprocess.CalledProcessError as error:
        return {"commit": None, "reason": f"git: {error.stderr.strip()}"}
    return {"commit": commit.strip(), "changed_files": changed.splitlines()[:50]}


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Print the facts as JSON."""
    import torch

    from benchmarks import report
    from hornbook.run.machine.environment import code_digest, package_version

    known = {**report.machine(), "cuda": torch.version.cuda, **revision(ROOT), "code_digest": code_digest()}
    known |= {name: package_version(name) for name in ("triton", "numpy")}
    print(json.dumps(known | card()))


def card() -> dict[str, str]:
    """Facts of the first card by its driver; none without nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return {}
    words = ["nvidia-smi", f"--query-gpu={','.join(CARD.values())}", "--format=csv,noheader"]
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    if answer.returncode:
        return {"card": f"nvidia-smi: {(answer.stderr or answer.stdout).strip()[-500:]}"}
    return dict(zip(CARD, answer.stdout.splitlines()[0].split(", "), strict=False))


if __name__ == "__main__":
    main()
