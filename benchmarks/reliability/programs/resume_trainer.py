"""A small GPT-2 under transformers' Trainer. Usage: resume_trainer.py '{"run": FOLDER, "facts": FILE, ...}'.

As its documentation has it: checkpoints every n steps, `resume_from_checkpoint=True` where there is one. Nothing of it
is changed; `training_step` is overridden to look at the state and at the loss.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from watch import SHAPE, Watch, tokens


class WatchedTrainer(Trainer):
    """A Trainer that tells what each step begins from."""

    watch: Watch

    def training_step(self, model: Any, inputs: Any, *arguments: Any, **keywords: Any) -> torch.Tensor:
        """As it is."""
        assert isinstance(self.optimizer, torch.optim.Optimizer)
        self.watch.step(self.state.global_step, model, self.optimizer, [inputs["input_ids"]])
        loss = super().training_step(model, inputs, *arguments, **keywords)
        self.watch.loss(float(loss))
        return loss


def main() -> None:
    """Train, or go on."""
    spec = json.loads(sys.argv[1])
    set_seed(1)
    sizes = {"n_layer": SHAPE.layers, "n_embd": SHAPE.width, "n_head": SHAPE.heads, "n_positions": SHAPE.sequence}
    sizes |= {"vocab_size": SHAPE.vocabulary, "bos_token_id": 0, "eos_token_id": 0}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), SHAPE.dropout)
    model = GPT2LMHeadModel(GPT2Config(**sizes, **dropout))
    arguments = TrainingArguments(
        output_dir=spec["run"],
        max_steps=spec["steps"],
        save_steps=spec["every"],
        per_device_train_batch_size=SHAPE.rows,
        learning_rate=1e-3,
        seed=1,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        logging_steps=1,
    )
    rows = [{"input_ids": row, "labels": row} for row in tokens(spec["rows"])]
    trainer = WatchedTrainer(model=model, args=arguments, train_dataset=rows)
    trainer.watch = Watch(spec["facts"], spec["kill_at"])
    trainer.train(resume_from_checkpoint=any(Path(spec["run"]).glob("checkpoint-*")))
    assert isinstance(trainer.optimizer, torch.optim.Optimizer)
    trainer.watch.end(model, trainer.optimizer)


if __name__ == "__main__":
    main()
