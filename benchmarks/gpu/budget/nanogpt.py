"""nanoGPT's train.py on the same tokens: GPT-2 small with AdamW, the batch of the recipe beside this file.

Its evaluation draws rows at random; the checkpoint that it saves is scored by `benchmarks/peers/nanogpt_held_out.py` on
all held-out tokens, in rows one behind the other, as `hornbook eval` scores.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.contenders.peers_here import Found
from benchmarks.gpu.budget.files import write_nanogpt
from benchmarks.gpu.budget.scripts import Script, settled
from benchmarks.gpu.budget.text import ROOT, Text
from benchmarks.gpu.budget.trial import Budget, Figures

STEP = re.compile(r"^iter \d+: .*time (?P<ms>[\d.]+)ms")
TRIAL = 16
WARMUP = 20
"""A run warms up for one step in so many."""
SIZES = {"batch_size": 32, "gradient_accumulation_steps": 4, "block_size": 1024}
DRY = {"batch_size": 8, "gradient_accumulation_steps": 2, "block_size": 64, "n_layer": 2, "n_head": 2, "n_embd": 64}
DRY_DEVICE = {"device": "cpu", "compile": False, "dtype": "float32"}
NEVER = 10**9


def measure(folder: Path, text: Text, budget: Budget, figures: Figures, found: Found) -> None:
    """A trial that tells the time of a step; then as many steps as fit, and the held-out text."""
    write_nanogpt(folder / "data", text)
    script = Script(found.python, Path(found.home), ("train.py",), STEP)
    settings: dict[str, Any] = {**DRY, **DRY_DEVICE} if budget.dry else dict(SIZES)
    settings |= {"dataset": str(folder / "data"), "out_dir": str(folder / "out"), "eval_iters": 1}
    if "step_seconds" not in figures.known:
        lines = script.run(words(settings | {"max_iters": TRIAL, "eval_interval": NEVER}), folder / "trial.log")
        figures.add(step_seconds=settled(script.seconds(lines)))
    count = max(int(budget.seconds / figures.known["step_seconds"]), 2)
    lengths = {"max_iters": count, "lr_decay_iters": count, "eval_interval": count, "warmup_iters": count // WARMUP}
    seconds = script.seconds(script.run(words(settings | lengths), folder / "run.log"))
    tokens = count * settings["batch_size"] * settings["gradient_accumulation_steps"] * settings["block_size"]
    figures.add(steps=count, tokens=tokens, train_seconds=sum(seconds[1:count]) + figures.known["step_seconds"])
    loss = held_out(found, folder, "cpu" if budget.dry else "cuda")
    figures.add(loss=loss, bits_per_byte=text.bits_per_byte(loss), held_out_tokens=len(text.held_out.tokens))


def words(settings: dict[str, Any]) -> list[str]:
    """Arguments of its configurator."""
    return [f"--{key}={value}" for key, value in settings.items()]


def held_out(found: Found, folder: Path, device: str) -> float:
    """Mean nats of the held-out tokens under its checkpoint."""
    program = ROOT / "benchmarks" / "peers" / "nanogpt_held_out.py"
    spec = {"home": found.home, "device": device, "tokens": str(folder / "data" / "val.bin")}
    spec |= {"checkpoint": str(folder / "out" / "ckpt.pt")}
    command = [found.python, str(program), json.dumps(spec)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RuntimeError(f"{program.name}: {answer.stderr[-2000:]}")
    return json.loads(answer.stdout.splitlines()[-1])["loss"]
