"""Losses and gradients of supervised fine-tuning and of compared answers, beside trl's trainers.

    BENCH_TRL_PYTHON=INTERPRETER python -m benchmarks.adapt.preference

Three tiny models, each from its own export; rows go through prepare, tokenize, the loader and the engine here, and as
the same token ids to trl. Writes benchmarks/results/preference.json: the difference of losses, and of gradients as a
share of the largest of each tensor's.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from benchmarks import report
from hornbook.data.batch import MISMATCHED, Batch, GlobalBatch
from hornbook.data.config.data import DataConfig
from hornbook.data.config.objectives import Answer, ObjectiveConfig
from hornbook.data.config.preferences import DPO, IPO, KTO, ORPO, Referenced
from hornbook.data.corpus import Corpus
from hornbook.data.labelled.references import model_digest
from hornbook.data.loader.loader import build_loader
from hornbook.model.build_model import build_model
from hornbook.model.hf.hf import write_hf
from hornbook.model.init.init import initial_values
from hornbook.model.storage.load import load_model
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.parallelize import parallelize
from hornbook.run.job.start.run_reference import compute_references
from hornbook.settings.resolve import resolve
from hornbook.text.config.labels import ChatLabels, LabelsConfig, PreferenceLabels, RatedLabels
from hornbook.text.config.text import BPE, SourceConfig, TextConfig, TokenizerFile
from hornbook.text.ingest.corpora.installed_chats import write_chats
from hornbook.text.refinery.pipeline.prepare import prepare
from hornbook.text.tokenizer.tokenize import tokenize

NAME, LIMIT, SEQUENCE, ROWS = "preference", 1e-5, 256, 3
TEMPLATE = (
    "{{- bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content + eos_token }}"
    "{% endgeneration %}{% else %}{{ m.content + '\n' }}{% endif %}{% endfor %}"
)
"""Nothing follows an answer: trl takes all behind the prompt for it."""
MODELS = ("gpt2-124m", "llama-1b", "qwen3-0.6b")
SMALL = [
    "train.sequence=256",
    "model.layers=2",
    "model.width=64",
    "model.heads=4",
    "model.position.length=512",
    "model.dropout=0",
]
LABELS: dict[str, LabelsConfig] = {
    "chats": ChatLabels(),
    "preferences": PreferenceLabels(),
    "ratings": RatedLabels(),
}
CASES: dict[str, tuple[str, ObjectiveConfig]] = {
    "sft": ("chats", Answer()),
    "dpo": ("preferences", DPO(beta=0.1)),
    "ipo": ("preferences", IPO(beta=0.1)),
    "orpo": ("preferences", ORPO(beta=0.1)),
    "kto": ("ratings", KTO(beta=0.1)),
}


def make_data(folder: Path) -> dict[str, Path]:
    """Three data folders with one tokenizer."""
    raw = write_chats(folder / "raw", most=90)
    (folder / "template.jinja").write_text(TEMPLATE)
    made: dict[str, Path] = {}
    for name, labels in LABELS.items():
        made[name] = folder / name
        tokenizer = TokenizerFile(path=str(made["chats"] / "tokenizer")) if name != "chats" else BPE(vocab=400)
        config = TextConfig(
            sources={name: SourceConfig(paths=[str(raw / f"{name}.jsonl")])},
            labels=labels,
            tokenizer=tokenizer,
            chat_template=str(folder / "template.jinja"),
            validation=0,
        )
        prepare(config, made[name], workers=1)
        tokenize(made[name], config, workers=1)
    return made


def write_model(name: str, folder: Path, tokenizer: Path, vocab: int, seed: int) -> None:
    """A small model of an architecture with random values."""
    kv = [] if name == "gpt2-124m" else ["model.attention.kv_heads=2"]
    more = ["model.attention.head_dim=16"] if name == "qwen3-0.6b" else []
    config = resolve(name, [*SMALL, *kv, *more]).recipe.model
    model = build_model(config, vocab, "meta")
    tensors = {key: 4 * value if value.ndim > 1 else value for key, value in initial_values(model, config, seed)}
    write_hf(folder, tensors, config, vocab, tokenizer)


def sequences(batch: Batch) -> list[list[tuple[list[int], list[int], int]]]:
    """Of each row: (tokens, whether each is an answer, side) of its conversations."""
    found = []
    for row, lengths in enumerate(batch.document_lengths):
        mine, begin = [], 0
        for number, length in enumerate(lengths):
            span = slice(begin, begin + length)
            if batch.compared is None:
                answered, side = batch.weights[row, span].int().tolist(), 0
            elif number < int((batch.compared.sides[row] >= 0).sum()):
                answered, side = (batch.compared.marks[row, span] % 2).tolist(), int(batch.compared.sides[row, number])
            else:
                answered, side = [], 0
            if any(answered):
                mine.append((batch.tokens[row, span].tolist(), [0, *answered[:-1]], side))
            begin += length
        found.append(mine)
    return found


def rows_of(kind: str, batch: Batch) -> list[dict[str, Any]]:
    """The batch as trl's collators take it."""
    flat = [each for row in sequences(batch) for each in row]
    if kind == "sft":
        return [{"ids": ids, "answered": answered} for ids, answered, _ in flat]
    parts = [(ids[: answered.index(1)], ids[answered.index(1) :], side) for ids, answered, side in flat]
    if kind != "kto":
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return [{"prompt_ids": a[0], "chosen_ids": a[1], "rejected_ids": b[1]} for a, b in pairs]
    rated, others = parts[::2], parts[1::2]
    assert all(each[2] == MISMATCHED for each in others)
    return [
        {"prompt_ids": ids, "completion_ids": said, "KL_completion_ids": other[1], "label": side == 0}
        for (ids, said, side), other in zip(rated, others, strict=True)
    ]


def ours(folder: Path, batch: GlobalBatch) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients by their names in the export."""
    loaded = load_model(folder / "model")
    train = resolve("tiny", ["train.precision=fp32", "train.device=cpu"]).recipe.train
    engine = parallelize(loaded.model, ParallelConfig(), train)
    engine.zero_gradients()
    losses = engine.forward_backward(batch.batches, batch.total_weight)
    grads = {name: p.grad for name, p in engine.named_parameters.items() if p.grad is not None}
    write_hf(folder / "ours", grads, loaded.config, loaded.vocab, None)
    found = {name: each for path in (folder / "ours").glob("*.safetensors") for name, each in load_file(path).items()}
    return float(losses["loss"]) / batch.total_weight, found


def take(kind: str, data: Path, folder: Path) -> GlobalBatch:
    """One batch of a case; its reference is the model in `reference`."""
    _, objective = CASES[kind]
    if isinstance(objective, Referenced):
        recipe = resolve("dpo-tiny", ["train.precision=fp32", "train.device=cpu", f"data.path={data}"]).recipe
        train = recipe.train.model_copy(update={"sequence": SEQUENCE})
        both = recipe.data.model_copy(update={"objective": objective})
        recipe = recipe.model_copy(update={"train": train, "data": both})
        compute_references(recipe, folder / "reference", lambda *_: None)
        objective = objective.model_copy(update={"reference": model_digest(folder / "reference")})
    config = DataConfig(objective=objective)
    return build_loader(config, data, sequence=SEQUENCE, micro_batch=ROWS, seed=1, prefetch=False).take(ROWS)


def measure(folder: Path, python: str) -> dict[str, Any]:
    """All cases of all models."""
    data = make_data(folder)
    corpus = Corpus.open(data["chats"])
    vocab, mine = -(-corpus.vocab_size // 64) * 64, dict[str, tuple[float, dict[str, torch.Tensor]]]()
    for name in MODELS:
        for kind, (source, objective) in CASES.items():
            case = folder / f"{name}-{kind}"
            case.mkdir()
            for seed, part in enumerate(("model", "reference"), 1):
                write_model(name, case / part, data["chats"] / "tokenizer", vocab, seed)
            batch = take(kind, data[source], case)
            settings = objective.model_dump() if kind != "sft" else {}
            rows = rows_of(kind, batch.batches[0])
            (case / "case.json").write_text(json.dumps({"kind": kind, "settings": settings, "rows": rows}))
            mine[case.name] = ours(case, batch)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    script = Path(__file__).with_name("trl_side.py")
    subprocess.run([python, str(script), *(str(folder / name) for name in mine)], check=True, env=environment)
    return {name: _compared(folder / name, *found) for name, found in mine.items()}


def _compared(case: Path, loss: float, grads: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Differences of loss and gradients."""
    theirs = json.loads((case / "loss.json").read_text())["loss"]
    expected = load_file(case / "gradients.safetensors")
    missing = set(expected) - set(grads)
    assert not missing, f"{case.name}: {sorted(missing)}"
    shares = [
        float((grads[name] - each).abs().max() / each.abs().max().clamp(min=1e-6)) for name, each in expected.items()
    ]
    largest = max(float((grads[name] - each).abs().max()) for name, each in expected.items())
    found = {"loss": loss, "trl": theirs, "loss_difference": abs(loss - theirs), "gradient_difference": largest}
    return found | {"gradient_share": max(shares), "tensors": len(expected)}


def main() -> None:
    """Measure and write."""
    python = os.environ.get("BENCH_TRL_PYTHON")
    if python is None:
        sys.exit("BENCH_TRL_PYTHON: name an interpreter that has trl")
    asked = "import trl; print(trl.__version__)"
    version = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), python)
    for name, figures in found.items():
        print(f"{name:20} {figures['loss']:.6f} {figures['trl']:.6f} {figures['gradient_difference']:.1e}")
    kept = all(max(each["loss_difference"], each["gradient_difference"]) <= LIMIT for each in found.values())
    print(f"wrote {report.write(NAME, {'trl': version, 'limit': LIMIT, 'kept': kept, 'cases': found})}")


if __name__ == "__main__":
    main()
