"""A replica group of torchft's of one rank, as its example train_ddp.py is written; a snapshot every n steps.

Usage: torchrun ... trace_torchft.py '{"folder": ..., "steps": ..., ...}', once for each REPLICA_GROUP_ID, beside a
lighthouse. A replica that dies comes back with the state of the one that went on; snapshots are for the loss of both.
"""

import os
from datetime import timedelta
from typing import Any

import torch
from torchft import (  # pyright: ignore[reportMissingImports]
    DistributedDataParallel,
    Manager,
    Optimizer,
    ProcessGroupGloo,
)
from trace_steps import Steps


def main() -> None:
    """Train, or go on."""
    replica = int(os.environ["REPLICA_GROUP_ID"])
    steps = Steps(replica)
    model = steps.model()
    inner = steps.optimizer(model)

    def load_state_dict(found: dict[str, Any]) -> None:
        model.load_state_dict(found["model"])
        inner.load_state_dict(found["optimizer"])

    def state_dict() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": inner.state_dict()}

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),  # both times are those of the example
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"replica_{replica}",
        timeout=timedelta(seconds=30),
    )
    if snapshots := sorted((steps.folder / "saved").glob("snapshot-*.pt")):
        found: dict[str, Any] = torch.load(snapshots[-1])
        load_state_dict(found)
        manager.load_state_dict(found["manager"])
    parallel = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, inner)
    while manager.current_step() < steps.total:
        before = manager.current_step()
        optimizer.zero_grad()
        parallel(steps.batch(before + 1)).backward()
        optimizer.step()
        step = manager.current_step()
        if step == before:
            continue  # refused by the quorum
        steps.made(step, manager.num_participants())
        if step % steps.every == 0 and manager.participating_rank() == 0:
            path = steps.folder / "saved" / f"snapshot-{step:08}.pt"
            torch.save({**state_dict(), "manager": manager.state_dict()}, f"{path}.tmp")
            os.replace(f"{path}.tmp", path)
    steps.end(model)
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
