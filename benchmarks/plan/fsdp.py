"""T5 of 611M, 2.28B and 11.3B parameters on 8 to 512 A100, as in the paper of PyTorch FSDP (arXiv 2304.11277, section
5), simulated: what runs out of memory, and what scaling costs.

    python -m benchmarks.plan.fsdp

The paper trains in fp16 with 8 and 16 rows a device, on A100 of 80 GB with a network of 2 Tbit/s for each machine. It
says that DDP runs out of memory beyond 2.28B, that FSDP holds 11.3B, and that throughput per device falls by 7 % from
8 to 512 devices. It gives neither the shapes of the two smaller models nor the length of rows: they are T5's published
shapes with as many layers as come nearest, and 512 tokens of which the decoder has what span corruption leaves, so that
times are ours alone. Where a layout does not fit, blocks are computed again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.report import table, write
from hornbook.model.config.parameter_count import count_parameters
from hornbook.plan.devices.hardware import Cluster, parse_cluster
from hornbook.plan.planner import estimate_layout
from hornbook.plan.search.result import Layout
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import resolve

SEQUENCE, VOCAB = 512, 32128
NETWORK = 31.25
"""GB/s of a device: 2 Tbit/s for eight."""
COUNTS = (8, 16, 32, 64, 128, 256, 512)
ROWS = (8, 16)
PUBLISHED_DROP = 0.07
SHAPES = {
    "611M": (20, 16, 64, 4096),
    "2.28B": (19, 32, 128, 16384),
    "11.3B": (24, 128, 128, 65536),
}
"""Model -> layers of encoder and decoder each, heads, their width, hidden width of an MLP."""
SHARDINGS = {
    "DDP": ("parallel.shard=none",),
    "full replication": ("parallel.shard=none",),
    "hybrid": ("parallel.shard=everything",),
    "full sharding": ("parallel.shard=everything",),
}
"""Full replication is FSDP's way to do what DDP does; hornbook has one layout for both."""
OUT_OF_MEMORY = {("11.3B", "DDP"), ("11.3B", "full replication")}
"""What runs out of memory on every number of devices, by the paper."""


@dataclass(frozen=True)
class Case:
    """One point of the scenario."""

    model: str
    sharding: str
    devices: int
    rows: int

    def recipe(self, recompute: str) -> Recipe:
        """As hornbook would train it."""
        layers, heads, head_dim, hidden = SHAPES[self.model]
        words = [
            f"model.layers={layers}",
            f"model.encoder_layers={layers}",
            "model.width=1024",
            f"model.heads={heads}",
            f"model.attention.head_dim={head_dim}",
            f"model.mlp.hidden={hidden}",
            f"model.vocab={VOCAB}",
            "train.precision=fp16",
            f"train.sequence={SEQUENCE}",
            f"train.micro_batch={self.rows}",
            f"train.batch_tokens={self.rows * SEQUENCE * self.devices}",
            f"parallel.data={self.devices}",
            f"parallel.recompute.kind={recompute}",
            *SHARDINGS[self.sharding],
        ]
        if self.sharding == "hybrid":
            words.append(f"parallel.replicas={self.devices // 8}")
        return resolve("t5-v1.0-base", words, environ={}).recipe

    def plan(self, cluster: Cluster) -> Layout:
        """With blocks computed again where it does not fit otherwise."""
        found = estimate_layout(self.recipe("none"), VOCAB, cluster)
        return found if found.fits else estimate_layout(self.recipe("block"), VOCAB, cluster)


def cases() -> Iterator[Case]:
    """All points."""
    for model in SHAPES:
        for sharding in SHARDINGS:
            for rows in ROWS:
                for devices in COUNTS:
                    yield Case(model, sharding, devices, rows)


def cluster_of(devices: int) -> Cluster:
    """A100 of 80 GB, eight in a machine, with the paper's network."""
    found = parse_cluster(f"{devices // 8}x8xA100-80GB")
    return found.model_copy(update={"device": found.device.model_copy(update={"network": NETWORK})})


def main() -> None:
    """Simulate all points and print them."""
    found = {case: case.plan(cluster_of(case.devices)) for case in cases()}
    rows, drops = [], dict[str, float]()
    for model in SHAPES:
        for sharding in SHARDINGS:
            for count in ROWS:
                line = [found[Case(model, sharding, devices, count)] for devices in COUNTS]
                rates = [f"{_tera(each):.0f}" if each.fits else "OOM" for each in line]
                last, first = line[-1], line[0]
                drop = 1 - _tera(last) / _tera(first) if first.fits and last.fits else None
                if drop is not None:
                    drops[f"{model}, {sharding}, {count} rows"] = drop
                memory = f"{first.worst.peak.total / 2**30:.0f}"
                rows.append([model, sharding, count, first.recompute, memory, *rates, _percent(drop)])
    head = ["model", "sharding", "rows", "recompute", "GiB on 8", *(f"{each}" for each in COUNTS), "falls by"]
    print("TFLOP/s of a device, all pairs counted; simulated, nothing was measured")
    print(table(head, rows))
    wrong = [case for case, each in found.items() if each.fits == ((case.model, case.sharding) in OUT_OF_MEMORY)]
    sizes = {name: count_parameters(Case(name, "DDP", 8, 8).recipe("none").model, VOCAB) for name in SHAPES}
    print(f"parameters {sizes}; points whose memory is not as published: {len(wrong)} of {len(found)}")
    large = {name: drop for name, drop in drops.items() if name.startswith("11.3B, full sharding")}
    print(f"11.3B fully sharded from 8 to 512 devices: {large}; published {PUBLISHED_DROP:.0%}")
    figures: dict[str, Any] = {"header": head, "rows": rows, "parameters": sizes, "drops": drops}
    figures |= {"points": len(found), "memory_wrong": [str(case) for case in wrong], "published_drop": PUBLISHED_DROP}
    write("plan_fsdp", figures)


def _tera(layout: Layout) -> float:
    """TFLOP/s of a device, operations of the model over all pairs."""
    return layout.mfu_palm * 312


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.1%}"


if __name__ == "__main__":
    main()
