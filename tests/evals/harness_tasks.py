"""Five lm-eval tasks cut from documents of text: their data as jsonl and their yaml files, in a folder."""

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TASKS = {
    "next_word": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{before}}",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metrics": ("acc", "acc_norm"),
    },
    "next_sentence": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{before}}",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "num_fewshot": 1,
        "fewshot_config": {"sampler": "first_n"},
        "metrics": ("acc", "acc_norm"),
    },
    "last_word": {
        "output_type": "loglikelihood",
        "doc_to_text": "{{before}}",
        "doc_to_target": " {{word}}",
        "metrics": ("acc", "perplexity"),
    },
    "whole_pages": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metrics": ("bits_per_byte", "byte_perplexity"),
    },
    "go_on": {
        "output_type": "generate_until",
        "doc_to_text": "{{before}}",
        "doc_to_target": "{{word}}",
        "generation_kwargs": {"until": ["\n", "."], "max_gen_toks": 24, "do_sample": False},
        "metrics": ("exact_match",),
    },
}
"""What each yaml says; the split is made of its own file."""


def write_tasks(folder: Path, texts: Sequence[str], items: int, seed: int = 0) -> None:
    """`items` items of each task, cut from `texts`, and the yaml files."""
    draw = random.Random(seed)
    makers = {
        "next_word": _next_word,
        "next_sentence": _next_sentence,
        "last_word": _last_word,
        "whole_pages": lambda text, _, __: {"text": text[:6000]},
        "go_on": _last_word,
    }
    for name, maker in makers.items():
        rows: list[dict[str, Any]] = []
        while len(rows) < items:
            row = maker(draw.choice(texts), texts, draw)
            rows += [row] if row else []
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        (folder / f"{name}.yaml").write_text(_yaml(name, data), encoding="utf-8")


def _yaml(name: str, data: Path) -> str:
    """JSON is yaml."""
    said = {key: value for key, value in TASKS[name].items() if key != "metrics"}
    metrics = [{"metric": each} for each in TASKS[name]["metrics"]]
    files = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test"}
    if "num_fewshot" in said:
        files["fewshot_split"] = "test"
    return json.dumps({"task": name, **files, **said, "metric_list": metrics, "metadata": {"version": 1}}, indent=1)


def _words(text: str, least: int) -> list[str] | None:
    words = re.findall(r"\S+", text)
    return words if len(words) > least else None


def _next_word(text: str, texts: Sequence[str], draw: random.Random) -> dict[str, Any] | None:
    words = _words(text, 30)
    if words is None:
        return None
    at = draw.randrange(10, len(words))
    others = [draw.choice(_words(draw.choice(texts), 0) or ["a"]) for _ in range(3)]
    choices = [words[at], *others]
    order = draw.sample(range(4), 4)
    shown = [choices[number] for number in order]
    before = " ".join(words[max(at - draw.randint(0, 60), 0) : at])  # some are empty
    return {
        "before": before + draw.choice(["", "", " "] if before else [""]),
        "choices": shown,
        "answer": order.index(0),
    }


def _next_sentence(text: str, texts: Sequence[str], draw: random.Random) -> dict[str, Any] | None:
    own = re.split(r"(?<=[.!?])\s+", text)
    other = re.split(r"(?<=[.!?])\s+", draw.choice(texts))
    if len(own) < 4 or len(other) < 4:
        return None
    at = draw.randrange(1, len(own) - 1)
    choices = [own[at], draw.choice(other), draw.choice(other)]
    if not all(each.strip() for each in choices):
        return None
    order = draw.sample(range(3), 3)
    shown = [choices[number][:300] for number in order]
    return {"before": " ".join(own[max(at - 3, 0) : at])[-600:], "choices": shown, "answer": order.index(0)}


def _last_word(text: str, texts: Sequence[str], draw: random.Random) -> dict[str, Any] | None:
    del texts
    words = _words(text, 30)
    if words is None:
        return None
    at = draw.randrange(5, len(words))
    return {"before": " ".join(words[max(at - draw.randint(3, 400), 0) : at]), "word": words[at]}
