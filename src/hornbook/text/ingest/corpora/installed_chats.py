"""Conversations and preferences that every Python installation carries: what functions of its library are for.

`python -m hornbook.text.ingest.corpora.installed_chats FOLDER` writes `chats.jsonl` (messages), `preferences.jsonl`
(prompt, chosen, rejected) and `ratings.jsonl` (prompt, completion, label), for the recipes `sft-tiny` and `dpo-tiny`.
The answer is the first line of a function's docstring; the rejected one is that of another function.
"""

import ast
import json
import random
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hornbook.files.durable import write_atomic
from hornbook.text.ingest.corpora.installed import python_files

_ASKED = ("What does {} do?", "What is {} for?", "Explain {}.")
_SYSTEM = "Answer in one line."
_LONGEST = 160
"""Characters of an answer."""


def write_chats(folder: Path, *, most: int = 1200, seed: int = 0) -> Path:
    """Write the three files, of at most `most` functions; returns the folder. Same installation, same bytes."""
    draw = random.Random(seed)
    facts = list(_functions(Path(sysconfig.get_paths()["stdlib"])))
    draw.shuffle(facts)
    facts = facts[:most]
    chats = [_chat(facts[first : first + 1 + first // 3 % 3], draw) for first in range(0, len(facts), 3)]
    preferences, ratings = [], []
    for number, (name, answer) in enumerate(facts):
        prompt, other = draw.choice(_ASKED).format(name), facts[(number + 1) % len(facts)][1]
        preferences.append({"prompt": prompt, "chosen": answer, "rejected": other})
        good = number % 2 == 0
        ratings.append({"prompt": prompt, "completion": answer if good else other, "label": good})
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("chats", chats), ("preferences", preferences), ("ratings", ratings)):
        write_atomic(folder / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return folder


def _functions(root: Path) -> Iterator[tuple[str, str]]:
    """(module.name, first line of the docstring) of functions of the library, in the order of their paths."""
    for path in python_files(root):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError, OSError):
            continue
        for node in tree.body:
            said = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
            line = (said or "").strip().partition("\n")[0]
            if isinstance(node, ast.FunctionDef) and 20 <= len(line) <= _LONGEST:
                yield f"{path.stem}.{node.name}", line


def _chat(facts: list[tuple[str, str]], draw: random.Random) -> dict[str, Any]:
    messages = [{"role": "system", "content": _SYSTEM}] if draw.random() < 0.3 else []
    for name, answer in facts:
        messages.append({"role": "user", "content": draw.choice(_ASKED).format(name)})
        messages.append({"role": "assistant", "content": answer})
    return {"messages": messages}


if __name__ == "__main__":
    print(write_chats(Path(sys.argv[1])))
