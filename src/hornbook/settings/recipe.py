"""The configuration of a run, composed of the rooms' configs.

A `Recipe` is frozen and complete: the recipe, the token shards that it names and the code determine every number of the
run. All rules that span sections are in `cross_check`; those of the model alone, which hold for checkpoints too, are in
`hornbook.model.config.model_checks`.
"""

import math
from collections.abc import Iterator
from typing import Any

from pydantic import Field, model_validator

from hornbook.data.config.data import DataConfig
from hornbook.data.config.preferences import Comparing
from hornbook.evals.config import EvalConfig
from hornbook.model.config.head_config import LabelHeadConfig, RegressionHead
from hornbook.model.config.model_checks import model_problems
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.mup import unfit_for_mup
from hornbook.model.config.surgery_config import Surgery, adapter_of, positions_ahead, surgery_problems
from hornbook.optim.config.optim import AdamW, AnyOptimizer
from hornbook.parallel.config import FILL, ParallelConfig
from hornbook.settings.fields import Config, Count
from hornbook.settings.layout.divided_surgery import divided_surgery_problems
from hornbook.settings.layout.rules import layout_problems
from hornbook.settings.layout.tensor import tensor_problems
from hornbook.settings.learning import learning_problems
from hornbook.settings.renamed import with_present_names
from hornbook.settings.training import CheckpointConfig, GuardConfig, LogConfig, TrainConfig
from hornbook.text.config.labels import LabelsConfig, NumberLabels, PreferenceLabels
from hornbook.text.config.text import TextConfig


class Recipe(Config):
    """All settings, from raw text to trained model."""

    name: str = "run"
    """Name of the run; the default run directory is runs/NAME."""
    seed: Count = Field(default=1, ge=0, lt=2**63)
    """Seed of all random numbers: sample order, initial weights, dropout, generated samples."""
    text: TextConfig = TextConfig()
    """From raw text to token shards."""
    data: DataConfig = DataConfig()
    """From token shards to batches."""
    model: ModelConfig = ModelConfig()
    """The Transformer."""
    surgery: Surgery = Field(default_factory=list)
    """Changes to the model before training, in order: adapters, frozen parts, rounded weights."""
    optim: AnyOptimizer = AdamW()
    """Optimizer and schedule."""
    parallel: ParallelConfig = ParallelConfig()
    """Distribution over devices."""
    train: TrainConfig = TrainConfig()
    """Length, batch, arithmetic."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Saving."""
    guard: GuardConfig = GuardConfig()
    """Protection against divergence and hangs."""
    eval: EvalConfig = EvalConfig()
    """Evaluation."""
    log: LogConfig = LogConfig()
    """Logging."""

    @model_validator(mode="before")
    @classmethod
    def _accept_former(cls, tree: Any) -> Any:
        """Accept settings by their former names: the ledger of a run holds the names of its time."""
        return with_present_names(tree)


ALTERNATIVES = (("train.tokens", "train.epochs"),)
"""Pairs of settings of which at most one may be given; a source that gives one drops the other."""


def cross_check(recipe: Recipe) -> list[tuple[str, str]]:
    """Problems that no single field can see: (dotted key, what is wrong and the remedy)."""
    problems = [*model_problems(recipe.model), *_check_train(recipe.train, recipe.model), *_check_data(recipe.data)]
    problems += [*layout_problems(recipe.parallel, recipe.train, recipe.model), *_check_init(recipe)]
    problems += tensor_problems(recipe.parallel, recipe.train, recipe.model)
    problems += [
        *_check_precision(recipe),
        *_check_surgery(recipe),
        *_check_labels(recipe),
        *_check_noise_scale(recipe),
        *learning_problems(recipe.data, recipe.train, recipe.model, recipe.parallel, recipe.surgery),
    ]
    problems += [*_check_optim(recipe), *_check_rounding(recipe)]
    if recipe.name in ("", ".", "..") or any(letter in recipe.name for letter in "/\\\0"):
        problems.append(("name", f"{recipe.name!r} cannot be the name of a folder"))
    return problems


def _multiple(tokens: int, sequence: int) -> str:
    """A multiple of `sequence` that was probably meant: `32Ki` in place of 32,000, else the nearest one."""
    for power, unit in ((3, "Gi"), (2, "Mi"), (1, "Ki")):
        count, rest = divmod(tokens, 1000**power)
        if count and not rest and not count * 1024**power % sequence:
            return f"{count}{unit} ({count * 1024**power})"
    return str(max(round(tokens / sequence), 1) * sequence)


def _check_train(train: TrainConfig, model: ModelConfig) -> Iterator[tuple[str, str]]:
    if train.sequence > model.position.length:
        text = f"{train.sequence} is longer than the {model.position.length} positions of model.position.length"
        yield "train.sequence", text
    if train.batch_tokens % train.sequence:
        remedy = f"take {_multiple(train.batch_tokens, train.sequence)}"
        yield (
            "train.batch_tokens",
            f"{train.batch_tokens} is not a multiple of train.sequence ({train.sequence}): {remedy}",
        )
    if train.tokens is not None and train.epochs is not None:
        yield "train.epochs", "give train.tokens or train.epochs, not both"
    if train.cuda_graphs and not train.compile:
        yield "train.cuda_graphs", "graphs are made of compiled code: set train.compile = true"
    yield from _check_ramp(train)


def _check_precision(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """What bfloat16 parameters do not go with."""
    if recipe.train.precision != "bf16-pure":
        return
    rules = [("optim.kind", recipe.optim)]
    rules += [(f"optim.groups.{i}.rule", group.rule) for i, group in enumerate(recipe.optim.groups) if group.rule]
    for key, rule in rules:
        if not rule.stochastic:
            text = (
                f"{getattr(rule, 'kind', '')} loses small updates of bf16 weights: take adamw or adamw8bit, which round"
            )
            yield key, f'{text} stochastically, or train.precision = "bf16"'
    remedy = 'take train.precision = "bf16"'
    if recipe.parallel.exact:
        yield "parallel.exact", f"bf16-pure adds the gradients of ranks in float32, but not in a fixed tree: {remedy}"
    if recipe.surgery:
        yield "surgery", f"added parts and frozen weights are float32, and those of bf16-pure are bf16: {remedy}"
    if any(recipe.model.layer(number).mlp.kind == "experts" for number in range(recipe.model.num_blocks)):
        yield "model.mlp", f"routers of experts need float32 weights, and those of bf16-pure are bf16: {remedy}"


def _check_optim(recipe: Recipe) -> Iterator[tuple[str, str]]:
    yield from ((f"optim.{key}", text) for key, text in recipe.optim.problems())
    if recipe.optim.averages and recipe.train.average.kind != "none":
        text = f'optim.kind "{getattr(recipe.optim, "kind", "")}" already evaluates and saves an average of the weights'
        yield "train.average.kind", f'{text}: set it to "none", or take another optimizer'


def _check_rounding(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Random rounding is drawn by the number of a value in its parameter, and tensor ranks hold columns, too."""
    if recipe.parallel.tensor in (1, FILL):
        return
    text = "with parallel.tensor, moments and weights in fewer bits are not rounded as in one process"
    if recipe.train.precision == "bf16-pure":
        yield "train.precision", f'{text}: take "bf16"'
    rules = [("optim", recipe.optim)]
    rules += [(f"optim.groups.{i}.rule", group.rule) for i, group in enumerate(recipe.optim.groups) if group.rule]
    for key, rule in rules:
        if getattr(rule, "kind", "") == "adamw8bit":
            yield f"{key}.kind", f'{text}: take "adamw"'
        elif getattr(rule, "state", "") == "bf16":
            yield f"{key}.state", f'{text}: take "parameter"'


def _check_ramp(train: TrainConfig) -> Iterator[tuple[str, str]]:
    problems = list(train.ramp.problems(train.batch_tokens))
    if train.ramp.kind == "none" or problems:
        yield from ((f"train.ramp.{key}", text) for key, text in problems)
        return
    sizes, grain = train.ramp.batches(train.batch_tokens).sizes, train.micro_rows * train.sequence
    if broken := next((size for size in sizes if size % grain), None):
        text = f"a batch of {broken:,} tokens is no whole number of microbatches (train.micro_batch {train.micro_batch}"
        rows, rest = divmod(math.gcd(*sizes), train.sequence)
        remedy = "take multiples of train.sequence" if rest else f"take a divisor of {rows}, or other sizes"
        yield "train.ramp", f"{text} rows of train.sequence {train.sequence}): {remedy}"


def _check_labels(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Head and objective are both of labels, or both of text."""
    head, objective, kind = recipe.model.head, recipe.data.objective, recipe.model.kind
    labelled = isinstance(head, LabelHeadConfig)
    if labelled != objective.predicts_labels:
        fitting = 'take "labels"' if labelled else "take one of text, or a head of labels"
        yield "data.objective", f'the head "{head.kind}" does not learn by "{objective.kind}": {fitting}'
    elif objective.kind in ("answer", "seq2seq") and (objective.kind == "seq2seq") != (kind == "encoder_decoder"):
        fitting = "seq2seq" if kind == "encoder_decoder" else "answer"
        yield "data.objective", f'models of kind "{kind}" learn prompts and answers by the objective "{fitting}"'
    if isinstance(objective, Comparing):
        yield from _check_comparing(recipe)
    packed = objective.kind in ("labels", "answer", "seq2seq") or isinstance(objective, Comparing)
    if packed and not recipe.data.document_mask:
        yield "data.document_mask", "labelled texts that share a row must not see each other: leave it true"
    if labelled:
        yield from _check_label_head(recipe, head)


def _check_comparing(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Objectives that compare answers sum over whole answers, within one rank."""
    name, parallel = f'the objective "{recipe.data.objective.kind}"', recipe.parallel
    if recipe.model.kind != "decoder":
        yield "data.objective", f'{name} is for decoders, and model.kind is "{recipe.model.kind}"'
    if parallel.world != parallel.data_ranks or parallel.expert != 1:
        yield "parallel", f"{name} looks at whole answers: divide the data alone (parallel.data, parallel.shard)"
    if recipe.train.loss.smoothing or recipe.train.loss.z_loss:
        yield "train.loss", f"{name} has a loss of its own: leave smoothing and z_loss 0 (dpo has its own smoothing)"
    if recipe.log.noise_scale:
        yield "log.noise_scale", f"{name} weighs answers and not tokens: leave it 0"
    if recipe.data.packing != "concat":
        yield "data.packing", f'{name} packs whole comparisons by itself: leave it at "concat"'


def _check_label_head(recipe: Recipe, head: LabelHeadConfig) -> Iterator[tuple[str, str]]:
    objective, model, labels = recipe.data.objective, recipe.model, recipe.text.labels
    if objective.kind == "reward" and (head.kind != "regression" or head.dropout):
        yield "model.head", 'the objective "reward" needs the head "regression" without dropout'
    token = "first" if model.kind == "encoder" else "last"
    of_text = head.kind in ("classification", "regression")
    if of_text and objective.kind == "labels" and objective.token != token:
        yield "data.objective.token", f'a text of models of kind "{model.kind}" carries its label on its {token} token'
    if any(model.layer(number).mlp.kind == "experts" for number in range(model.layers)):
        text = "experts count tokens up to the last that is predicted, and labels stand anywhere: take others"
        yield "model.mlp", text
    if labels is not None and (problem := unlike(head, labels, "text.labels")):
        yield problem
    loss = recipe.train.loss
    if loss.z_loss or (loss.smoothing and head.kind in ("regression", "span")):
        text = f'the head "{head.kind}" has no z-loss, and only classes and tags have smoothing: leave it out'
        yield "train.loss", text


def unlike(head: LabelHeadConfig, labels: LabelsConfig, where: str) -> tuple[str, str] | None:
    """How a head differs from the labels that it shall learn: (dotted key, fault and remedy), or None.

    where: the name of what has these labels. An empty list of labels is taken from the data.
    """
    if isinstance(labels, PreferenceLabels):
        is_scalar = isinstance(head, RegressionHead) and head.outputs == 1
        fault = 'a reward is one number: take model.head.kind "regression" with one output'
        return None if is_scalar else ("model.head", fault)
    if head.kind != labels.kind:
        return "model.head.kind", f'it is "{head.kind}", and that of {where} is "{labels.kind}": make them the same'
    ours, theirs = (getattr(part, "multiple", False) for part in (head, labels))
    if ours != theirs:
        return "model.head.multiple", f"that of {where} is {str(theirs).lower()}: set it to the same"
    if isinstance(head, RegressionHead) and isinstance(labels, NumberLabels) and head.outputs != len(labels.values):
        count = len(labels.values)
        return "model.head.outputs", f"it is {head.outputs}, and {where} has {count} values: set it to {count}"
    ours, theirs = (getattr(part, "labels", []) for part in (head, labels))
    if ours and theirs and ours != theirs:
        return "model.head.labels", _unlike_lists(ours, theirs, where)
    return None


def _unlike_lists(ours: list[str], theirs: list[str], where: str) -> str:
    remedy = "leave model.head.labels out, and the labels are those of the data"
    if sorted(ours) == sorted(theirs):
        return f"they are {_listed(ours)}, and {where} has them in the order {_listed(theirs)}: {remedy}"
    unknown, unused = [each for each in theirs if each not in ours], [each for each in ours if each not in theirs]
    parts = [f"{where} has {_listed(unknown)}, which the list lacks"] if unknown else []
    parts += [f"the list has {_listed(unused)}, which {where} lacks"] if unused else []
    return f"{'; '.join(parts)}: {remedy}"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 8:,} more" if len(names) > 8 else ""
    return ", ".join(map(repr, names[:8])) + more


def _check_surgery(recipe: Recipe) -> Iterator[tuple[str, str]]:
    yield from (("surgery", problem) for problem in surgery_problems(recipe.surgery))
    yield from divided_surgery_problems(recipe.parallel, recipe.model, recipe.surgery)
    if adapter_of(recipe.surgery) is not None and recipe.model.init.kind == "lsuv":
        text = "lsuv scales the base by what it makes of data, and the base of an adapter is kept before that"
        remedy = "train it without surgery first, then `train --from` that run with another init"
        yield "model.init.kind", f"{text}: {remedy}"
    if adapter_of(recipe.surgery) is not None and recipe.train.loss.anchor.kind != "none":
        yield "train.loss.anchor", "an adapter freezes the weights that it would hold: leave the anchor out, or surgery"
    prompt = positions_ahead(recipe.surgery)
    if prompt and (recipe.model.kind, recipe.data.objective.kind) != ("decoder", "causal"):
        found = f"model.kind is {recipe.model.kind}, data.objective.kind is {recipe.data.objective.kind}"
        yield "surgery", f"a prompt or a prefix stands before the text of a decoder with the causal objective: {found}"
    if prompt and recipe.train.sequence + prompt > (length := recipe.model.position.length):
        text = f"a prompt or prefix of {prompt} before train.sequence ({recipe.train.sequence}) is longer than the"
        text = f"{text} positions of model.position.length ({length})"
        remedy = f"take train.sequence {length - prompt} or less" if prompt < length else "take a shorter one"
        yield "surgery", f"{text}: {remedy}"


def _check_noise_scale(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Whether the gradient of a part of each batch is seen alone (`hornbook.parallel.gradients.noise_scale`)."""
    parallel, train = recipe.parallel, recipe.train
    if not recipe.log.noise_scale:
        return
    by_rank = parallel.data > 1 and parallel.shard == "none" and not parallel.exact
    if parallel.world > parallel.data:
        yield "log.noise_scale", "is measured where parallel.data is the only axis of several ranks: leave it 0"
        return
    microbatches = -(-train.batch_tokens // train.sequence // train.micro_rows) // parallel.data_ranks
    if parallel.data > 1 and parallel.shard == "optimizer" and not parallel.exact:
        text = 'with parallel.shard "optimizer" no gradient of a part of the batch can be read'
        yield "log.noise_scale", f'{text}: take "none" or "gradients", or leave it 0'
    elif not by_rank and microbatches < 2:
        text = "compares the first microbatch of a rank with the whole batch, and there is one only"
        yield "log.noise_scale", f"{text}: lower train.micro_batch, or leave it 0"


def _check_init(recipe: Recipe) -> Iterator[tuple[str, str]]:
    model = recipe.model
    yield from ((f"model.{key}", text) for key, text in unfit_for_mup(model))
    if model.init.kind == "mup":
        rules = {"optim": recipe.optim}
        rules |= {f"optim.groups.{n}.rule": group.rule for n, group in enumerate(recipe.optim.groups) if group.rule}
        yield from ((f"{key}.kind", problem) for key, rule in rules.items() if (problem := rule.mup_problem()))
    if model.init.kind == "lsuv" and recipe.parallel.world > 1:
        text = "looks at data with one process: take parallel.data=1, save at once, and `train --from` that run"
        yield "model.init.kind", f"lsuv {text}"


def _check_data(data: DataConfig) -> Iterator[tuple[str, str]]:
    if data.replay.path is not None and data.objective.kind == "fim":
        yield "data.replay.path", "documents that fim rearranges lie in one folder: take another objective, or none"
    starts = [stage.from_tokens for stage in data.stages]
    if starts != sorted(set(starts)):
        yield "data.stages", "stages must begin at growing from_tokens"
    weights = {"data.weights": data.weights}
    weights |= {f"data.stages.{number}.weights": stage.weights for number, stage in enumerate(data.stages)}
    for key, shares in weights.items():
        if shares and (min(shares.values()) < 0 or max(shares.values()) == 0):
            yield key, "weights are not negative, and at least one is more than 0"
