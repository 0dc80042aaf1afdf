"""What published trainers do, as far as time depends on it: their kernels, messages and networks, with the reason."""

import re
from typing import Any

from hornbook.plan.devices.device_rates import GAP_SECONDS
from hornbook.plan.devices.hardware import Cluster, Device
from hornbook.plan.trainer import Trainer
from hornbook.settings.recipe import Recipe

SCORES_STORED = ("2021", "BLOOM", "MT-NLG", "vTrain", "Korthikanti", "OPT", "Bloomberg", "Azure")
"""Trainers before FlashAttention, or without it: Megatron's fused softmax, scores in memory."""
DEEPSPEED = ("BLOOM", "MT-NLG")
"""DeepSpeed's pipeline, in which a stage waits while it sends. What all tensor ranks repeat takes longer than in
Megatron of the same year, on two machines: counted as torch's single operations, which is inferred."""
SUMMED_APART = (*DEEPSPEED, "2021")
"""Autograd, or a hook of Megatron's until the end of 2021, adds each gradient to the sum behind its product; since then
the function that sends beside the weights' gradients (`ASYNCHRONOUS`) has the product add."""
ASYNCHRONOUS = ("Korthikanti", "vTrain")
"""Megatron since the end of 2021: tensor ranks' messages of backward run beside the weights' gradients."""
BESIDE = 0.9
"""Share of a message that a product beside it hides."""
BESIDE_IN_SEQUENCE = 1 - (2 + 4 * (1 - BESIDE)) / 4
"""The same of backward's four messages where tensor ranks divide the stream. Two gathers bring gradients that all of a
product's backward needs, and nothing hides them; beside products run two that gather inputs again, which were not kept,
and two that scatter sums (Korthikanti et al. 2022, section 4.2.2)."""
NVIDIA = ("Megatron", "NeMo 24", "DGX Cloud", "SimuMax", "Llama 3 Herd")
"""Megatron-Core with Transformer Engine: attention by cuDNN, messages beside computing."""
EXPERT_CALLS = {"bf16": 2, "float8": 20}
"""Transformer Engine multiplies twice for each expert on its own, and in 8 bits casts, scales and copies besides: 4,096
tokens of Qwen3's 16 experts take as long on a B200 as on an H100."""
FULL_POWER = 700.0
"""Watts of an H100."""
FLASH_1 = {"A100": 0.7, "A100 40GB": 0.7, "H100 SXM": 0.4}
"""The first FlashAttention over the best kernel of each device (Dao 2023, arXiv 2307.08691, figures 4 to 7)."""
BLOCKED = 44e-6
"""Seconds between two kernels where the host waits for each of them (`CUDA_LAUNCH_BLOCKING=1`), as in BLOOM's runs
(`tr11-176B-ml.slurm`: without it they hang): 91.04 TFLOP/s with it and 97.20 without, on 80 GPUs with 8 blocks each and
microbatches of a row (chronicles-prequel.md; none of the points). Two pairs on 160 GPUs in the same table are equal."""
NEW_DAYS = {770: "since 02-25", 895: "since 02-28"}
"""Line of BLOOM's chronicle -> since when times are comparable: "PCI-Express/NUMA was improved today so all TFLOPs have
changed", and "Do not compare these numbers to the previous ones" (other sums of gradients, other stages)."""
JEAN_ZAY = 135.0
"""Gb/s of a machine of BLOOM's to others, as NCCL reached them of Omni-Path's 400: "It was only 135Gbps and while the
vendor tried to fix it a year later it was still the same speed" (Bekman, Machine Learning Engineering, network)."""
REACHED = 0.7
"""Of a data sheet's network that NCCL reaches elsewhere, by which a measured one is divided: where fits begin."""
KEPT_BY_JAX = 0.65
"""MaxText keeps the products of attention and computes the rest again; without it 70B does not fit."""


def settled(device: Device, hardware: dict[str, Any]) -> Device:
    """The device as this source had it: its memory, power and network."""
    name, wires = hardware["gpu"], hardware.get("interconnect") or ""
    changes: dict[str, Any] = {}
    if abs(hardware["mem_gb"] / device.memory - 1) > 0.15:
        changes["memory"] = float(hardware["mem_gb"])
    if "HBM2e" in name:  # Grand Teton's H100: slower memory
        changes["bandwidth"] = 2400.0
    if power := re.search(r"(\d+)W cap", wires):  # dynamic power is about the square of the rate near its top
        slower = (float(power[1]) / FULL_POWER) ** 0.5
        changes |= {kind: slower * rate for kind in ("bf16", "fp16", "fp8") if (rate := getattr(device, kind))}
    if network := _network(wires, hardware["gpus_per_node"]):
        changes["network"] = network
    return device.model_copy(update=changes)


def _network(wires: str, node: int) -> float | None:
    """GB/s of a device to other machines."""
    if wires == "Jean Zay" or "Omni-Path" in wires:
        return JEAN_ZAY / REACHED / 8 / node
    found = re.search(r"(?:(\d+)x *)?(\d+) ?Gb/s([^;+]*)", wires)
    if found is None:
        return None
    gigabytes = int(found[2]) / 8
    if found[1] is None and ("per GPU" in found[3] or "IB" in found[3] or "Clos" in found[3]):
        return gigabytes
    return int(found[1] or 1) * gigabytes / node


def trainer(point: dict[str, Any], recipe: Recipe, cluster: Cluster) -> Trainer:
    """What crosses its data ranks, and what it computes meanwhile."""
    source, layout, device = point["source"]["what"], point["layout"], cluster.device.name
    sums = 2.0 if "fp16" in point["precision"] and "Korthikanti" not in source else 4.0
    if any(word in source for word in SCORES_STORED):
        return _stored_scores(source, recipe, layout, sums)
    if "MPT" in source:  # of the first FSDP: the next block is gathered when the kernels of this one are started
        return Trainer(2.0, 2.0, attention=FLASH_1.get(device, 1.0), exposed=0.5)
    if "JAX" in layout.get("note", ""):
        return Trainer(2.0, 2.0, again=KEPT_BY_JAX, attention=1.0)
    if any(word in source for word in NVIDIA):
        beside = layout.get("overlap") is not False
        once = bool(point["model"].get("moe"))
        gathers = "each step" if "Herd" in source else "each microbatch"
        return Trainer(
            2.0,
            2.0,
            beside_data=beside,
            beside_tensor=0.5 * beside,
            beside_tensor_backward=BESIDE if beside else _beside_backward(recipe),
            gathers=gathers,
            once_per_domain=once,
            expert_calls=EXPERT_CALLS[recipe.train.precision],
            attention=1.0,
            innermost="tensor",
        )
    return Trainer(
        4.0,
        2.0,
        asynchronous=bool(layout.get("async_tp")),
        again=0.5,
        fused=bool(layout.get("compile")) or "torchtitan" not in source,
        gathers="each step" if recipe.parallel.pipeline.stages > 1 else "each microbatch",
        once_per_domain="AutoModel" in source,
        waits="nanotron" in source,
    )


def _beside_backward(recipe: Recipe) -> float:
    """Of tensor ranks' messages, by Megatron without overlapping them with parts of products."""
    return BESIDE_IN_SEQUENCE if recipe.parallel.sequence else BESIDE


def _stored_scores(source: str, recipe: Recipe, layout: dict[str, Any], sums: float) -> Trainer:
    """ZeRO-3 gathered each parameter from its owner, beside computing; data ranks of Megatron waited for the sum."""
    if layout.get("zero") == 3 or layout.get("fsdp"):
        return Trainer(2.0, 2.0, stored_scores=True, one_card=True, exposed=0.4, sum_bytes=sums)
    waits = any(word in source for word in DEEPSPEED)
    beside = _beside_backward(recipe) if any(word in source for word in ASYNCHRONOUS) else 0.0
    return Trainer(
        sums,
        2.0,
        beside_data=False,
        stored_scores=True,
        scatters=True,
        waits=waits,
        fused=not waits,
        sum_bytes=sums,
        beside_tensor_backward=beside,
        gap=BLOCKED if "BLOOM" in source else GAP_SECONDS,
        sums_apart=any(word in source for word in SUMMED_APART),
    )


def machine_state(point: dict[str, Any]) -> str:
    """What a source changed in its machine before this run, "" where it says nothing of the kind."""
    found = re.match(r"line (\d+)", point.get("notes") or "")
    if "BLOOM" not in point["source"]["what"] or found is None:
        return ""
    return next((since for line, since in reversed(NEW_DAYS.items()) if int(found[1]) > line), "before 02-25")


def left_out(point: dict[str, Any]) -> str | None:
    """Why a point cannot be predicted, None where it can."""
    notes = point.get("notes") or ""
    if "not stated" in point["layout"].get("note", ""):
        return "layout not stated"
    if any(word in notes for word in ("LoRA", "SFT")):
        return "fine-tuning: length of its rows not stated"
    sharded = point["layout"].get("zero") == 3 or "fsdp" in point["layout"]
    if sharded and not any(point["batch"].get(each) for each in ("micro", "local_batch")):
        return "microbatch not stated"
    return None


def anchored_only(source: str) -> bool:
    """Whether its device is slower than others of its kind, as it says itself: half of its peak at the most."""
    return "SimuMax" in source


def expert_ranks(point: dict[str, Any], data: int) -> int:
    """Ranks of experts: as stated; all data ranks where tokens go by DeepEP, which has no other use."""
    if not point["layout"].get("ep") and point["model"].get("moe") and "DeepEP" in (point.get("notes") or ""):
        return data
    return point["layout"].get("ep") or 1
