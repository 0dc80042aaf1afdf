"""The whole configuration of a run, composed of the rooms' configs.

A `Recipe` is frozen and complete: given a recipe, the token shards it names and the code, every number
of the run follows. Rules that span sections live in `cross_check`, and only there.
"""

import math
from collections.abc import Iterator

from pydantic import Field

from hornbook.data.config import DataConfig
from hornbook.evals.config import EvalConfig
from hornbook.fields import Config, Count
from hornbook.model.config import LayerConfig, ModelConfig
from hornbook.model.config_head import LabelHeadConfig
from hornbook.model.surgery.config import Prompt, Surgery, surgery_problems
from hornbook.optim.config import OptimConfig
from hornbook.parallel.config import ParallelConfig
from hornbook.parameters import stacks_of
from hornbook.parametrization import unfit_for_mup
from hornbook.run.config import CheckpointConfig, GuardConfig, LogConfig, TrainConfig
from hornbook.text.config import TextConfig


class Recipe(Config):
    """Raw text to trained model."""

    name: str = "run"
    """Name of the run; the default run directory is runs/NAME."""
    seed: Count = Field(default=1, ge=0, lt=2**63)
    """Seed of everything random: order, initial weights, dropout, samples."""
    text: TextConfig = TextConfig()
    """From raw text to token shards."""
    data: DataConfig = DataConfig()
    """From token shards to batches."""
    model: ModelConfig = ModelConfig()
    """The Transformer."""
    surgery: Surgery = Field(default_factory=list)
    """What is done to the model before training, in order: adapters, frozen parts, rounded weights."""
    optim: OptimConfig = OptimConfig()
    """Optimizer and schedule."""
    parallel: ParallelConfig = ParallelConfig()
    """Spreading over devices."""
    train: TrainConfig = TrainConfig()
    """Length, batch, arithmetic."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Saving."""
    guard: GuardConfig = GuardConfig()
    """Protection."""
    eval: EvalConfig = EvalConfig()
    """Evaluation."""
    log: LogConfig = LogConfig()
    """Logging."""


ALTERNATIVES = (("train.tokens", "train.epochs"),)
"""Pairs of settings of which at most one is given: a layer that gives one takes back the other."""


def cross_check(recipe: Recipe) -> list[tuple[str, str]]:
    """Problems that no single field can see: (dotted key, what is wrong and the remedy)."""
    problems = [*_check_model(recipe.model), *_check_train(recipe.train, recipe.model), *_check_data(recipe.data)]
    problems += [*_check_parallel(recipe.parallel, recipe.train), *_check_init(recipe.model, recipe.parallel)]
    problems += _check_surgery(recipe)
    if recipe.name in ("", ".", "..") or any(letter in recipe.name for letter in "/\\\0"):
        problems.append(("name", f"{recipe.name!r} cannot be the name of a folder"))
    return problems


_NOT_ACROSS = 'the layers of an encoder-decoder need "full", which attends from one stack to the other, not "{kind}"'
_CAUSAL_BATCH = (
    "batch norm mixes later positions into earlier ones, so a causal model would see what it is to predict: "
    'use "layer" or "rms"; only model.kind "encoder" takes "batch"'
)


def _check_model(model: ModelConfig) -> Iterator[tuple[str, str]]:
    layers = [model.layer(i) for i in range(max(stack.layers for stack in stacks_of(model)))]
    for layer in {layer.model_dump_json(): layer for layer in layers}.values():
        yield from _check_heads(layer)
        if layer.mlp.kind == "experts":
            yield from ((f"model.mlp.{key}", text) for key, text in layer.mlp.problems())
        if layer.attention.kind == "delta" and model.kind != "encoder_decoder":
            yield from ((f"model.attention.{key}", text) for key, text in layer.attention.problems(layer))
    yield from _check_depth(model)
    yield from _check_norms(model)
    yield from _check_ends(model)
    for number, given in enumerate(model.first):
        yield from _check_layer(model, f"model.first.{number}", given)
    for number, given in enumerate(model.pattern):
        yield from _check_layer(model, f"model.pattern.{number}", given)
    if model.kind == "encoder_decoder" and model.attention.kind != "full":
        yield "model.attention", _NOT_ACROSS.format(kind=model.attention.kind)
    if model.kind == "encoder_decoder" and model.block.kind == "parallel":
        yield "model.block", 'a parallel block has no place for attention to the encoder: use "pre" or "post"'
    if model.position.kind == "sinusoidal" and model.width % 2:
        text = f"sines and cosines of model.position come in pairs: {model.width} must be even"
        yield "model.width", f"{text}, or take other positions"


def _check_layer(model: ModelConfig, key: str, given: LayerConfig) -> Iterator[tuple[str, str]]:
    """What `first` or `pattern` says of one layer."""
    if model.kind == "encoder_decoder" and given.attention is not None and given.attention.kind != "full":
        yield f"{key}.attention", _NOT_ACROSS.format(kind=given.attention.kind)
    if given.position is not None and given.position.kind == "none" and model.position.kind != "rope":
        text = f'positions of the kind "{model.position.kind}" hold for all layers, only rotary ones are a layer\'s own'
        yield f"{key}.position", f"{text}: leave it out, or change model.position"
    if given.attention_norm is None:
        return
    if model.block.kind == "parallel":
        text = "a parallel block has one norm for both branches, or one each, of the kind model.norm"
        yield f"{key}.attention_norm", f"{text}: leave it out, or change model.block"
    elif model.kind != "encoder" and given.attention_norm.kind == "batch":
        yield f"{key}.attention_norm", _CAUSAL_BATCH


def _check_depth(model: ModelConfig) -> Iterator[tuple[str, str]]:
    if model.kind != "encoder_decoder" and model.encoder_layers is not None:
        yield "model.encoder_layers", f'a model of kind "{model.kind}" has one stack: use model.layers'
    for stack, key in zip(stacks_of(model), ("model.layers", "model.encoder_layers"), strict=False):
        rest = stack.layers - len(model.first)
        if rest < 0:
            yield "model.first", f"it describes {len(model.first)} layers, but {key} is {stack.layers}"
        elif model.pattern and rest % len(model.pattern):
            text = f"its {len(model.pattern)} layers do not tile the {rest} behind model.first"
            yield "model.pattern", f"{text}: change {key}, or name the layers that are left over in model.first"
        else:
            continue
        return  # the other stack's problem is the same one


def _check_norms(model: ModelConfig) -> Iterator[tuple[str, str]]:
    norm, masked = model.norm.kind, model.head.kind == "masked"
    if norm == "batch" and model.kind != "encoder":
        yield "model.norm", _CAUSAL_BATCH
    elif norm == "batch" and masked:
        text = 'the norm of the head "masked" sees only what is masked, so its means would differ from those elsewhere'
        yield "model.norm", f'{text}: use "layer", or model.head.kind "lm"'
    if norm == "none" and (masked or model.block.kind == "parallel"):
        text = 'the head "masked" ends in a norm' if masked else 'a block of the kind "parallel" begins with a norm'
        yield "model.norm", f'{text}: use "layer" or "rms", or another {"model.head" if masked else "model.block"}'


def _check_ends(model: ModelConfig) -> Iterator[tuple[str, str]]:
    head, width = model.head, model.embedding.width
    if model.kind == "decoder" and head.kind == "masked":
        yield "model.head", 'a decoder predicts the next token: use "lm"'
    elif isinstance(head, LabelHeadConfig):
        yield from ((f"model.head.{key}", text) for key, text in head.problems(model.kind, model.norm.kind))
    elif width is not None and head.kind == "masked":
        yield (
            "model.embedding.width",
            'the head "masked" has no projection to it: leave it out, or take model.head "lm"',
        )
    elif width is not None and head.kind == "lm" and (head.scale != 1 or model.init.kind == "mup"):
        text = "the projection to model.embedding.width stands in its place"
        yield "model.head.scale", f'{text}: leave out one of the two (model.init.kind "mup" sets it)'


def _check_heads(model: ModelConfig) -> Iterator[tuple[str, str]]:
    attention = model.attention
    if attention.kind == "latent" and model.position.kind == "rope":
        dims = int(attention.rope_dim * model.position.fraction)
        if dims % 2:
            yield "model.attention.rope_dim", f"rotary positions need an even number of dims, not {dims}: change it"
    if attention.kind != "full":
        return
    if attention.head_dim is None and model.width % model.heads:
        text = f"width {model.width} does not divide into {model.heads} heads"
        yield "model.heads", f"{text}: change one, or set model.attention.head_dim"
    elif model.position.kind == "rope" and int(model.head_dim * model.position.fraction) % 2:
        dims = int(model.head_dim * model.position.fraction)
        yield "model.attention.head_dim", f"rotary positions need an even number of dims, not {dims}"
    if model.heads % model.kv_heads:
        text = f"{model.heads} heads do not divide among {model.kv_heads} key-value heads"
        yield "model.attention.kv_heads", text


def _check_train(train: TrainConfig, model: ModelConfig) -> Iterator[tuple[str, str]]:
    if train.sequence > model.position.length:
        text = f"{train.sequence} is longer than the {model.position.length} positions of model.position.length"
        yield "train.sequence", text
    if train.batch_tokens % train.sequence:
        yield "train.batch_tokens", f"{train.batch_tokens} is not a multiple of train.sequence ({train.sequence})"
    if train.tokens is not None and train.epochs is not None:
        yield "train.epochs", "give train.tokens or train.epochs, not both"
    yield from _check_ramp(train)


def _check_ramp(train: TrainConfig) -> Iterator[tuple[str, str]]:
    problems = list(train.ramp.problems(train.batch_tokens))
    if train.ramp.kind == "none" or problems:
        yield from ((f"train.ramp.{key}", text) for key, text in problems)
        return
    sizes, grain = train.ramp.batches(train.batch_tokens).sizes, train.micro_batch * train.sequence
    if broken := next((size for size in sizes if size % grain), None):
        text = f"a batch of {broken:,} tokens is no whole number of microbatches (train.micro_batch {train.micro_batch}"
        rows, rest = divmod(math.gcd(*sizes), train.sequence)
        remedy = "take multiples of train.sequence" if rest else f"take a divisor of {rows}, or other sizes"
        yield "train.ramp", f"{text} rows of train.sequence {train.sequence}): {remedy}"


def _check_surgery(recipe: Recipe) -> Iterator[tuple[str, str]]:
    yield from (("surgery", problem) for problem in surgery_problems(recipe.surgery))
    prompt = sum(step.length for step in recipe.surgery if isinstance(step, Prompt))
    if prompt and (recipe.model.kind, recipe.data.objective.kind) != ("decoder", "causal"):
        found = f"model.kind is {recipe.model.kind}, data.objective.kind is {recipe.data.objective.kind}"
        yield "surgery", f"a prompt stands before the text of a decoder with the causal objective: {found}"
    if prompt and recipe.train.sequence + prompt > recipe.model.position.length:
        text = f"a prompt of {prompt} before train.sequence ({recipe.train.sequence}) is longer than the positions of"
        yield "surgery", f"{text} model.position.length ({recipe.model.position.length})"


def _check_parallel(parallel: ParallelConfig, train: TrainConfig) -> Iterator[tuple[str, str]]:
    ranks = parallel.data
    if ranks % parallel.replicas:
        yield "parallel.replicas", f"{ranks} ranks do not divide into {parallel.replicas} groups"
    if parallel.replicas > 1 and parallel.shard == "none":
        yield "parallel.replicas", 'groups that share a model need parallel.shard: "none" leaves it whole on every rank'
    if parallel.exact and ranks & (ranks - 1):
        yield "parallel.exact", f"the tree of exact sums is the same for 1, 2, 4, 8 ... ranks, not for {ranks}"
    rows = train.batch_tokens // train.sequence
    microbatches = -(-rows // train.micro_batch)
    if microbatches % ranks:
        fitting = ", ".join(str(n) for n in range(1, min(microbatches, 64) + 1) if microbatches % n == 0)
        text = f"{ranks} ranks cannot share {microbatches} microbatches of {train.micro_batch} rows evenly"
        yield "parallel.data", f"{text}: take {fitting}, or change train.micro_batch or train.batch_tokens"


def _check_init(model: ModelConfig, parallel: ParallelConfig) -> Iterator[tuple[str, str]]:
    yield from ((f"model.{key}", text) for key, text in unfit_for_mup(model))
    if model.init.kind == "lsuv" and parallel.data > 1:
        text = "looks at data with one process: take parallel.data=1, save at once, and `train --from` that run"
        yield "model.init.kind", f"lsuv {text}"


def _check_data(data: DataConfig) -> Iterator[tuple[str, str]]:
    starts = [stage.from_tokens for stage in data.stages]
    if starts != sorted(set(starts)):
        yield "data.stages", "stages must begin at growing from_tokens"
    weights = {"data.weights": data.weights}
    weights |= {f"data.stages.{number}.weights": stage.weights for number, stage in enumerate(data.stages)}
    for key, shares in weights.items():
        if shares and (min(shares.values()) < 0 or max(shares.values()) == 0):
            yield key, "weights are not negative, and at least one is more than 0"
