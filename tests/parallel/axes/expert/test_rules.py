"""Recipes with `parallel.expert` that no run can have are refused before one begins, with the key and the remedy."""

import pytest

from hornbook.settings.resolve import ConfigError, resolve

EXPERTS = ('model.mlp={kind="experts",count=6}', "model.layers=2", "parallel.expert=4", "train.micro_batch=1")


@pytest.mark.parametrize(
    ("words", "key", "text"),
    [
        (("model.mlp=glu",), "parallel.expert", "the model has no experts to divide: leave it 1"),
        (("model.mlp.count=3",), "parallel.expert", "a layer of 3 experts would leave some of 4 ranks without one"),
        (("train.compile=true", "train.cuda_graphs=true"), "train.cuda_graphs", "set it to false"),
        (("train.micro_batch=auto",), "train.micro_batch", "give a number"),
        (("parallel.exact=true",), "parallel.exact", "leave it out"),
        (("log.noise_scale=10",), "log.noise_scale", "leave it 0"),
        (("train.batch_tokens=7Ki", "train.sequence=1Ki"), "parallel.data", "4 ranks cannot share 7 microbatches"),
    ],
)
def test_what_does_not_go_with_divided_experts(words: tuple[str, ...], key: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(None, [*EXPERTS, *words], {})
    found = {problem.key: problem.text for problem in caught.value.problems}
    assert text in found[key], found


def test_six_experts_go_with_four_ranks() -> None:
    assert resolve(None, EXPERTS, {}).recipe.parallel.world == 4
