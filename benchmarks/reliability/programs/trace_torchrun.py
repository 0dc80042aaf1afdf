"""Data parallel training under torchrun, with a snapshot every n steps: what PyTorch's tutorials show.

Usage: torchrun ... trace_torchrun.py '{"folder": ..., "steps": ..., ...}'. Kinder than the tutorials: snapshots have
numbers and appear as a whole, and the optimizer and the position in the data are in them.
"""

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from trace_steps import Steps


def main() -> None:
    """Train, or go on from the newest snapshot."""
    steps = Steps(int(os.environ["RANK"]))
    dist.init_process_group("gloo", timeout=timedelta(seconds=steps.spec["timeout"]))
    model = steps.model()
    optimizer = steps.optimizer(model)
    snapshots = sorted((steps.folder / "saved").glob("snapshot-*.pt"))
    done = 0
    if snapshots:
        found: dict[str, Any] = torch.load(snapshots[-1])
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        done = found["step"]
    parallel = DistributedDataParallel(model)
    for step in range(done + 1, steps.total + 1):
        optimizer.zero_grad()
        parallel(steps.batch(step)).backward()
        optimizer.step()
        steps.made(step)
        if step % steps.every == 0 and steps.rank == 0:
            path = steps.folder / "saved" / f"snapshot-{step:08}.pt"
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, f"{path}.tmp")
            os.replace(f"{path}.tmp", path)
    if steps.rank == 0:
        steps.end(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
