"""Figures of what a model wrote beside what people wrote: BLEU and chrF by sacrebleu, ROUGE by rouge-score.

A text may have any number of references: BLEU takes an n-gram from any of them, chrF and ROUGE the one that is closest.

Both packages come with the extra `eval` and are imported when a task is built, so that their absence shows before
training. BLEU and chrF are of all texts together, each with the signature that says how it was computed (Post 2018);
sacrebleu's own statistics of each text are resampled for their errors.
"""

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
from jaxtyping import Float

from hornbook.errors import UsageError
from hornbook.evals.config import Summarization, Translation, WrittenFile
from hornbook.evals.items import CorpusMetric
from hornbook.files.extras import install_command

Figures = tuple[dict[str, Float[np.ndarray, " items"]], dict[str, CorpusMetric], dict[str, str]]
"""Values of each item, what is of all of them together, and its signatures."""
ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def check(config: WrittenFile) -> None:
    """Raise UsageError where the package that computes the figures is not there, or not what it needs."""
    _METRICS[type(config)][0](config)


References = Sequence[Sequence[str]]
"""Of each text, one or more."""


def scores(config: WrittenFile, found: Sequence[str], right: References) -> Figures:
    """The figures of texts of the model and of those they should be."""
    build, compute = _METRICS[type(config)]
    return compute(build(config), found, right)


def _import(config: WrittenFile, module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"eval.tasks, {config.label}: {package} computes its figures and cannot be imported ({error}): install it "
            f"with `{install_command('eval')}`, or leave the task out"
        ) from error


def _sacrebleu(config: Translation) -> tuple[Any, Any]:
    package = _import(config, "sacrebleu.metrics", "sacrebleu")
    try:
        return package.BLEU(tokenize=config.tokenize), package.CHRF(word_order=config.chrf_words)
    except (ImportError, RuntimeError) as error:  # the tokenizers of Japanese and Korean are packages of their own
        raise UsageError(f"eval.tasks, {config.label}: tokenize = {config.tokenize!r}: {error}") from error


def _translation(metrics: tuple[Any, Any], found: Sequence[str], right: References) -> Figures:
    bleu, chrf = metrics
    overall: dict[str, CorpusMetric] = {}
    signatures: dict[str, str] = {}
    sides = [*zip_longest(*right)]  # the first references, the second ones, and so on: None where there are no more
    for name, metric in {"bleu": bleu, "chrf": chrf}.items() if found else ():
        statistics = np.array(metric._extract_corpus_statistics(list(found), sides))
        overall[name] = CorpusMetric(statistics, partial(_score, metric))
        signatures[f"{name}_signature"] = str(metric.get_signature())
    sentences = [chrf.sentence_score(ours, list(theirs)).score for ours, theirs in zip(found, right, strict=True)]
    return {"chrf_sentence": np.array(sentences, np.float64)}, overall, signatures


def _score(metric: Any, statistics: Float[np.ndarray, " n"]) -> float:
    return float(metric._compute_score_from_stats(statistics.astype(int).tolist()).score)


def _rouge_score(config: Summarization) -> Any:
    return _import(config, "rouge_score.rouge_scorer", "rouge-score").RougeScorer(ROUGE, use_stemmer=config.stem)


def _summaries(scorer: Any, found: Sequence[str], right: References) -> Figures:
    rows = [scorer.score_multi(theirs, ours) for ours, theirs in zip(found, right, strict=True)]
    return {name: np.array([row[name].fmeasure for row in rows], np.float64) for name in ROUGE}, {}, {}


_METRICS: dict[type[WrittenFile], tuple[Callable[[Any], Any], Callable[[Any, Sequence[str], References], Figures]]]
_METRICS = {Translation: (_sacrebleu, _translation), Summarization: (_rouge_score, _summaries)}
