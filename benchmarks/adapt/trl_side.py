"""trl's losses and gradients of one batch, by its own trainers: run by an interpreter that has trl.

`trl_side.py FOLDER`: FOLDER holds case.json (objective, its settings, sequences), `model` and `reference`. Writes
loss.json and gradients.safetensors there. It imports nothing of hornbook.
"""

# pyright: reportMissingImports=false

import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

COMMON: dict[str, Any] = {"report_to": [], "use_cpu": True, "bf16": False, "gradient_checkpointing": False}
TEXT = {
    "sft": {"text": "a"},
    "kto": {"prompt": "a", "completion": "b", "label": True},
    "pairs": {"prompt": "a", "chosen": "b", "rejected": "c"},
}
"""A row to make a trainer with; the batch is given to it as token ids."""


def trainer_of(kind: str, folder: Path, settings: dict[str, Any], model: Any, tokenizer: Any) -> Any:
    """The trainer of an objective."""
    from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, SFTConfig, SFTTrainer
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    rows = Dataset.from_list([TEXT.get(kind, TEXT["pairs"])] * 4)
    common = {**COMMON, "output_dir": str(folder / "out"), "per_device_train_batch_size": 4}
    given: dict[str, Any] = {"model": model, "train_dataset": rows, "processing_class": tokenizer}
    if kind == "sft":
        return SFTTrainer(args=SFTConfig(**common), **given)
    if kind == "orpo":
        return ORPOTrainer(args=ORPOConfig(beta=settings["beta"], **common), **given)
    given["ref_model"] = AutoModelForCausalLM.from_pretrained(folder / "reference", dtype=torch.float32)
    if kind == "kto":
        more = {"train_sampling_strategy": "sequential"}
        return KTOTrainer(args=KTOConfig(beta=settings["beta"], **more, **common), **given)
    loss = {"dpo": ["sigmoid"], "ipo": ["ipo"]}[kind]
    return DPOTrainer(args=DPOConfig(beta=settings["beta"], loss_type=loss, **common), **given)


def padded(rows: list[list[int]], value: int) -> torch.Tensor:
    """Rows of one length."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


def loss_of(kind: str, trainer: Any, model: Any, rows: list[dict[str, Any]], pad: int) -> torch.Tensor:
    """The loss of the rows."""
    if kind == "sft":
        batch = {"input_ids": padded([row["ids"] for row in rows], pad)}
        batch["attention_mask"] = padded([[1] * len(row["ids"]) for row in rows], 0)
        learned = [[i if m else -100 for i, m in zip(row["ids"], row["answered"], strict=True)] for row in rows]
        batch["labels"] = padded(learned, -100)
        return trainer.compute_loss(model, batch)
    if kind != "orpo":
        return trainer.compute_loss(model, trainer.data_collator(rows))
    batch = {}
    for side in ("chosen", "rejected"):
        whole = [row["prompt_ids"] + row[f"{side}_ids"] for row in rows]
        labels = [[-100] * len(row["prompt_ids"]) + row[f"{side}_ids"] for row in rows]
        batch[f"{side}_input_ids"], batch[f"{side}_labels"] = padded(whole, pad), padded(labels, -100)
        batch[f"{side}_attention_mask"] = padded([[1] * len(each) for each in whole], 0)
    return trainer.get_batch_loss_metrics(model, batch)[0]


def main(folder: Path) -> None:
    """Compute and write."""
    case = json.loads((folder / "case.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    trainer = trainer_of(case["kind"], folder, case["settings"], model, tokenizer)
    trainer.data_collator.max_length = None
    model = trainer.model
    model.train()
    loss = loss_of(case["kind"], trainer, model, case["rows"], tokenizer.pad_token_id)
    loss.backward()
    grads = {name: p.grad.contiguous().clone() for name, p in model.named_parameters() if p.grad is not None}
    save_file(grads, folder / "gradients.safetensors")
    (folder / "loss.json").write_text(json.dumps({"loss": float(loss.detach())}))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        main(Path(name))
