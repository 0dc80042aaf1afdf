"""transformers' Trainer on the rows of `finetune`: finetune_trainer.py '{"family": ..., ...}'. It imports no hornbook.

Writes score, seconds (from the end of the first step to that of the last) and steps to `out`.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

IGNORED = -100


def padded(rows: list[list[int]], value: int) -> torch.Tensor:
    """Rows of one length."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A batch, padded to its longest row."""
    ids = [row["input_ids"] for row in rows]
    batch = {"input_ids": padded(ids, 0), "attention_mask": padded([[1] * len(each) for each in ids], 0)}
    if isinstance(rows[0]["labels"], int):
        return batch | {"labels": torch.tensor([row["labels"] for row in rows])}
    return batch | {"labels": padded([row["labels"] for row in rows], IGNORED)}


class Clock(TrainerCallback):
    """When each step ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Note it."""
        self.times.append(time.time())


def score(model: Any, rows: list[dict[str, Any]]) -> float:
    """Accuracy, or nats per token."""
    model.eval()
    right = total = 0.0
    with torch.no_grad():
        for first in range(0, len(rows), 64):
            batch = collate(rows[first : first + 64])
            labels, logits = batch["labels"], model(**batch).logits
            if labels.ndim == 1:
                right, total = right + float((logits.argmax(-1) == labels).sum()), total + len(labels)
            else:
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
                right, total = right + float(loss), total + float((labels != IGNORED).sum())
    return right / total


def main() -> None:
    """Train and score."""
    spec = json.loads(sys.argv[1])
    torch.set_num_threads(spec["threads"])
    rows = json.loads(Path(spec["rows"]).read_text())
    kinds = {"bert": AutoModelForSequenceClassification, "t5": AutoModelForSeq2SeqLM}
    model = kinds[spec["family"]].from_pretrained(spec["start"], dtype=torch.float32)
    for name in ("dropout", "dropout_rate", "classifier_dropout"):
        assert not getattr(model.config, name, 0), name
    batch, clock = round(len(rows["train"]) * spec["epochs"] / spec["steps"]), Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=spec["steps"],
            per_device_train_batch_size=batch,
            learning_rate=spec["lr"],
            adam_beta2=0.999,
            adam_epsilon=1e-8,
            weight_decay=0.0,
            max_grad_norm=1.0,
            optim="adamw_torch_fused",
            lr_scheduler_type="linear",
            warmup_steps=round(0.1 * spec["steps"]),
            seed=spec["seed"],
            use_cpu=True,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        trainer = Trainer(
            model=model, args=arguments, train_dataset=rows["train"], data_collator=collate, callbacks=[clock]
        )
        trainer.train()
    seconds = clock.times[-1] - clock.times[0]
    found = {"score": score(model, rows["dev"]), "seconds": seconds, "steps": len(clock.times), "batch": batch}
    Path(spec["out"]).write_text(json.dumps(found))


main()
