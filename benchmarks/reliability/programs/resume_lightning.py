"""A small transformer under Lightning's Trainer. Usage: resume_lightning.py '{"run": FOLDER, "facts": FILE, ...}'.

As its documentation has it: `ModelCheckpoint` every n steps with `save_last`, `ckpt_path="last"`. With "plain" in the
specification the model has no dropout and the data come in order.
"""

import json
import sys
from dataclasses import replace
from typing import Any

import lightning  # pyright: ignore[reportMissingImports]
import torch
from lightning.pytorch.callbacks import ModelCheckpoint  # pyright: ignore[reportMissingImports]
from torch.utils.data import DataLoader, TensorDataset
from watch import SHAPE, Watch, tokens

from model import Shape, Transformer


class Model(lightning.LightningModule):
    """The transformer, watched."""

    def __init__(self, watch: Watch, steps: int, shape: Shape) -> None:
        """`steps`: of the whole training, for its schedule."""
        super().__init__()
        self.watch, self.steps, self.model = watch, steps, Transformer(shape)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """The loss of a batch."""
        optimizer = self.optimizers().optimizer  # pyright: ignore[reportAttributeAccessIssue]
        self.watch.step(self.global_step, self, optimizer, batch)
        loss = self.model(batch[0])
        self.watch.loss(float(loss.detach()))
        return loss

    def configure_optimizers(self) -> Any:
        """AdamW with a linear decay."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    """Train, or go on."""
    spec = json.loads(sys.argv[1])
    lightning.seed_everything(1)
    plain = spec.get("plain", False)
    shape = replace(SHAPE, dropout=0.0) if plain else SHAPE
    model = Model(Watch(spec["facts"], spec["kill_at"]), spec["steps"], shape)
    loader = DataLoader(TensorDataset(tokens(spec["rows"])), batch_size=SHAPE.rows, shuffle=not plain)
    checkpoints = ModelCheckpoint(
        dirpath=spec["run"], filename="{step}", every_n_train_steps=spec["every"], save_last=True, save_top_k=-1
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=spec["steps"],
        callbacks=[checkpoints],
        deterministic=True,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader, ckpt_path="last")
    model.watch.end(model, trainer.optimizers[0])


if __name__ == "__main__":
    main()
