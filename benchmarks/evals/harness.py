"""lm-eval on a model of ours, by its model interface and as exported, in transformers: the same numbers?

`python -m benchmarks.evals.harness DATA.jsonl.gz...` trains a small model on some of the given text, exports it, makes
five tasks of text that it has not seen, and has lm-eval score both. It needs lm-eval (extra `eval`) and transformers in
the python that runs it; it writes benchmarks/results/evals_harness.json.
"""

# pyright: reportMissingImports=false

import argparse
import gzip
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.evals.harness_tasks import TASKS, write_tasks

MODELS = {
    "llama": (),
    "gpt2": ("gpt2-124m", "model.mlp.hidden=256"),
    "qwen3": ("qwen3-0.6b", "model.mlp.hidden=128", "model.attention.kv_heads=2", "model.attention.head_dim=16"),
}
"""Recipe and settings of the models, all of two layers of 64."""
SHAPE = (
    "model.layers=2",
    "model.width=64",
    "model.heads=4",
    "model.vocab=none",
    "model.position.length=256",
    "train.sequence=256",
)
SHARED = (
    *SHAPE,
    "train.batch_tokens=4096",
    "train.tokens=400k",
    "train.precision=fp32",
    "train.device=cpu",
    "optim.lr=0.003",
    "optim.schedule.warmup=10 steps",
    "eval.every=0",
    "eval.prompt=",
)
LIMIT = 1e-4
ITEMS = 60
TEXT_BYTES = 4_000_000


def texts_of(paths: Sequence[str]) -> Iterator[str]:
    """Texts of jsonl files."""
    for path in paths:
        with gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else open(path, encoding="utf-8") as file:
            yield from (json.loads(line)["text"] for line in file)


def train(folder: Path, paths: Sequence[str], settings: Sequence[str], more: Sequence[str] = ()) -> tuple[Path, Path]:
    """(run, exported model) of a model trained on the first texts; its data folder is made once."""
    from hornbook.cli.main import main

    data = folder / "data"
    if not data.exists():
        source, size = folder / "text.jsonl", 0
        with source.open("w", encoding="utf-8") as file:
            for text in texts_of(paths):
                size += len(text)
                file.write(json.dumps({"text": text}) + "\n")
                if size > TEXT_BYTES:
                    break
        assert main(["prepare", str(source), "--out", str(data)]) == 0
        assert main(["tokenize", str(data), "--vocab", "2000"]) == 0
    run = folder / f"run-{len(list(folder.glob('run-*')))}"
    assert main(["train", *settings, *SHARED, *more, "--data", str(data), "--out", str(run)]) == 0
    model = run.with_name(run.name.replace("run", "model"))
    assert main(["export", str(run), "--out", str(model)]) == 0
    return run, model


def score(own: Any, tasks: Path) -> tuple[dict[str, Any], float]:
    """(lm-eval's results with samples, seconds)."""
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    started = time.perf_counter()
    manager = TaskManager(include_path=str(tasks))
    found = simple_evaluate(own, tasks=list(TASKS), task_manager=manager, bootstrap_iters=0, log_samples=True)
    assert found is not None
    return found, time.perf_counter() - started


def native(run: Path) -> Any:
    """Our model behind lm-eval's interface, as `hornbook eval --harness` makes it."""
    from hornbook.evals.harness import harness_model
    from hornbook.evals.task import ModelContext
    from hornbook.model.storage.load import load_model
    from hornbook.parallel.config import ParallelConfig
    from hornbook.parallel.parallelize import parallelize
    from hornbook.run.checkpoints.path import checkpoint_path
    from hornbook.settings.training import TrainConfig

    loaded = load_model(checkpoint_path(run))
    assert loaded.tokenizer is not None
    engine = parallelize(loaded.model, ParallelConfig(), TrainConfig(device="cpu", precision="fp32"))
    context = ModelContext(
        tokenizer=loaded.tokenizer,
        sequence=loaded.config.position.length,
        micro_batch=8,
        seed=0,
        model=loaded.config,
        proceed=lambda: True,
    )
    return harness_model(engine, engine.world, context)


def exported(model: Path) -> Any:
    """lm-eval's own class for transformers; it sums thousands of tokens in float64, as we do."""
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=str(model), device="cpu", dtype="float32", softmax_dtype="float64", batch_size=8)


def compare(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """By task: largest difference of log-likelihoods, and whether all that follows from them is equal."""
    found: dict[str, Any] = {}
    for name, said in TASKS.items():
        largest, different, requests = 0.0, 0, 0
        for mine, other in zip(ours["samples"][name], theirs["samples"][name], strict=True):
            assert mine["doc_id"] == other["doc_id"], "lm-eval gives samples in one order"
            pairs = list(zip(_answers(mine), _answers(other), strict=True))
            requests += len(pairs)
            if said["output_type"] == "generate_until":
                different += sum(a != b for a, b in pairs)
            elif said["output_type"] == "loglikelihood_rolling":
                largest = max(largest, *(abs(float(a) - float(b)) for a, b in pairs))
            else:
                largest = max(largest, *(abs(float(a[0]) - float(b[0])) for a, b in pairs))
                different += sum(str(a[1]) != str(b[1]) for a, b in pairs)
                if said["output_type"] == "multiple_choice":
                    chosen = [max(range(len(pairs)), key=lambda at: float(pairs[at][side][0])) for side in (0, 1)]
                    different += chosen[0] != chosen[1]
        metrics = {key: (ours["results"][name][key], theirs["results"][name][key]) for key in ours["results"][name]}
        numbers = {key: pair for key, pair in metrics.items() if isinstance(pair[0], int | float)}
        kept = largest <= LIMIT and not different
        shown = {key: {"ours": pair[0], "theirs": pair[1]} for key, pair in numbers.items() if "stderr" not in key}
        found[name] = {"kind": said["output_type"], "requests": requests, "largest_difference": largest}
        found[name] |= {"different_answers": different, "metrics": shown, "kept": kept}
        print(name, f"{requests} requests, largest difference {largest:.1e}, {different} different, kept: {kept}")
    return found


def _answers(sample: dict[str, Any]) -> list[Any]:
    """What the model gave to each request of an item."""
    return [each[0] for each in sample["resps"]]


def run(paths: Sequence[str], items: int) -> dict[str, Any]:
    """Measure both models and write the file."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    import lm_eval
    import transformers

    figures: dict[str, Any] = {"lm_eval": lm_eval.__version__, "transformers": transformers.__version__}
    figures |= {"limit": LIMIT, "items": items, "models": {}}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["HF_DATASETS_CACHE"] = str(folder / "cache")
        (folder / "tasks").mkdir()
        held = [text for text in texts_of(paths) if len(text) > 800][-400:]
        write_tasks(folder / "tasks", held, items)
        for name, settings in MODELS.items():
            _, model = train(folder, paths, settings)
            ours, seconds = score(native(model), folder / "tasks")
            theirs, their_seconds = score(exported(model), folder / "tasks")
            tasks = compare(ours, theirs)
            figures["models"][name] = {
                "tasks": tasks,
                "seconds": round(seconds, 1),
                "hf_seconds": round(their_seconds, 1),
            }
    figures["kept"] = all(task["kept"] for model in figures["models"].values() for task in model["tasks"].values())
    print(f"wrote {report.write('evals_harness', figures)}")
    return figures


def main() -> None:
    """`run` with the files given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", help="jsonl files with `text`, compressed or not")
    parser.add_argument("--items", type=int, default=ITEMS)
    given = parser.parse_args()
    run(given.paths, given.items)


if __name__ == "__main__":
    main()
