"""modded-nanogpt's train_gpt.py on the same tokens: a copy of the checkout's files whose numbers are set for the time.

Its script needs CUDA, and FlashAttention 3 from the package `kernels`; it has no arguments, so that the values of its
`Hyperparameters` are replaced in the copy. It warms its kernels up outside of the time, minutes long where its caches
are cold. Its loss is the mean over the held-out tokens that fill its eight microbatches.
"""

import pickle
import re
import shutil
import socket
from pathlib import Path

from benchmarks.contenders.peers_here import Found
from benchmarks.gpu.budget.files import modded_encoding, write_modded
from benchmarks.gpu.budget.scripts import Script, last_number
from benchmarks.gpu.budget.text import LeftOut, Text
from benchmarks.gpu.budget.trial import Budget, Figures

LONGEST = 2048
"""Tokens of a document that its last stages read."""
MICROBATCHES, UNIT = 8, 128
LEAST_HELD_OUT = 24 * 2048 * 8
"""Its tables of positions have the length of a microbatch of evaluation, which no microbatch of training may pass."""
TRIAL, EXTENSION = 30, 15
"""Steps of the trial's stages, and those of a run behind its schedule, which a trial has one of."""
MOST_DOCUMENTS = 1024
"""In a microbatch; its own bounds are those of longer documents."""
NEVER = 0
FILES = 256
"""More than it reads."""
STEP = re.compile(r"step_avg:(?P<ms>[\d.]+)ms")


def measure(folder: Path, text: Text, budget: Budget, figures: Figures, found: Found) -> None:
    """A trial of all stages; then as many steps as fit, and its loss on the held-out text."""
    room = write_modded(folder, text, longest=LONGEST, files=FILES, least=LEAST_HELD_OUT)
    (folder / "encoding.pkl").write_bytes(pickle.dumps(modded_encoding(text)))
    source = (Path(found.home) / "train_gpt.py").read_text(encoding="utf-8")
    trial = edited(source, lengths(TRIAL, 1, room))
    if budget.dry:
        raise LeftOut("untried here: its script needs CUDA; the files of tokens and the copy of its script were made")
    figures.add(held_out_tokens=held_out_tokens(room))
    if "step_seconds" not in figures.known:
        lines = run(folder, found, trial, "trial")
        figures.add(step_seconds=last_number(STEP.pattern.replace("?P<ms>", ""), lines) / 1000)
    count = max(int(budget.seconds / figures.known["step_seconds"]) - EXTENSION, TRIAL)
    lines = run(folder, found, edited(source, lengths(count, EXTENSION, room)), "run")
    loss = last_number(r"val_loss:([\d.]+)", lines)
    figures.add(
        steps=count + EXTENSION,
        train_seconds=last_number(r"train_time:(\d+)ms", lines) / 1000,
        loss=loss,
        bits_per_byte=text.bits_per_byte(loss),
    )


def held_out_tokens(room: int) -> int:
    """Most tokens, of those there are, that divide into its microbatches."""
    return room // (MICROBATCHES * UNIT) * MICROBATCHES * UNIT


def lengths(steps: int, extension: int, room: int) -> dict[str, str]:
    """New values of names of its script."""
    scored = held_out_tokens(room)
    values = {"num_scheduled_iterations": steps, "num_extension_iterations": extension, "val_loss_every": NEVER}
    values |= {"val_tokens": scored, "val_batch_size": scored}
    return {name: str(value) for name, value in values.items()}


def edited(source: str, values: dict[str, str]) -> str:
    """The script with other values of `name: int = ...`, and with room for more documents in a microbatch.

    RuntimeError for a name that it does not have once: it is another version of the script.
    """
    for name, value in values.items():
        source, count = re.subn(rf"(?m)^(\s+{name}: int = )[^#\n]+", rf"\g<1>{value} ", source)
        if count != 1:
            raise RuntimeError(f"train_gpt.py sets {name} {count} times, expected once: this version is not known")
    bounds = f"dict.fromkeys((16384, 32768, 49152), {MOST_DOCUMENTS})"
    source, count = re.subn(r"(?m)^(TRAIN_MAX_NUM_DOCS = )\{.*\}", rf"\g<1>{bounds}", source)
    if count != 1:
        raise RuntimeError("train_gpt.py has no TRAIN_MAX_NUM_DOCS: this version is not known")
    return source


def run(folder: Path, found: Found, source: str, name: str) -> list[str]:
    """The script in a folder with the checkout's other files; what it prints."""
    place = folder / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for file in Path(found.home).glob("*.py"):
        shutil.copy(file, place)
    (place / "train_gpt.py").write_text(source, encoding="utf-8")
    words = ("-m", "benchmarks.peers.stand_in", str(folder / "encoding.pkl"), "train_gpt.py")
    return Script(found.python, place, words, STEP).run([], folder / f"{name}.log", environment(folder))


def environment(folder: Path) -> dict[str, str]:
    """That of the only process of its group, as torchrun would set it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return group | {
        "DATA_PATH": str(folder),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "HF_HUB_OFFLINE": "0",
    }
