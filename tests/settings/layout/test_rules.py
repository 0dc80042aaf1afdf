"""Settings of what crosses ranks are refused where they would have no effect, with the key and the remedy."""

import pytest

from hornbook.settings.resolve import ConfigError, resolve

REFUSED = {
    "parallel.compress": ("parallel.data=2", "parallel.exact=true", "parallel.compress=bf16"),
    "parallel.gather": ("parallel.data=2", "parallel.gather=bf16"),
    "parallel.reshard": ("parallel.data=2", "parallel.shard=gradients", "parallel.reshard=false"),
}


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
