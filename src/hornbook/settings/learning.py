"""Rules of what a run learns beside the next token, and in which order: teachers, tokens further ahead, curricula."""

from collections.abc import Iterator, Sequence
from typing import Any

from hornbook.data.config.data import DataConfig
from hornbook.data.config.objective import Objective
from hornbook.data.config.objectives import Labels
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.replaced_config import ReplacedHead
from hornbook.model.config.surgery_config import positions_ahead
from hornbook.parallel.config import FILL, ParallelConfig
from hornbook.settings.training import TrainConfig


def learning_problems(
    data: DataConfig, train: TrainConfig, model: ModelConfig, parallel: ParallelConfig, surgery: Sequence[Any]
) -> Iterator[tuple[str, str]]:
    """(Dotted key, what is wrong and the remedy)."""
    if train.loss.teacher.kind != "none":
        yield from _check_teacher(data, parallel, train.loss.teacher.kind)
    if train.loss.teacher.kind == "relations":
        yield from _check_live_teacher(train, parallel, surgery)
    if model.mtp.depth:
        yield from _check_mtp(data, surgery)
    if "replaced" in (data.objective.kind, model.head.kind):
        yield from _check_replaced(data, model, surgery)
    if isinstance(data.objective, Labels) and data.objective.mixup:
        yield from _check_mixup(model, parallel)
    yield from _check_curriculum(data, train)


def _check_mixup(model: ModelConfig, parallel: ParallelConfig) -> Iterator[tuple[str, str]]:
    """What mixed texts do not go with."""
    if (kind := model.head.kind) not in ("classification", "regression"):
        text = f'labels of whole texts are mixed, and model.head.kind is "{kind}"'
        yield "data.objective.mixup", f'{text}: leave it 0, or take "classification" or "regression"'
    if parallel.sequence:
        text = "ranks that divide the vectors of a row cannot mix its texts"
        yield "parallel.sequence", f"{text}: leave it false, or data.objective.mixup 0"


def _check_teacher(data: DataConfig, parallel: ParallelConfig, teacher: str) -> Iterator[tuple[str, str]]:
    """What a teacher does not go with."""
    kind, related = data.objective.kind, teacher == "relations"
    if kind != "causal" and not (related and kind == "masked"):
        text = f"{'it reads causal or masked' if related else 'its predictions are of causal'} rows"
        remedy = 'train.loss.teacher.kind "relations"' if kind == "masked" else '"causal"'
        text = f'{text}, and data.objective.kind is "{kind}": take {remedy}, or leave the teacher out'
        yield "train.loss.teacher", text
    if parallel.tensor not in (1, FILL):
        yield "parallel.tensor", "a teacher's tokens are of the whole vocabulary: leave it 1, or leave the teacher out"


def _check_live_teacher(
    train: TrainConfig, parallel: ParallelConfig, surgery: Sequence[Any]
) -> Iterator[tuple[str, str]]:
    """What does not go with a teacher that looks into a layer of the model in each step."""
    remedy = 'or take train.loss.teacher.kind = "top"'
    if train.compile:
        text = "compiled code does not show what a teacher of relations compares"
        yield "train.compile", f"{text}: leave it out, {remedy}"
    if parallel.recompute.kind != "none":
        text = "activations that are dropped are not compared with a teacher's"
        yield "parallel.recompute", f'{text}: take "none", {remedy}'
    if parallel.pipeline.stages > 1:
        yield "parallel.pipeline", f"the teacher computes where the whole model is: leave it out, {remedy}"
    if parallel.context.ranks > 1:
        yield "parallel.context", f"a teacher of relations compares whole rows: leave it 1, {remedy}"
    if positions_ahead(surgery):
        yield "surgery", f"a prompt or a prefix makes rows longer than the teacher's: leave it out, {remedy}"


def _check_mtp(data: DataConfig, surgery: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """What multi-token prediction does not go with."""
    objective, remedy = data.objective.kind, "or leave model.mtp out (`hornbook export` does)"
    if objective not in ("causal", "fim", "answer"):
        text = f'the tokens ahead are those of "causal", "fim" and "answer", and data.objective.kind is "{objective}"'
        yield "model.mtp", f"{text}: take one of them, {remedy}"
    if not data.document_mask:
        yield "data.document_mask", f"tokens ahead may be those of another document: leave it true, {remedy}"
    if surgery:
        text = "surgery changes the blocks that are kept, not those of model.mtp"
        yield "model.mtp", f"{text}: `hornbook export` a model without them, then `train --from` that"


def _check_replaced(data: DataConfig, model: ModelConfig, surgery: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """What replaced-token detection does not go with."""
    objective, head = data.objective.kind, model.head
    if objective != "replaced":
        text = f'the head "replaced" learns by the objective "replaced", and data.objective.kind is "{objective}"'
        yield "data.objective", f"{text}: take that, or another head"
        return
    if not isinstance(head, ReplacedHead):
        text = f'the objective "replaced" needs the head "replaced", and model.head.kind is "{head.kind}"'
        yield "model.head", f'{text}: take that (with model.kind "encoder"), or the objective "masked"'
        return
    if head.generator.kind == "none":
        text = "what is told apart from the original are a generator's draws, and there is none"
        remedy = 'take "smaller" (checkpoints of its run have it), or train another head on this model'
        yield "model.head.generator", f"{text}: {remedy}"
    if surgery:
        text = "surgery changes the model that is kept, and not the generator that learns beside it"
        yield "surgery", f"{text}: `hornbook export` the model, then `train --from` that with another head"


def _check_curriculum(data: DataConfig, train: TrainConfig) -> Iterator[tuple[str, str]]:
    """What an order by difficulty, and attention that reaches farther by and by, do not go with."""
    objective = data.objective
    if data.curriculum.kind != "none" and data.order != "shuffled":
        yield "data.order", f'rows cannot come by difficulty and "{data.order}": leave it "shuffled"'
    if data.sequence_ramp.kind == "none":
        return
    problems = data.sequence_ramp.problems(train.sequence, "train.sequence")
    yield from ((f"data.sequence_ramp.{key}", text) for key, text in problems)
    if type(objective).build is not Objective.build or objective.decoder_start is not None:
        yield "data.sequence_ramp", f'"{objective.kind}" has texts that are not cut: take an objective of rows of text'
