"""From outputs to answers: against exhaustive search, and against definitions."""

import pytest
import torch

from hornbook.model.config.head_config import ClassificationHead, RegressionHead, TokenClassificationHead
from hornbook.model.heads.label_answers import Entity, best_span, entities, probabilities


def exhaustive(outputs, choosable, longest):
    pairs = (
        (float(outputs[i, 0] + outputs[j, 1]), i, j)
        for i in range(len(outputs))
        for j in range(i, min(i + longest, len(outputs)))
        if choosable[i] and choosable[j]
    )
    return max(pairs, default=None)


@pytest.mark.parametrize("longest", [1, 2, 5, 40])
def test_the_best_span_is_the_one_that_trying_all_finds(longest: int) -> None:
    generator = torch.Generator().manual_seed(longest)
    for tokens in (1, 2, 7, 31):
        for share in (0.0, 0.3, 1.0):
            outputs = torch.randn(tokens, 2, generator=generator)
            choosable = torch.rand(tokens, generator=generator) < share
            found, wanted = best_span(outputs, choosable, longest), exhaustive(outputs, choosable, longest)
            if wanted is None:
                assert found is None
            else:
                assert found is not None
                assert (found.first, found.last) == wanted[1:]
                assert found.score == pytest.approx(wanted[0])


def test_an_end_is_not_chosen_without_a_begin_near_it() -> None:
    outputs = torch.tensor([[5.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 9.0]])
    choosable = torch.tensor([True, False, False, True])
    assert best_span(outputs, choosable, longest=2) == (3, 3, 9.0)
    assert best_span(outputs, choosable, longest=4) == (0, 3, 14.0)


@pytest.mark.parametrize(
    ("tags", "wanted"),
    [
        ("O B-PER I-PER O B-LOC", [("PER", 1, 3), ("LOC", 4, 5)]),
        ("B-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("I-PER I-LOC I-LOC O I-PER", [("PER", 0, 1), ("LOC", 1, 3), ("PER", 4, 5)]),
        ("B-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),
        ("B-PER E-PER I-PER S-LOC S-LOC", [("PER", 0, 2), ("PER", 2, 3), ("LOC", 3, 4), ("LOC", 4, 5)]),
        ("B-X-1 L-X-1 U-X-1", [("X-1", 0, 2), ("X-1", 2, 3)]),
        ("NOUN VERB", []),
        ("", []),
    ],
)
def test_entities_are_runs_of_tags(tags: str, wanted: list[tuple[str, int, int]]) -> None:
    assert entities(tags.split()) == [Entity(*each) for each in wanted]


def test_probabilities_add_up_unless_labels_are_independent() -> None:
    outputs = torch.tensor([[0.0, 0.0, 2.0]])
    labels = ["a", "b", "c"]
    one, several = (probabilities(ClassificationHead(labels=labels, multiple=each), outputs) for each in (False, True))
    assert float(one.sum()) == pytest.approx(1)
    assert several.tolist() == [[0.5, 0.5, pytest.approx(0.8808, abs=1e-4)]]
    assert torch.equal(probabilities(TokenClassificationHead(labels=labels), outputs), one)
    assert torch.equal(probabilities(RegressionHead(outputs=3), outputs), outputs)
