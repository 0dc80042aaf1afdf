"""A published measurement as a recipe on a cluster, and how its trainer holds and sends things."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.plan.mixed import MixedHolding
from benchmarks.plan.trainer_time import expert_ranks, left_out, machine_state, settled, trainer
from benchmarks.plan.trainers import DeepSpeedHolding, FrozenHolding, FusedHolding, NanotronHolding
from hornbook.model.config.attention_config import FullAttentionConfig, LatentAttentionConfig
from hornbook.model.config.flops import step_operations
from hornbook.model.config.mlp_config import ExpertsConfig, GLUConfig, PlainMLPConfig
from hornbook.model.config.model_config import LayerConfig, ModelConfig
from hornbook.model.config.position_config import RopeConfig
from hornbook.parallel.config import ParallelConfig
from hornbook.plan.devices.hardware import Cluster, Device, device_named
from hornbook.plan.holding.own import Holding
from hornbook.plan.trainer import Trainer
from hornbook.settings.recipe import Recipe
from hornbook.settings.training import TrainConfig

LENGTH = 2**21
"""Positions of every model: none of the points is longer."""


@dataclass(frozen=True)
class Published:
    """A measurement, and what the planner needs to predict it."""

    id: str
    source: str
    core: bool
    recipe: Recipe
    vocab: int
    cluster: Cluster
    trainer: Trainer
    holding: Holding
    seconds: float | None
    """Of a step."""
    memory: float | None
    """Bytes of the fullest device."""
    by_driver: bool
    """They are the driver's, so that the runtime is among them; else what torch allocated."""
    out_of_memory: bool
    shape: str
    model: str
    """Its name."""
    setting: str
    """Precision, and whether it is compiled: what else a trainer's speed hangs on."""
    state: str
    """Of the machine, where the source says that times from before a change are not to be compared with later ones."""


class Incomplete(Exception):
    """The point does not say enough."""


def published(points: Sequence[dict[str, Any]]) -> tuple[list[Published], Counter[str]]:
    """The points that can be predicted, and how many others there are for which reason."""
    found, skipped = list[Published](), Counter[str]()
    for point in points:
        try:
            found.append(_published(point))
        except Incomplete as reason:
            skipped[str(reason)] += 1
    return found, skipped


def _published(point: dict[str, Any]) -> Published:
    if point.get("suspect"):
        raise Incomplete("suspect")
    if "fp4" in point["precision"]:
        raise Incomplete("products of 4 bits")
    if not point.get("method") and (reason := left_out(point)):
        raise Incomplete(reason)
    model, vocab = _model(point["model"])
    cluster = _cluster(point["hardware"])
    parallel, rows, sequence, sequences = _layout(point, cluster)
    train = TrainConfig(
        batch_tokens=sequences * sequence,
        sequence=sequence,
        micro_batch=rows,
        precision="float8" if any(word in point["precision"] for word in ("fp8", "float8")) else "bf16",
    )
    recipe = Recipe(model=model, parallel=parallel, train=train)
    layout, source = point["layout"], point["source"]["what"]
    measured = point["measured"]
    size = measured.get("mem_gib", 0) * 2**30 or measured.get("mem_gb", 0) * _unit(source)
    return Published(
        id=point["id"],
        source=source,
        core=bool(point.get("core")),
        recipe=recipe,
        vocab=vocab,
        cluster=cluster,
        trainer=trainer(point, recipe, cluster),
        holding=_holding(source, point),
        seconds=None if point.get("method") else _seconds(point, recipe, vocab, cluster),
        memory=size or None,
        by_driver="BLOOM" in source,
        out_of_memory=bool(measured.get("oom")),
        shape=f"{cluster} {layout} micro {rows} x {sequence}, {sequences} rows, {point['recompute']}",
        model=point["model"]["name"],
        setting=f"{point['precision']}{', compiled' if layout.get('compile') else ''} {machine_state(point)}",
        state=machine_state(point),
    )


def _unit(source: str) -> float:
    """Bytes of what a source calls GB. BLOOM's are thousands of nvidia-smi's MiB: 80 were read of a GPU of 79.3 GiB."""
    return 1000 * 2**20 if "BLOOM" in source else 2**30 if "nanotron" in source else 1e9


# ---- Model


def _model(text: dict[str, Any]) -> tuple[ModelConfig, int]:
    if not all(text.get(name) for name in ("layers", "hidden", "heads", "ffn", "vocab")):
        raise Incomplete("shape of the model")
    if "Mamba" in text["name"] or text.get("encoder"):
        raise Incomplete("kind of the model")
    attention: Any = FullAttentionConfig(kv_heads=text.get("kv_heads"), head_dim=text.get("head_dim"))
    if latent := text.get("mla"):
        attention = LatentAttentionConfig(
            query_rank=latent["q_lora"],
            kv_rank=latent["kv_lora"],
            rope_dim=latent["rope_dim"],
            nope_dim=latent["nope_dim"],
            value_dim=latent["v_dim"],
        )
    dense = GLUConfig(hidden=text["ffn"]) if text.get("glu") else PlainMLPConfig(hidden=text["ffn"])
    mlp, first = _experts(text, dense)
    model = ModelConfig(
        layers=text["layers"],
        width=text["hidden"],
        heads=text["heads"],
        vocab=text["vocab"],
        attention=attention,
        mlp=mlp,
        first=first,
        position=RopeConfig(length=LENGTH),
    )
    model = model.model_copy(update={"head": model.head.model_copy(update={"tied": bool(text.get("tied"))})})
    return model, text["vocab"]


def _experts(text: dict[str, Any], dense: Any) -> tuple[Any, list[LayerConfig]]:
    moe = text.get("moe")
    if not moe:
        return dense, []
    hidden = moe.get("expert_ffn") or text["ffn"]
    shared = moe.get("shared", 0) * (moe.get("shared_ffn") or hidden)
    part = ExpertsConfig(count=moe["routed"], active=moe["top_k"], hidden=hidden, shared_hidden=shared or None)
    first = [LayerConfig(mlp=dense)] * (moe.get("dense_layers") or 0)
    return part, first


# ---- Cluster and layout


def _cluster(text: dict[str, Any]) -> Cluster:
    name = text["gpu"]
    if name.startswith("TPU"):
        raise Incomplete("device")
    device = settled(_device(name), text)
    return Cluster(device=device, count=text["n_gpus"], node=min(text["gpus_per_node"], text["n_gpus"]))


def _device(name: str) -> Device:
    if "V100-SXM3" in name:
        return device_named("V100 SXM3")
    if "A100" in name and "40" in name:
        return device_named("A100 40GB")
    return device_named(name.split("-", maxsplit=1)[0])


def _layout(point: dict[str, Any], cluster: Cluster) -> tuple[ParallelConfig, int, int, int]:
    """(layout, rows of a microbatch, tokens of a row, rows of a step)."""
    layout, batch = point["layout"], point["batch"]
    tensor, stages, context = (layout.get(name) or 1 for name in ("tp", "pp", "cp"))
    data = layout.get("dp") or 0
    if data * tensor * stages * context != cluster.count:
        data = cluster.count // (tensor * stages * context)
    if data * tensor * stages * context != cluster.count:
        raise Incomplete("layout")
    sequence = batch.get("seq_len") or batch.get("seq_len_longest")
    if not sequence:
        raise Incomplete("batch")
    rows = batch.get("micro") or batch.get("local_batch")
    accumulated = batch.get("grad_accum") or 1
    sequences = batch.get("global_seqs") or (batch.get("tokens", 0) // sequence) or (rows or 0) * data * accumulated
    if not sequences:
        raise Incomplete("batch")
    rows = rows or (1 if stages > 1 else max(sequences // data, 1))
    if stages > 1 and "torchtitan" in point["source"]["what"]:
        rows = max(sequences // data // stages, 1)  # by default it cuts a batch into as many parts as stages
    if not batch.get("global_seqs"):  # a batch given in rounded tokens
        sequences = rows * data * max(round(sequences / rows / data), 1)
    expert = math.gcd(expert_ranks(point, data), data)
    shard, replicas = _shard(layout, data)
    schedule: dict[str, Any] = {"stages": stages}
    if stages > 1 and (chunks := _chunks(point)) > 1:
        schedule |= {"schedule": "interleaved", "chunks": chunks}
    layers, all_stages = point["model"]["layers"], stages * schedule.get("chunks", 1)
    if all_stages > layers:
        raise Incomplete("layers for so many stages")
    ends = 2 if "BLOOM" in point["source"]["what"] and layers % all_stages else 0  # embedding and head count as blocks
    if stages > 1 and (layers + ends) % all_stages == 0 and "nanotron" not in point["source"]["what"]:
        each = (layers + ends) // all_stages
        schedule["cuts"] = [end - ends // 2 for end in range(each, layers + ends, each)]
    elif ends:  # "78/12 = 6.5: the last stage has 1 block, the rest have 7"
        each = -(-layers // all_stages)
        schedule["cuts"] = list(range(each, layers, each))[: all_stages - 1]
    parallel = ParallelConfig.model_validate(
        {
            "data": data // expert,
            "expert": expert,
            "tensor": tensor,
            "sequence": tensor > 1 and _is_sequence_parallel(point),
            "context": {"ranks": context},
            "pipeline": schedule,
            "shard": shard,
            "replicas": replicas if (data // expert) % replicas == 0 else 1,
            "recompute": _recompute(point),
        }
    )
    return parallel, max(min(rows, sequences // data), 1), sequence, sequences


def _chunks(point: dict[str, Any]) -> int:
    """Of a stage, where its schedule interleaves them."""
    layout, notes = point["layout"], point.get("notes") or ""
    if chunks := layout.get("vpp"):
        return chunks
    if printed := re.search(r"VP printed NA in \S+, (\d+) in", notes):  # its next release corrects it
        return int(printed[1])
    return 2 if "interleaved" in layout.get("schedule", "").lower() else 1


def _is_sequence_parallel(point: dict[str, Any]) -> bool:
    layout = point["layout"]
    given = layout.get("sp", layout.get("sequence_parallel"))
    old = any(word in point["source"]["what"] for word in ("2021", "BLOOM", "MT-NLG", "vTrain"))
    return not old if given is None else bool(given)


def _shard(layout: dict[str, Any], data: int) -> tuple[str, int]:
    zero, fsdp = layout.get("zero"), layout.get("fsdp")
    if layout == {"fsdp": 1, "dp": 1}:
        return "none", 1
    if zero == 3 or "FSDP" in layout.get("note", "") or (fsdp and fsdp != "zero2-like") or "fsdp" in layout:
        if isinstance(fsdp, int) and fsdp < data and data % fsdp == 0:
            return "everything", data // fsdp
        group = layout.get("mics_group")
        return "everything", data // group if group else 1
    if zero == 1 or layout.get("distributed_optimizer"):
        return "optimizer", 1
    return "gradients" if zero == 2 else "none", 1


def _recompute(point: dict[str, Any]) -> str:
    text = point["recompute"] or ""
    if "under FSDP" in text:
        return "block" if point["hardware"]["n_gpus"] > 1 else "none"
    if text.startswith("full") or text == "block":
        return "block"
    return "selective" if "selective" in text or _is_jax(point) else "none"


def _is_jax(point: dict[str, Any]) -> bool:
    return "JAX" in point["layout"].get("note", "")


# ---- The trainer


def _holding(source: str, point: dict[str, Any]) -> Holding:
    if chosen := point.get("method"):
        return FrozenHolding(chosen["kind"], chosen["quantization"], chosen["trainable"])
    if "torchtitan" in source:  # float32 weights, of which FSDP gathers bfloat16; its loss is compiled since 2025
        logits = 4.0 if "2025" in source and point["layout"].get("compile") else 12.0
        return MixedHolding(4.0, 4.0, 8.0, gated_values=4, logit_bytes=logits, keeps_products=True)
    if "nanotron" in source:
        return NanotronHolding()
    if "BLOOM" in source:
        is_bf16 = "bf16" in point["precision"]
        gradients = 2.0 + 4.0 * is_bf16
        return DeepSpeedHolding(gradients=gradients, stores_scores=True, logit_bytes=10.0, is_bf16=is_bf16)
    if any(word in source for word in ("2021", "MT-NLG", "Korthikanti", "vTrain")):
        gradients = 2.0 if "fp16 (grads" in point["precision"] else 4.0
        return MixedHolding(gradients=gradients, stores_scores=True, logit_bytes=10.0)
    return FusedHolding() if "SimuMax" in source else MixedHolding(logit_bytes=8.0)


# ---- What was measured


def _seconds(point: dict[str, Any], recipe: Recipe, vocab: int, cluster: Cluster) -> float | None:
    """Seconds of a step, from what the source says of its speed."""
    measured, train = point["measured"], recipe.train
    if seconds := measured.get("iter_time_s"):
        return seconds
    if rate := measured.get("tokens_per_s_per_gpu"):
        return train.batch_tokens / rate / cluster.count
    peak = point["hardware"]["peak_dense_tflops"]
    share = measured.get("mfu_pct")
    tera = measured.get("tflops_per_gpu") or (share and share / 100 * peak)
    if not tera:
        return None
    return _operations(measured, recipe, vocab) / (tera * 1e12) / cluster.count


def _operations(measured: dict[str, Any], recipe: Recipe, vocab: int) -> float:
    """Operations of a step by the convention of the source."""
    model, train = recipe.model, recipe.train
    if "HFU" in measured["kind"] and "mfu_pct" not in measured:
        width, length = model.width, train.sequence
        once = 1 + length / (6 * width) + vocab / (16 * model.layers * width)
        return 96 * train.batch_tokens * model.layers * width**2 * once
    return step_operations(model, vocab, train.sequence, (train.batch_tokens, 0)).palm
