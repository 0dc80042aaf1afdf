"""Lightning under torchrun, two ranks, `ModelCheckpoint` every n steps, `ckpt_path="last"`: as documented.

Usage: torchrun ... trace_lightning.py '{"folder": ..., "steps": ..., ...}'. The batch comes from the number of the
step, and there is no dropout, so that nothing is lost of what Lightning does not save.
"""

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import lightning  # pyright: ignore[reportMissingImports]
import torch
from lightning.pytorch.callbacks import ModelCheckpoint  # pyright: ignore[reportMissingImports]
from lightning.pytorch.strategies import DDPStrategy  # pyright: ignore[reportMissingImports]
from torch.utils.data import DataLoader, IterableDataset
from trace_steps import Steps


class Endless(IterableDataset[int]):
    """Items that say nothing."""

    def __iter__(self) -> Iterator[int]:
        """Zeros for ever."""
        while True:
            yield 0


class Module(lightning.LightningModule):
    """The model, with a batch of its own choice."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps, self.model = steps, steps.model()

    def training_step(self, *_: Any) -> torch.Tensor:
        """The loss of the step."""
        return self.model(self.steps.batch(self.global_step + 1))

    def on_train_batch_end(self, *_: Any) -> None:
        """Tell the driver."""
        self.steps.made(self.global_step)

    def configure_optimizers(self) -> Any:
        """AdamW."""
        return self.steps.optimizer(self.model)


def main() -> None:
    """Train, or go on."""
    steps = Steps(int(os.environ["RANK"]))
    module = Module(steps)
    saves = ModelCheckpoint(
        dirpath=steps.folder / "saved",
        filename="{step:08}",
        every_n_train_steps=steps.every,
        save_last=True,
        save_top_k=-1,
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo", timeout=timedelta(seconds=steps.spec["timeout"])),
        max_steps=steps.total,
        callbacks=[saves],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(module, DataLoader(Endless(), batch_size=None), ckpt_path="last")
    if steps.rank == 0:
        steps.end(module.model)


if __name__ == "__main__":
    main()
