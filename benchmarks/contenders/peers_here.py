"""Peers that are not dependencies: where variables of the environment say that they are.

    BENCH_LITGPT_PYTHON=INTERPRETER   one that has litgpt and lightning
    BENCH_NANOGPT=FOLDER              a checkout of nanoGPT
    BENCH_NANOCHAT=FOLDER             a checkout of nanochat

    BENCH_TORCHTITAN=FOLDER           one that `pip install --no-deps --target FOLDER` made

(and likewise MODDED_NANOGPT). `..._PYTHON` names the interpreter of any of them, by default this one. What is not there
is left out, and the tables say so.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Peer:
    """A library to import, or a folder to read."""

    name: str
    modules: tuple[str, ...]
    """What its contender imports from the interpreter."""
    file: str = ""
    """A file of its folder; "": it is installed, in a folder of its own if the environment names one."""

    @property
    def variable(self) -> str:
        """That names its folder, or with `_PYTHON` its interpreter."""
        return "BENCH_" + self.name.upper().replace("-", "_")


PEERS = {
    peer.name: peer
    for peer in (
        Peer("litgpt", ("litgpt", "lightning")),
        Peer("nanoGPT", ("torch",), "model.py"),
        Peer("nanochat", ("torch",), "nanochat/gpt.py"),
        Peer("torchtitan", ("torchtitan",)),
        Peer("modded-nanogpt", ("torch",), "train_gpt.py"),
        Peer("accelerate", ("accelerate",)),
    )
}


@dataclass(frozen=True)
class Found:
    """Where a peer is, or why it is not there."""

    python: str
    home: str = ""
    version: str = ""
    missing: str = ""


def find(name: str, environ: Mapping[str, str] = os.environ) -> Found:
    """The peer as the environment names it."""
    peer = PEERS[name]
    python, home = environ.get(f"{peer.variable}_PYTHON", sys.executable), environ.get(peer.variable, "")
    if peer.file and not home:
        return Found(python, missing=f"not here: {peer.variable} names no folder")
    if peer.file and not (Path(home) / peer.file).is_file():
        return Found(python, missing=f"not here: the folder of {peer.variable} has no {peer.file}")
    version = _version(python, peer.modules, home)
    if version is None:
        named = f"the interpreter of {peer.variable}_PYTHON" if f"{peer.variable}_PYTHON" in environ else "this one"
        named = f"the folder of {peer.variable}" if home and not peer.file else named
        return Found(python, missing=f"not here: {named} has no {' or '.join(peer.modules)}")
    return Found(python, home, _commit(home) if peer.file else version)


def _version(python: str, modules: tuple[str, ...], home: str) -> str | None:
    """Of the first module's distribution; None where one of them is missing there and in the folder."""
    code = "import sys, importlib.util as u, importlib.metadata as m; sys.exit(1) if None in map(u.find_spec, "
    code += "sys.argv[1:]) else print(m.version(sys.argv[1]))"
    try:
        words, folders = [python, "-c", code, *modules], {**os.environ, "PYTHONPATH": home}
        answer = subprocess.run(words, capture_output=True, text=True, check=False, env=folders if home else None)
    except OSError:
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def _commit(home: str) -> str:
    words = ["git", "-C", home, "log", "-1", "--format=%h of %cs"]
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown commit"
