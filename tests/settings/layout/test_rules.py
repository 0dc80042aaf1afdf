"""Settings of what crosses ranks are refused where they would have no effect, with the key and the remedy."""

import pytest

from hornbook.settings.resolve import ConfigError, resolve

REFUSED = {
    "parallel.compress": ("parallel.data=2", "parallel.exact=true", "parallel.compress=bf16"),
    "parallel.gather": ("parallel.data=2", "parallel.gather=bf16"),
    "parallel.reshard": ("parallel.data=2", "parallel.shard=gradients", "parallel.reshard=false"),
}


GRAPHS = ("train.compile=true", "train.cuda_graphs=true")


@pytest.mark.parametrize("key", REFUSED)
def test_what_would_have_no_effect_is_refused(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(None, REFUSED[key], environ={})
    (problem,) = caught.value.problems
    assert problem.key == key
    assert "leave" in problem.text


def test_weights_of_a_run_in_float32_are_not_gathered_in_bfloat16() -> None:
    words = ("parallel.data=2", "parallel.shard=everything", "parallel.gather=bf16", "train.precision=fp32")
    with pytest.raises(ConfigError, match=r"needs train\.precision bf16"):
        resolve(None, words, environ={})


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("optim.kind", ("parallel.tensor=2", "optim.kind=adamw8bit")),
        ("optim.state", ("parallel.tensor=2", "optim.state=bf16")),
        ("train.precision", ("parallel.tensor=2", "train.precision=bf16-pure")),
        ("train.precision", ("parallel.tensor=2", "train.precision=float8")),
        ("train.micro_batch", ("parallel.pipeline=2", "train.micro_batch=auto")),
        ("train.cuda_graphs", ("parallel.pipeline=2", "train.compile=true", "train.cuda_graphs=true")),
        ("parallel.offload.activations", ("parallel.pipeline=2", "parallel.offload=disk")),
        ("parallel.shard", ("parallel.data=2", "parallel.shard=gradients", *GRAPHS)),
        ("parallel.exact", ("parallel.exact=true", *GRAPHS)),
    ],
)
def test_what_does_not_go_with_an_axis_is_refused(key: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(None, words, environ={})
    assert [problem.key for problem in caught.value.problems] == [key]
