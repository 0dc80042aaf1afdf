"""A checkpoint that a new run starts from, and what must agree for that.

`import` (train --from) takes the weights alone: moments and clock start anew. `fork` takes all three and goes on
at the same place under other settings. Both need the same model and the same tokenizer.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hornbook.data.corpus import Corpus
from hornbook.errors import IntegrityError, UsageError, quoted
from hornbook.files.filesystem import is_file, is_folder
from hornbook.files.run_directory import RunDir
from hornbook.model.build_model import build_model
from hornbook.model.config.head_config import LabelHeadConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.replaced_config import ReplacedHead
from hornbook.model.hf.hf import read_hf
from hornbook.model.surgery.adapters.adapter_files import is_adapter
from hornbook.run.checkpoints.find_checkpoint import checkpoint_path
from hornbook.run.checkpoints.lineage import describe_source
from hornbook.run.checkpoints.manifest import verify_folder
from hornbook.run.checkpoints.state import State, read_counters
from hornbook.run.job.run_inputs import labelled_head
from hornbook.run.job.start.new_norms import NORM, fit_gains
from hornbook.run.ledger.ledger import read_past
from hornbook.settings.recipe import Recipe, cross_check
from hornbook.settings.resolve import Resolved, leaves
from hornbook.settings.resume_rules import TRAINING_ONLY
from hornbook.text.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class InitFrom:
    """The checkpoint that a new run starts from."""

    kind: Literal["import", "fork", "replay"]
    """Its weights alone; all of it, for a run of its own; all of it, for the run of the checkpoint trained again."""
    checkpoint: Path
    skipped_ranges: tuple[tuple[int, int], ...] = ()
    """Samples [from, to) that the parent skipped, where the new run reads the data in the same order."""
    new_head: bool = False
    """Whether the head differs from the checkpoint's and starts from initial values."""
    other_text: int = 0
    """Tokens on the run's clock that were read from other data than the run's."""

    def record(self) -> dict[str, Any]:
        """Its description, as the ledger holds it."""
        checkpoint = self.checkpoint.resolve()
        record = {"kind": self.kind, "checkpoint": str(checkpoint), "source": describe_source(checkpoint)}
        record |= {"other_text": self.other_text} if self.other_text else {}
        return record | ({"new_head": True} if self.new_head else {})

    def fields(self) -> dict[str, Any]:
        """The fields of a ledger record that names it."""
        return {"origin": self.record(), "windows": list(self.skipped_ranges)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | None) -> "InitFrom | None":
        """Inverse of `record`."""
        if record is None:
            return None
        more = {name: record[name] for name in ("new_head", "other_text") if name in record}
        return cls(record["kind"], Path(record["checkpoint"]), **more)

    def load(self, state: State) -> str:
        """Read the checkpoint into the state of a new run; returns a line about what it did not have, or "".

        UsageError if it is gone, IntegrityError if damaged.
        """
        if not is_folder(self.checkpoint):
            raise UsageError(f"{self.checkpoint}, which this run starts from, is not there")
        if self.kind == "import":
            state.read_weights(self.checkpoint, new_head=self.new_head)
            return ""
        verify_folder(self.checkpoint)
        new = frozenset[str]() if is_adapter(self.checkpoint) else new_norms(read_hf(self.checkpoint)[0], state)
        state.read(self.checkpoint, new)
        gains = fit_gains(state, new).values() if new else ()
        if state.guard is not None and self.kind == "fork":
            state.guard.reset()  # what the parent found is no business of this run, which cannot go back from it either
        if not gains:
            return ""
        sizes = f"{min(gains):.3g} to {max(gains):.3g}"
        return f"{len(gains)} norms of queries and keys are new: gains of {sizes} keep their size"


def checkpoint_step(run: RunDir, step: int | None) -> int:
    """Step of the checkpoint that a fork starts from. UsageError where the run is between two settings there."""
    counters = read_counters(checkpoint_path(run.path, step))
    for each in read_past(run).interventions:
        end = each.tokens + max(each.rewarm_tokens, each.blend_tokens)
        if each.step < counters["step"] and counters["tokens"] < end:
            change = f"the change of step {each.step:,} ({each.describe()}), which lasts until {end:,} tokens"
            remedy = "fork at a checkpoint before or after that, with --at STEP"
            raise UsageError(f"step {counters['step']:,} is inside {change}: {remedy}")
    return counters["step"]


def init_from_fork(run: RunDir, step: int | None, old: Recipe, new: Recipe) -> InitFrom:
    """The checkpoint of `step`, else the newest, of a run with recipe `old`, for a fork with recipe `new`.

    UsageError if there is none, or if the model has another shape; IntegrityError if the checkpoint is damaged.
    """
    checkpoint = checkpoint_path(run.path, step)
    refuse_other_shape(old, new)
    if old.surgery != new.surgery:
        raise UsageError("surgery cannot change in a fork: start from the weights with hornbook train --from")
    same_order = (old.seed, old.data, old.train.sequence) == (new.seed, new.data, new.train.sequence)
    return InitFrom("fork", checkpoint, tuple(read_past(run).skipped_ranges) if same_order else ())


def init_from_import(resolved: Resolved, checkpoint: Path) -> tuple[Resolved, InitFrom]:
    """(the recipe with the model of the checkpoint, how a new run starts from it). Errors: as `adopt_model`."""
    adopted = adopt_model(resolved, checkpoint)
    stored, head = read_hf(checkpoint)[0].head, adopted.recipe.model.head
    if (path := resolved.recipe.data.path) is not None:
        head = labelled_head(head, Corpus.open(path))
    shapes = [each.model_dump(exclude=set(TRAINING_ONLY)) for each in (head, stored)]
    return adopted, InitFrom("import", checkpoint, new_head=shapes[0] != shapes[1])


def adopt_model(resolved: Resolved, checkpoint: Path) -> Resolved:
    """The recipe with the model of the checkpoint. A model.* setting that was given must agree with it.

    A label head alone stays the recipe's: it fits any stack. UsageError where checkpoint and recipe contradict.
    """
    if is_adapter(checkpoint):
        raise UsageError(
            f"{checkpoint} is an adapter, and a run starts from whole weights: merge it first with "
            f"`hornbook export {quoted(checkpoint)} --out MERGED`, or name its base"
        )
    config, vocab, _ = read_hf(checkpoint)
    recipe, label = resolved.recipe, str(checkpoint)
    own = (*TRAINING_ONLY, "head") if isinstance(recipe.model.head, LabelHeadConfig) else TRAINING_ONLY
    adopted = config.model_copy(update={"vocab": vocab, **{part: getattr(recipe.model, part) for part in own}})
    origins = {key: origin for key, origin in resolved.origins.items() if not _from_checkpoint(key, own)}
    _refuse_other_model(resolved, adopted, label)
    origins |= {key: label for key in _model_keys(adopted) if _from_checkpoint(key, own)}
    found = recipe.model_copy(update={"model": adopted})
    told = own != TRAINING_ONLY or adopted.mtp.depth or isinstance(adopted.head, ReplacedHead)
    if problems := cross_check(found) if told else []:
        lines = [f"  {key}: {text}" for key, text in problems]
        raise UsageError("\n".join([f"the recipe does not go together with the model of {label}:", *lines]))
    return Resolved(found, origins)


def keep_model(resolved: Resolved, before: Recipe, label: str) -> Resolved:
    """The recipe with the model of a run that goes on, which it had from a checkpoint, as `adopt_model` gives it."""
    recipe = resolved.recipe
    own = (*TRAINING_ONLY, "head") if isinstance(recipe.model.head, LabelHeadConfig) else TRAINING_ONLY
    kept = before.model.model_copy(update={part: getattr(recipe.model, part) for part in own})
    _refuse_other_model(resolved, kept, label)
    return Resolved(recipe.model_copy(update={"model": kept}), resolved.origins)


def _refuse_other_model(resolved: Resolved, adopted: ModelConfig, label: str) -> None:
    has, wants = _model_keys(adopted), _model_keys(resolved.recipe.model)
    problems = [
        f"  {key} is {value} ({resolved.origins[key]}), the checkpoint has {has.get(key)}"
        for key, value in wants.items()
        if _from_checkpoint(key) and resolved.origins.get(key, "default") != "default" and has.get(key) != value
    ]
    if problems:
        remedy = (
            "a run from a model has its shape: leave these settings out; of a shipped recipe take a copy without them, "
            "and without `extends` where they come from there (hornbook recipes copy)"
        )
        raise UsageError("\n".join([f"the recipe's model is not that of {label}:", *problems, remedy]))


def _model_keys(model: ModelConfig) -> dict[str, Any]:
    return {".".join(["model", *map(str, path)]): value for path, value in leaves(model)}


def _from_checkpoint(key: str, own: Sequence[str] = TRAINING_ONLY) -> bool:
    parts = key.split(".")
    return parts[0] == "model" and parts[1] not in own


def refuse_other_shape(old: Recipe, new: Recipe) -> None:
    """Raise UsageError naming the settings in which the models of a run and of its fork differ."""
    before, after = _model_keys(old.model), _model_keys(new.model)
    keys = [key for key in {**before, **after} if _from_checkpoint(key) and before.get(key) != after.get(key)]
    keys = [key for key in keys if not (key.endswith(".qk_norm") and before.get(key) == "none")]  # they are fitted
    if keys:
        lines = [f"  {key} {before.get(key)} -> {after.get(key)} cannot change in a fork" for key in keys]
        raise UsageError("\n".join(["the weights of the run have another shape", *lines]))


def new_norms(before: ModelConfig, state: State) -> frozenset[str]:
    """The gains of norms of queries and keys that the model of a checkpoint does not have."""
    there = {name for name, _ in build_model(before, state.spec.vocab, "meta").named_parameters()}
    return frozenset(name for name in state.engine.shapes if name not in there and NORM.search(name))


def has_tokenizer(checkpoint: Path, tokenizer: Tokenizer) -> bool:
    """Whether a checkpoint was trained with this tokenizer; True where it names none. IntegrityError if damaged."""
    if not is_file(checkpoint / "tokenizer.json"):
        return True
    try:
        texts = (checkpoint / "tokenizer.json").read_text(encoding="utf-8"), tokenizer.definition
        theirs, ours = map(json.loads, texts)
    except ValueError as error:
        raise IntegrityError(f"{checkpoint / 'tokenizer.json'} is not JSON: {error}") from error
    return theirs["model"] == ours["model"]


def check_tokenizer(checkpoint: Path, tokenizer: Tokenizer) -> None:
    """Raise UsageError if the checkpoint was trained with another tokenizer than that of the data."""
    if not has_tokenizer(checkpoint, tokenizer):
        raise UsageError(
            f"the data has tokens of another tokenizer than {checkpoint}: make them anew with `hornbook tokenize` and "
            f"--text.tokenizer.kind file --text.tokenizer.path {checkpoint / 'tokenizer.json'}"
        )
