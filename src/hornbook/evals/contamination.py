"""Which items of a task occur in a run's own training text, by the n-grams that `decontaminate` looks for.

An item counts as seen where a document has one of its 13-grams of words (an item of fewer words: the whole of it), or
more than 30 % of its 5-grams. N-grams of many items are the task's own template, and are ignored.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import xxhash
from jaxtyping import Bool

from hornbook.data.corpus import Corpus
from hornbook.data.packing.plan import kept_table
from hornbook.evals.documents import training_texts
from hornbook.evals.evaluate import Report
from hornbook.evals.items import ItemScores
from hornbook.evals.task import Task
from hornbook.progress import Progress, silent
from hornbook.text.config.duplicates import DecontaminateConfig
from hornbook.text.refinery.dedup.decontaminate import item_tables
from hornbook.text.refinery.dedup.ngram_table import largest_share, mark_items
from hornbook.text.refinery.words.words import hashed_words
from hornbook.text.store import batched
from hornbook.text.tokenizer.tokenizer import Tokenizer

RULES = DecontaminateConfig(paths=["-"])
"""The step's published settings; its paths are of no use here."""
VERSION = 1
"""Part of the name of what is kept: raise it when other items would be found."""
_BATCH = 1 << 20


@dataclass(frozen=True)
class Contamination:
    """What of some items was found."""

    seen: Bool[np.ndarray, " items"]
    judged: Bool[np.ndarray, " items"]
    """Items of enough words to be told from innocent text."""


Text = str | Sequence[str]
"""Of an item, which may have several: a question with each of its answers."""


def find_items(items: Sequence[Text], documents: Iterable[str]) -> Contamination:
    """Which of the items have a text that occurs in the documents, whole or in part."""
    texts = [[item] if isinstance(item, str) else item for item in items]
    whose = np.repeat(np.arange(len(items)), [len(each) for each in texts])
    found = _find_texts([*itertools.chain.from_iterable(texts)], documents)
    seen, judged = (np.bincount(whose, each, len(items)) > 0 for each in (found.seen, found.judged))
    return Contamination(seen, judged)


def _find_texts(texts: Sequence[str], documents: Iterable[str]) -> Contamination:
    found = hashed_words(texts, RULES.words, plain=True)
    words = np.split(found.hashes, found.firsts[1:-1])
    judged = np.array([len(each) >= RULES.min_words for each in words], bool)
    seen = np.zeros(len(texts), bool)
    if not judged.any():
        return Contamination(seen, judged)
    long = [each.tobytes() for each in words if len(each) >= RULES.min_words]
    different = {key: number for number, key in enumerate(dict.fromkeys(long))}  # what is repeated is no template
    exact, fuzzy = item_tables([np.frombuffer(key, np.uint64) for key in different], RULES)
    marked, shares = np.zeros(len(different), bool), np.zeros(len(different))
    for batch in batched(documents, len, _BATCH):
        own = hashed_words(batch, RULES.words, plain=True)
        for table in exact:
            mark_items(table, own.hashes, own.firsts, marked)
        largest_share(fuzzy, own.hashes, own.firsts, shares)
    seen[judged] = (marked | (shares > RULES.max_share))[[different[key] for key in long]]
    return Contamination(seen, judged)


def find_in_corpus(items: Sequence[Text], corpus: Corpus, tokenizer: Tokenizer) -> Contamination:
    """`find_items` of the training text, which is read only if it, the items or the rules are other ones."""
    shards = [stream.digest for stream in corpus.train.values()]
    parts = repr((VERSION, RULES.model_dump(), tokenizer.digest, shards, list(items)))

    def table() -> Bool[np.ndarray, "2 items"]:
        found = find_items(items, training_texts(corpus, tokenizer))
        return np.stack([found.seen, found.judged])

    name = f"contamination-{xxhash.xxh3_128_hexdigest(parts.encode(errors='surrogatepass'))}"
    return Contamination(*kept_table(corpus.root / "plans", name, table)[0])


def with_contamination(
    report: Report, tasks: Sequence[Task], corpus: Corpus, tokenizer: Tokenizer, progress: Progress = silent
) -> Report:
    """The report with `contaminated` items of each task that has texts, and its measurements without them.

    `corpus` is what the model was trained on. It is read once for all tasks, and what is found is kept beside it.
    """
    texts: Mapping[str, Sequence[Text]] = {task.name: getattr(task, "texts", ()) for task in tasks}
    texts = {name: each for name, each in texts.items() if any(each) and name in report.tasks}
    if not texts:
        return report
    progress("look for the tasks' items in the training text", 0, None)
    found = find_in_corpus([text for each in texts.values() for text in each], corpus, tokenizer)
    scores, first = dict(report.tasks), 0
    for name, own in texts.items():
        part, score = slice(first, first + len(own)), scores[name]
        first += len(own)
        if isinstance(score, ItemScores):
            scores[name] = _told(score, Contamination(found.seen[part], found.judged[part]))
    return replace(report, tasks=scores)


def _told(score: ItemScores, found: Contamination) -> ItemScores:
    """`contaminated` of `judged` items, and where there are any the measurements of the others, with `_clean`."""
    counts = {**score.counts, "contaminated": int(found.seen.sum()), "judged": int(found.judged.sum())}
    some = found.seen.any() and not found.seen.all()
    clean = {f"{name}_clean": values for name, values in score.of(~found.seen).items()} if some else {}
    sizes = {f"{name}_clean": each[~found.seen] for name, each in score.sizes.items()} if some else {}
    overall = {f"{name}_clean": each.of(~found.seen) for name, each in score.overall.items()} if some else {}
    return replace(
        score,
        values={**score.values, **clean},
        counts=counts,
        sizes={**score.sizes, **sizes},
        overall={**score.overall, **overall},
    )
