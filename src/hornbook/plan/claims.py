"""Published figures computed anew: what a claimed step or MFU is by each way of counting a model's operations.

Printed MFUs differ by a third for the same step: with pairs that a causal mask hides, by the number of parameters, with
key-value heads counted as query heads (the formula of Narayanan et al. 2021, arXiv 2104.04473, on models with grouped
heads), or with what is computed again (HFU).
"""

import re
from typing import NamedTuple

from hornbook.errors import UsageError
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.flops import NO_RECOMPUTE, step_operations
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.parameter_count import count_parameters
from hornbook.parallel.config import BlockRecompute
from hornbook.plan.counts.share import sides
from hornbook.plan.devices.hardware import Cluster
from hornbook.settings.fields import Config
from hornbook.settings.recipe import Recipe

_CLAIM = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(%|ms|s|tok/s)")


class Counted(Config):
    """A claim by one way of counting."""

    convention: str
    operations: float
    """Of a step."""
    step_seconds: float
    """What was claimed, or what a claimed share means if it was counted so."""
    share: float
    """Of the peak, counted so."""
    causal: float
    """MFU of that step, over the pairs that see each other."""


class _Claim(NamedTuple):
    value: float
    unit: str


def recompute_claim(text: str, recipe: Recipe, vocab: int, cluster: Cluster) -> list[Counted]:
    """text: `2.81s` a step, `5826tok/s` of one device, or `66.07%` of the peak. Raises UsageError for another form."""
    claim = _parse(text)
    peak = cluster.device.rate(recipe.train.precision) * cluster.count
    found = conventions(recipe, vocab)
    rows = list[Counted]()
    for name, operations in found.items():
        if claim.unit == "%":
            seconds = operations / (claim.value / 100 * peak)
        else:
            rate = claim.value * cluster.count
            scale = {"s": 1.0, "ms": 1e-3}
            seconds = recipe.train.batch_tokens / rate if claim.unit == "tok/s" else claim.value * scale[claim.unit]
        share, causal = (each / seconds / peak for each in (operations, found["causal"]))
        rows.append(Counted(convention=name, operations=operations, step_seconds=seconds, share=share, causal=causal))
    return rows


def conventions(recipe: Recipe, vocab: int) -> dict[str, float]:
    """Operations of a step by the way they are counted."""
    model, batch, (decoder, encoder) = recipe.model, recipe.train.batch_tokens, sides(recipe)
    positions = round(batch * decoder), round(batch * encoder) if model.kind == "encoder_decoder" else 0
    shape = vocab, recipe.train.sequence, positions
    plain, again = step_operations(model, *shape), step_operations(model, *shape, BlockRecompute())
    found = {
        "causal": plain.causal,
        "all pairs (PaLM)": plain.palm,
        "6 N, weights of products": plain.matrices,
        "6 N, all parameters": 6.0 * sum(positions) * count_parameters(model, vocab),
        "causal, blocks computed again (HFU)": again.recomputed,
    }
    if (ungrouped := _ungrouped(model)) is not None:
        found["all pairs, heads not grouped"] = step_operations(ungrouped, *shape, NO_RECOMPUTE).palm
    return found


def _ungrouped(model: ModelConfig) -> ModelConfig | None:
    """The model with as many key-value heads as heads; None where it has them."""
    part = model.attention
    if not isinstance(part, FullAttentionConfig) or model.kv_heads == model.heads:
        return None
    return model.model_copy(update={"attention": part.model_copy(update={"kv_heads": None})})


def _parse(text: str) -> _Claim:
    found = _CLAIM.fullmatch(text.strip().replace(" ", ""))
    if found is None or float(found[1]) <= 0:
        raise UsageError(
            f"--claim {text}: write the time of a step (2.81s, 950ms), tokens a second of one device (5826tok/s), or a "
            "share of the peak (66.07%)"
        )
    return _Claim(float(found[1]), found[2])
