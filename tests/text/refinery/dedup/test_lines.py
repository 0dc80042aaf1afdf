import re
from pathlib import Path

import numpy as np
import pytest

from hornbook.text.config.duplicates import LineDedupConfig, ParagraphDedupConfig
from hornbook.text.refinery.dedup.lines import LineDedup
from tests.text.refinery.duplicates import applied, corpus_of, documents_of
from tests.text.refinery.running import least_seconds

BLANKS = "".join(map(chr, range(33)))


def visible(text: str) -> bool:
    return text.strip(BLANKS) != ""


def lines_of(text: str) -> list[str]:
    """With their line feeds."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def slow_lines(texts: list[str], least: int) -> list[str]:
    """The rule in plain words: keep a line if it is short or new."""
    seen, left = set(), []
    for text in texts:
        kept = []
        for line in lines_of(text):
            core = line.strip(BLANKS)
            if len(core.encode()) < least or core not in seen:
                kept.append(line)
            if len(core.encode()) >= least:
                seen.add(core)
        left.append("".join(kept))
    return left


def slow_paragraphs(texts: list[str], least: int) -> list[str]:
    seen, left = set(), []
    for text in texts:
        groups: list[list[str]] = [[]]
        for line in lines_of(text):
            if visible(line) and groups[-1] and not visible(groups[-1][-1]):
                groups.append([])
            groups[-1].append(line)
        kept = []
        for group in groups:
            core = "".join(group).strip(BLANKS)
            if len(core.encode()) < least or core not in seen:  # blank lines before the first are short
                kept += group
            if len(core.encode()) >= least:
                seen.add(core)
        left.append("".join(kept))
    return left


def made_texts(seed: int, count: int = 300) -> list[str]:
    """Documents of lines from a small stock, with blank lines, indents and several scripts."""
    rng = np.random.default_rng(seed)
    stock = [f"line {number} " + "x" * int(rng.integers(0, 30)) for number in range(200)]
    stock += ["", "", "   ", "\t"] * 20 + ["дважды два четыре", "春の海 ひねもすのたり のたりかな", "naïve café"] * 5
    texts = []
    for _ in range(count):
        lines = [str(rng.choice(stock)) for _ in range(int(rng.integers(0, 30)))]
        lines = [" " * int(rng.integers(0, 3)) + line + " " * int(rng.integers(0, 2)) for line in lines]
        texts.append("\n".join(lines) + "\n" * int(rng.integers(0, 3)))
    return texts


STEPS = {
    "lines": (LineDedupConfig, slow_lines),
    "paragraphs": (ParagraphDedupConfig, slow_paragraphs),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("least", [1, 12, 25])
def test_what_is_left_equals_the_slow_reference(name: str, least: int, tmp_path: Path) -> None:
    config, slow = STEPS[name]
    step, texts = LineDedup(config(min_bytes=least)), made_texts(least)
    assert applied(texts, step.cuts(corpus_of(step, texts, tmp_path))) == slow(texts, least)


@pytest.mark.parametrize("name", STEPS)
def test_tasks_batches_and_memory_change_nothing(name: str, tmp_path: Path) -> None:
    config, _ = STEPS[name]
    texts, found = made_texts(3), []
    for number, (tasks, batch, budget) in enumerate([(1, 1000, 2**30), (7, 3, 2**30), (3, 11, 5000), (300, 1, 20_000)]):
        step = LineDedup(config(min_bytes=10))
        step.budget = budget
        folder = tmp_path / str(number)
        folder.mkdir()
        found.append(np.stack(step.cuts(corpus_of(step, texts, folder, tasks=tasks, batch=batch))))
    assert len(found[0][0]) > 100
    assert all(np.array_equal(found[0], other) for other in found[1:])


def test_dropped_documents_are_no_first(tmp_path: Path) -> None:
    line = "a line that is long enough to be compared\n"
    step = LineDedup(LineDedupConfig())
    corpus = corpus_of(step, [line, line, line], tmp_path, alive=np.array([False, True, True]))
    assert [part.tolist() for part in step.cuts(corpus)] == [[2], [0], [len(line)]]


def test_nothing_to_compare(tmp_path: Path) -> None:
    step = LineDedup(LineDedupConfig())
    assert [part.tolist() for part in step.cuts(corpus_of(step, ["", "\n\n", "short"], tmp_path))] == [[], [], []]


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    "pattern", ["\n", "a", "a" * 50 + "\n", " ", "\n\n" + "b" * 90], ids=lambda text: repr(text[:6])
)
def test_time_is_linear(name: str, pattern: str) -> None:
    config, _ = STEPS[name]
    step = LineDedup(config())

    def seconds(size: int) -> float:
        documents = documents_of([pattern * (size // len(pattern))])
        return least_seconds(lambda: step.sketch(documents, 0))

    seconds(1000)
    small, large = seconds(1_000_000), seconds(8_000_000)
    assert large < 40 * max(small, 0.001)
