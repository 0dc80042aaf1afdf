"""Contender: LoRA of peft in transformers' Trainer. Usage: INTERPRETER peft_trainer.py '{...}'.

The Trainer runs its own loop; each step's tokens are taken where it begins. It imports nothing of hornbook.
"""

import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments

sys.path.insert(0, str(Path(__file__).parent))
from worker import EndOfRequests, Rounds


class Places(Dataset):
    """Rows without content, for steps that bring their own."""

    def __init__(self, rows: int) -> None:
        self._row = {"input_ids": torch.zeros(1, dtype=torch.int64), "labels": torch.zeros(1, dtype=torch.int64)}
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._row


class Asked(Trainer):
    """A Trainer whose steps learn from the tokens of requests."""

    rounds: Rounds

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        del inputs, num_items_in_batch
        tokens = self.rounds.take()
        learned = {"input_ids": tokens[:, :-1].contiguous(), "shift_labels": tokens[:, 1:].contiguous()}
        learned["labels"] = learned["input_ids"]
        loss = super().training_step(model, learned, None)
        self.rounds.lost(float(loss))
        return loss


def four_bits(precision: str) -> BitsAndBytesConfig:
    """QLoRA's: NormalFloat by blocks of 64, scales quantized too; products in the precision of training."""
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16 if precision == "bf16" else torch.float32,
    )


def main() -> None:
    spec = json.loads(sys.argv[1])
    rows, steps = spec["shape"]["rows"], 10_000
    model = AutoModelForCausalLM.from_pretrained(
        spec["folder"],
        attn_implementation=spec["attention"],
        dtype=torch.float32,
        quantization_config=four_bits(spec["precision"]) if spec["nf4"] else None,
        device_map={"": "cpu"} if spec["nf4"] else None,
    )
    lora = LoraConfig(r=spec["rank"], lora_alpha=spec["alpha"], target_modules=spec["peft_targets"], lora_dropout=0.0)
    model = get_peft_model(model, lora)
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(EndOfRequests):
        args = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=rows,
            max_steps=steps,
            learning_rate=spec["lr"],
            weight_decay=0.0,
            max_grad_norm=1.0,
            bf16=spec["precision"] == "bf16",
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            torch_compile=spec["compile"],
        )
        trainer = Asked(model=model, args=args, train_dataset=Places(rows * steps))
        trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
        trainer.rounds = Rounds(spec["shape"], trained=trained)
        trainer.train()


main()
