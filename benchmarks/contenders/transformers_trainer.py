"""Contender: transformers' Trainer. Usage: transformers_trainer.py '{"checkpoint": ..., ...}'.

Only the tokens of a step are replaced, by those that all contenders learn from, after its DataLoader has made its own.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))
from worker import Rounds


class Begin(TrainerCallback):
    """Has each step begin with a request."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self.tokens: Any = None

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Wait for the tokens."""
        self.tokens = self._rounds.take()


class RoundTrainer(Trainer):
    """A Trainer whose steps take the tokens of the round."""

    begin: Begin
    rounds: Rounds

    def training_step(self, model: Any, inputs: Any, *arguments: Any, **keywords: Any) -> torch.Tensor:
        """As it is, but for the tokens."""
        del inputs
        tokens = self.begin.tokens
        inputs = {"input_ids": tokens[:, :-1], "labels": tokens[:, :-1], "shift_labels": tokens[:, 1:].contiguous()}
        loss = super().training_step(model, inputs | {"use_cache": False}, *arguments, **keywords)
        self.rounds.lost(float(loss))
        return loss


def main() -> None:
    """Train until requests end."""
    spec = json.loads(sys.argv[1])
    shape, load = spec["shape"], AutoModelForCausalLM.from_pretrained
    model = load(spec["checkpoint"], attn_implementation=spec["attention"], dtype=torch.float32)
    settings: dict[str, Any] = {"learning_rate": 3e-4, "adam_beta2": 0.95, "weight_decay": 0.0, "max_grad_norm": 1.0}
    settings |= {"optim": "adamw_torch_fused", "lr_scheduler_type": "constant", "max_steps": 10**6, "use_cpu": True}
    settings |= {"logging_strategy": "no", "save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    settings |= {"bf16": spec["precision"] == "bf16", "torch_compile": spec["compile"]}
    settings |= {"per_device_train_batch_size": shape["rows"], "remove_unused_columns": False}
    row = torch.zeros(shape["sequence"], dtype=torch.int64)
    data = [{"input_ids": row, "labels": row}] * 64
    rounds = Rounds(shape, parameters=sum(each.numel() for each in model.parameters()))
    with tempfile.TemporaryDirectory(dir=spec["folder"]) as folder:
        begin = Begin(rounds)
        arguments = TrainingArguments(output_dir=folder, **settings)
        trainer = RoundTrainer(model=model, args=arguments, train_dataset=data, callbacks=[begin])
        trainer.begin, trainer.rounds = begin, rounds
        trainer.model_accepts_loss_kwargs = False  # the mean over the tokens of the step
        trainer.train()


main()
