"""The commands themselves on the device, small: two chains of commands beside each other, each a process.

Every command's exit code, seconds and last lines are written as it ends. On a GPU models are compiled. Replay may end
with 3: kernels of a GPU may add in another order, and nothing here promises equal bits there.
"""

import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from benchmarks.gpu.output import Output, arguments
from benchmarks.gpu.process import LINES, keep_lines

STOP = '[[faults]]\ndo = "sigterm"\nat = {{ step = {step} }}\n'
SMALL = "model.vocab=512 model.layers=4 train.sequence=512 train.micro_batch=8 train.batch_tokens=8192"
SMALL += " train.tokens=196608 optim.schedule.warmup=10% eval.every=12 eval.prompt=the checkpoint.every=12"
GROUPED = "model.width=512 model.heads=8 model.attention.kv_heads=2 model.attention.head_dim=64 model.mlp.hidden=1024"
DRY = "model.layers=1 model.width=64 model.heads=4 train.sequence=64 train.batch_tokens=512 train.tokens=4096"
DRY += " train.compile=false train.device=cpu eval.every=4 checkpoint.every=4"
DRY_GROUPED = "model.attention.kv_heads=2 model.attention.head_dim=16 model.mlp.hidden=128"
LAST_LINES = 12
"""Lines that are kept of a command that ended well."""

Chain = list[tuple[str, list[str], tuple[int, ...]]]
"""Name, words and accepted exit codes of each command; a later one reads what an earlier one made."""


def options(*settings: str) -> list[str]:
    """`key=value ...` as options of hornbook."""
    return [f"--{word}" for part in settings for word in part.split()]


def chains(data: Path, folder: Path, dry: bool) -> tuple[Chain, Chain]:
    """Commands over a run of GPT-2's kind, and over one of Llama's with grouped heads; documents lie in rows."""
    gpt, llama, plan = str(folder / "gpt"), str(folder / "llama"), folder / "plan.toml"
    plan.write_text(STOP.format(step=3 if dry else 10))
    common = ["--data", str(data), *options(SMALL, DRY if dry else "")]
    first = [
        ("train gpt, stopped", ["train", "gpt2-124m", "--out", gpt, "--faults", str(plan), *common], (75,)),
        ("resume gpt", ["resume", gpt], (0,)),
        ("eval gpt", ["eval", gpt, "--json"], (0,)),
        ("generate gpt", ["generate", gpt, "-p", "the", "--tokens", "20", "--json"], (0,)),
        ("replay gpt", ["replay", gpt, "--json"], (0,) if dry else (0, 3)),
    ]
    grouped = options(DRY_GROUPED if dry else GROUPED)
    second = [
        ("train llama", ["train", "llama-1b", "--out", llama, *common, *grouped], (0,)),
        ("eval llama", ["eval", llama, "--json"], (0,)),
        ("doctor", ["doctor", "--json"], (0,)),
        ("bench llama", ["bench", llama, "--seconds", "2", "--json"], (0,)),
    ]
    return first, second


def run_chain(chain: Chain, figures: dict[str, Any], output: Output, lock: threading.Lock) -> None:
    """Run commands one after another, also after a failed one: its successors say what else fails."""
    for name, words, accepted in chain:
        begun, lines = time.monotonic(), deque[str](maxlen=LINES)
        process = subprocess.Popen(
            [sys.executable, "-m", "hornbook", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert process.stdout is not None
        keep_lines(process.stdout, lines, f"[{name}] ")
        code = process.wait()
        kept = list(lines) if code not in accepted else list(lines)[-LAST_LINES:]
        entry = {"ok": code in accepted, "code": code, "seconds": round(time.monotonic() - begun, 1), "lines": kept}
        with lock:
            figures[name] = entry
            output.write({"commands": figures})
        print(f"[{name}] exit code {code} after {entry['seconds']} s", flush=True)


def main() -> int:
    """0 where all commands end as they should."""
    from tests.conftest import write_corpus

    output, spec = arguments()
    figures: dict[str, Any] = {}
    output.write({"commands": figures})  # none of an earlier call
    with tempfile.TemporaryDirectory() as folder:
        data, lock = write_corpus(Path(folder) / "data"), threading.Lock()
        made = chains(data, Path(folder), spec["dry_run"])
        threads = [threading.Thread(target=run_chain, args=(chain, figures, output, lock)) for chain in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return int(any(not entry["ok"] for entry in figures.values()))


if __name__ == "__main__":
    sys.exit(main())
