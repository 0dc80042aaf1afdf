"""lm-eval's tasks (Gao et al., the Language Model Evaluation Harness) on a model of ours, by its model interface.

Texts become tokens as transformers makes them of the exported model, and requests are cut as lm-eval's own `HFLM` cuts
them, so that both give the same numbers. lm-eval is imported when a model is made: the extra `eval`.
"""

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hornbook.errors import UsageError
from hornbook.evals.likelihood import Request, log_likelihoods
from hornbook.evals.task import Model, ModelContext
from hornbook.evals.tasks.generation import until
from hornbook.files.extras import install_command
from hornbook.model.generate.generate import generate
from hornbook.parallel.world import World

RESAMPLES = 1000
"""Samples of the bootstrap, for standard errors of metrics that are no means (BLEU: 100, by lm-eval)."""
ANSWER_TOKENS = 256
"""Tokens of an answer where a task does not say, as of HFLM."""


@dataclass(eq=False)
class HarnessMethods:
    """What lm-eval asks of a model; `harness_model` joins it with lm-eval's own base class."""

    model: Model
    world: World
    context: ModelContext
    bos: bool = False
    """Every context begins with the begin-of-text token, where the tokenizer's template does not add one."""

    def __post_init__(self) -> None:
        super().__init__()  # of lm-eval's class, which has no arguments

    @property
    def max_length(self) -> int:
        """Tokens that the model reads."""
        return self.context.sequence

    @property
    def max_gen_toks(self) -> int:
        """Tokens of an answer where a task does not say."""
        return ANSWER_TOKENS

    @property
    def eot_token_id(self) -> int:
        """The end of a text."""
        return self.context.tokenizer.end_id

    @property
    def prefix_token_id(self) -> int:
        """What a text without a context follows."""
        return self.context.tokenizer.delimiter_id

    @property
    def tokenizer_name(self) -> str:
        """For lm-eval's cache of requests."""
        return self.context.tokenizer.digest

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids, with special tokens unless `add_special_tokens` is False."""
        if add_special_tokens is False:
            return self.context.tokenizer.encode(string)
        ids = self.context.tokenizer.encode_as_stored(string)
        if (add_special_tokens or self.bos) and ids[:1] != [self.prefix_token_id]:
            return [self.prefix_token_id, *ids]
        return ids

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """(log-likelihood in nats, whether greedy decoding gives it) of (context, continuation)."""
        del disable_tqdm
        for number, request in enumerate(requests):
            if not self.tok_encode(request.args[1], add_special_tokens=False):
                raise UsageError(
                    f"{_task_of(request)}, request {number + 1}: the continuation {request.args[1]!r} is no token of "
                    "this tokenizer: a text to be scored needs one token or more, so correct the task's data, or its "
                    "doc_to_choice and doc_to_target"
                )
        return super().loglikelihood(requests, disable_tqdm=True)  # pyright: ignore[reportAttributeAccessIssue]

    def _loglikelihood_tokens(
        self, requests: Iterable[tuple[Any, list[int], list[int]]], disable_tqdm: bool = True, **_: Any
    ) -> list[tuple[float, bool]]:
        del disable_tqdm
        asked = []
        for texts, before, after in requests:  # windows of a text have no texts of their own
            where = "lm-eval" if texts is None else f"lm-eval, {texts[1]!r} after {texts[0][-40:]!r}"
            if not after:
                raise UsageError(f"{where}: no token is added to those of the context: correct the task's data")
            asked.append(Request(before or [self.prefix_token_id], after).within(self.max_length, where, cut=True))
        found = log_likelihoods(self.model, self.world, asked, self.context)
        return [
            (float(nats), bool(right == len(request.continuation)))
            for request, (nats, right) in zip(asked, found.tolist(), strict=True)
        ]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[float]:
        """Log-likelihood of whole texts in nats: disjoint windows, each with as much before it as fits."""
        del disable_tqdm
        utils = importlib.import_module("lm_eval.utils")
        windows: list[tuple[None, list[int], list[int]]] = []
        counts: list[int] = []
        for request in requests:
            pairs = utils.get_rolling_token_windows(
                self.tok_encode(request.args[0]), self.prefix_token_id, self.max_length, 1
            )
            own = [(None, *utils.make_disjoint_window(pair)) for pair in pairs]
            windows += own
            counts.append(len(own))
        scores = iter(self._loglikelihood_tokens(windows))
        return [sum(next(scores)[0] for _ in range(count)) for count in counts]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[str]:
        """Answers to (context, settings), by greedy decoding or as the task's settings say."""
        del disable_tqdm
        return [self._answer(*request.args, where=_task_of(request)) for request in requests]

    def _answer(self, prompt: str, settings: Mapping[str, Any], where: str) -> str:
        tokenizer, given = self.context.tokenizer, importlib.import_module("lm_eval.models.utils")
        kwargs = dict(given.normalize_gen_kwargs(dict(settings), self.max_gen_toks))
        stop = [each for each in kwargs.get("until") or [] if each]
        room = self.max_length - kwargs["max_gen_toks"]
        if room < 1:
            raise UsageError(
                f"{where}: an answer may have {kwargs['max_gen_toks']} tokens (max_gen_toks), and the model reads "
                f"{self.max_length}: lower max_gen_toks in the task's generation_kwargs"
            )
        sampling: dict[str, Any] = {"greedy": True}
        if kwargs.get("do_sample"):
            known = {name: kwargs[name] for name in ("top_k", "top_p") if name in kwargs}
            sampling = {"temperature": kwargs.get("temperature", 1.0), "seed": self.context.seed, **known}
        tokens = self.tok_encode(prompt)[-room:] or [self.prefix_token_id]
        with self.model.evaluation_mode() as transformer:
            ids = generate(
                transformer,
                tokens,
                max_tokens=kwargs["max_gen_toks"],
                stop=(tokenizer.end_id,),
                vocab=tokenizer.vocab_size,
                length=self.max_length,
                agree=self.world.broadcast,
                **sampling,
            )
            return until(ids, tokenizer, stop)


def _task_of(request: Any) -> str:
    return f"lm-eval task {getattr(request, 'task_name', None) or '?'}"


def harness_model(model: Model, world: World, context: ModelContext, *, bos: bool = False) -> Any:
    """An `lm_eval.api.model.TemplateLM`. Raises UsageError where lm-eval is not installed."""
    base = _lm_eval("lm_eval.api.model").TemplateLM
    return type("HarnessModel", (HarnessMethods, base), {"backend": "causal"})(model, world, context, bos)


def run_harness(
    model: Model, world: World, context: ModelContext, tasks: Sequence[str], folder: Path | None, *, bos: bool = False
) -> dict[str, Any]:
    """Results of lm-eval's tasks by name: metrics with their standard errors.

    `folder` has task files (yaml) besides those that lm-eval brings. Nothing is fetched: data sets must be local files,
    or in the cache. Raises UsageError for tasks that are not known, or whose data is not there.
    """
    if context.model.kind != "decoder":
        raise UsageError(f"lm-eval asks a decoder for texts, and this model is an {context.model.kind}")
    if folder is not None and not folder.is_dir():
        raise UsageError(f"--include {folder}: no such folder: give the one that has the yaml files of lm-eval's tasks")
    own = harness_model(model, world, replace(context, proceed=lambda: True), bos=bos)
    manager = _lm_eval("lm_eval.tasks").TaskManager(include_path=None if folder is None else str(folder))
    if unknown := [name for name in tasks if name not in manager.all_tasks]:
        where = f", and {folder} has no yaml file that names it" if folder else ": name its folder with --include"
        raise UsageError(f"lm-eval has no task {unknown[0]!r}{where}")
    return _evaluate(own, tasks, manager)


def _evaluate(own: Any, tasks: Sequence[str], manager: Any) -> dict[str, Any]:
    """What `simple_evaluate` of lm-eval finds. Raises UsageError where a task's data or file is at fault."""
    from jinja2 import TemplateError

    evaluator, named = _lm_eval("lm_eval.evaluator"), f"lm-eval task {', '.join(tasks)}"
    try:
        with redirect_stdout(sys.stderr):  # lm-eval prints, and stdout is of the result
            found = evaluator.simple_evaluate(
                own, tasks=list(tasks), task_manager=manager, bootstrap_iters=RESAMPLES, log_samples=False
            )
    except UsageError:
        raise
    except (FileNotFoundError, ConnectionError) as error:
        raise UsageError(
            f"{named}: its data is not on this machine ({error}): correct data_files in the task's yaml, or fetch the "
            "data set beforehand"
        ) from error
    except (TemplateError, LookupError, ValueError, TypeError) as error:
        if _is_ours(error):
            raise
        raise UsageError(
            f"{named}: lm-eval cannot run it ({type(error).__name__}: {error}): correct the fields and templates that "
            "the task's yaml names"
        ) from error
    return dict(found)


def _is_ours(error: BaseException) -> bool:
    """Whether lm-eval was asking the model when it happened: no task's file is at fault then."""
    _, *inner = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__", "").startswith("hornbook.") for frame, _ in inner)


def _lm_eval(name: str) -> Any:
    """A module of lm-eval, which looks for nothing on the network."""
    if importlib.util.find_spec("lm_eval") is None:
        raise UsageError(f"--harness needs lm-eval, which is not installed: {install_command('eval')}")
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "DISABLE_MULTIPROC"):  # the last: no forks beside torch
        os.environ.setdefault(variable, "1")
    return importlib.import_module(name)
