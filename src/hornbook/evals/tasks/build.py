"""From the configuration of a task of ours to the task."""

from collections.abc import Callable, Sequence
from typing import Any

from hornbook.errors import UsageError
from hornbook.evals.config import GenerationFile, OwnTask, TaskConfig, WrittenFile
from hornbook.evals.task import Task, TaskContext
from hornbook.evals.tasks import files, probes
from hornbook.model.config.head_config import LabelHeadConfig

MAKERS: dict[str, Callable[[Any, TaskContext], Task]] = {
    "cloze": probes.cloze,
    "copy": probes.copy,
    "arithmetic": probes.arithmetic,
    "recall": probes.recall,
    "minimal_pairs": files.pairs,
    "choices": files.choices,
    "continuation": files.continuations,
    "generation": files.generations,
    "translation": files.written,
    "summarization": files.written,
}


def build(config: OwnTask, context: TaskContext) -> Task:
    """The task. Raises UsageError where the model cannot be asked, or an item does not fit."""
    model, kind = context.model, str(getattr(config, "kind", ""))
    kinds = ("decoder", "encoder_decoder") if isinstance(config, GenerationFile | WrittenFile) else ("decoder",)
    if model.kind not in kinds or isinstance(model.head, LabelHeadConfig):
        text = "predicts labels" if isinstance(model.head, LabelHeadConfig) else f"is an {model.kind.replace('_', '-')}"
        raise UsageError(
            f"eval.tasks, {config.label}: it asks a decoder for texts, and this model {text}: leave it out"
        )
    return MAKERS[kind](config, context)


def build_tasks(configs: Sequence[TaskConfig], context: TaskContext) -> list[Task]:
    """All tasks of a recipe. Raises UsageError for two of one name: one would hide the other."""
    tasks: list[Task] = [config.build(context) for config in configs]
    names = [task.name for task in tasks]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise UsageError(f"eval.tasks: two tasks have the name {twice[0]!r}: set `name` in one of them")
    return tasks
