"""Contender: the run that `hornbook train` starts, loader, loop and observers. Usage: -m ...hornbook_train '{...}'.

Only the tokens of a step are replaced, by those that all contenders learn from, after the loader has made its own.
"""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.contenders.shapes import Shape, model_config, recipe_words
from benchmarks.peers.batches import make_batch
from benchmarks.peers.worker import Rounds
from hornbook.data.batch import GlobalBatch
from hornbook.data.loader.loader import Loader
from hornbook.files.run_directory import RunDir
from hornbook.model.config.parameter_count import count_parameters
from hornbook.run.job.job import Start
from hornbook.run.launch.launch import launch
from hornbook.run.loop import training_loop as train
from hornbook.settings.resolve import resolve


def follow_rounds(rounds: Rounds) -> None:
    """Have each step of the loop begin with a request."""
    step, take = train.take_step, Loader.take
    tokens: list[Any] = []

    def take_step(*arguments: Any) -> Any:
        tokens[:] = [rounds.take()]
        done = step(*arguments)
        rounds.lost(done.loss)
        return done

    def take_tokens(self: Loader, *arguments: Any, **options: Any) -> GlobalBatch:
        batch = make_batch(tokens[0])
        return replace(take(self, *arguments, **options), batches=[batch], total_weight=float(batch.weights.numel()))

    train.take_step, Loader.take = take_step, take_tokens


def main() -> None:
    """Train until requests end."""
    spec = json.loads(sys.argv[1])
    shape: Shape = spec["shape"]
    parameters = count_parameters(model_config(shape), shape["vocab"])
    follow_rounds(Rounds(shape, parameters=parameters))
    name, words = recipe_words(shape)
    words = [*words, f"data.path={spec['data']}", f"train.precision={spec['precision']}", "train.device=cpu"]
    with tempfile.TemporaryDirectory(dir=spec["folder"]) as folder:
        launch(resolve(name, words, environ={}), RunDir(Path(folder) / "run"), Start(quiet=True))


main()
