"""A small transformer under Lightning's Trainer. Usage: lightning_program.py '{"run": FOLDER, "facts": FILE, ...}'.

As its documentation has it: `ModelCheckpoint` every n steps with `save_last`, `ckpt_path="last"`. With "plain" in the
specification the model has no dropout and the data come in order.
"""

import json
import sys
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from watch import DROPOUT, HEADS, LAYERS, ROWS, SEQUENCE, VOCABULARY, WIDTH, Watch, tokens


class Model(lightning.LightningModule):
    """A causal transformer, of the shape of the others."""

    def __init__(self, watch: Watch, steps: int, dropout: float) -> None:
        """`steps`: of the whole training, for its schedule."""
        super().__init__()
        self.watch, self.steps = watch, steps
        self.embedding, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(SEQUENCE, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """The loss of a batch."""
        (ids,) = batch
        optimizer = self.optimizers().optimizer  # pyright: ignore[reportAttributeAccessIssue]
        self.watch.step(self.global_step, self, optimizer, [ids])
        inputs = ids[:, :-1]
        length = inputs.shape[1]
        hidden = self.embedding(inputs) + self.positions(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        logits = self.head(self.blocks(hidden, mask=mask, is_causal=True))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        self.watch.loss(float(loss))
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
    model = Model(Watch(spec["facts"], spec["kill_at"]), spec["steps"], 0.0 if plain else DROPOUT)
    loader = DataLoader(TensorDataset(tokens(spec["rows"])), batch_size=ROWS, shuffle=not plain)
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
