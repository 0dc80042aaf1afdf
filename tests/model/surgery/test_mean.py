"""Means of several models: exact sums, any order of names, and refusals."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hornbook.errors import IntegrityError
from hornbook.model.build_model import build_model
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.hf.hf import read_hf, write_hf
from hornbook.model.init.init import initial_values
from hornbook.model.surgery import mean
from hornbook.model.surgery.mean import mean_tensors, write_streamed

CONFIG = ModelConfig(layers=2, width=16, heads=2, vocab=64)


def model(seed: int) -> dict[str, Tensor]:
    return dict(initial_values(build_model(CONFIG, 64, "meta"), CONFIG, seed))


def streamed(tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    return iter(tensors.items())


def test_a_mean_is_rounded_once() -> None:
    """In float32 the sum of these loses the small one."""
    parts = [torch.tensor([1e8]), torch.tensor([3.0]), torch.tensor([-1e8])]
    ((_, found),) = mean_tensors([iter([("w", each)]) for each in parts], [1.0, 1.0, 1.0])
    assert (found.dtype, found.item()) == (torch.float32, 1.0)


def test_weights_in_the_closed_form_and_names_in_any_order() -> None:
    models = [model(seed) for seed in range(3)]
    backwards = dict(reversed(models[1].items()))
    found = dict(mean_tensors([streamed(each) for each in (models[0], backwards, models[2])], [0.5, 0.25, 0.25]))
    assert found.keys() == models[0].keys()
    for name, tensor in found.items():
        expected = 0.5 * models[0][name].double() + 0.25 * models[1][name].double() + 0.25 * models[2][name].double()
        assert torch.equal(tensor, expected.float())


def test_equal_models_are_their_mean_to_the_bit() -> None:
    found = dict(mean_tensors([streamed(model(1)) for _ in range(3)], [1.0] * 3))
    assert all(torch.equal(found[name], each) for name, each in model(1).items())


def test_what_one_model_lacks_is_named() -> None:
    with pytest.raises(IntegrityError, match="b is in one of the models only"):
        list(
            mean_tensors([iter([("a", torch.ones(1)), ("b", torch.ones(1))]), iter([("a", torch.ones(1))])], [0.5, 0.5])
        )
    with pytest.raises(IntegrityError, match=r"a is \[1\] in one model and \[2\] in another"):
        list(mean_tensors([iter([("a", torch.ones(1))]), iter([("a", torch.ones(2))])], [0.5, 0.5]))


def test_a_model_written_in_pieces_is_the_one_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mean, "HELD_BYTES", 1000)
    write_streamed(tmp_path / "pieces", streamed(model(1)), CONFIG, 64, None, None)
    write_hf(tmp_path / "whole", model(1), CONFIG, 64, None)
    files = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("pieces", "whole")]
    assert files[0] == files[1]
    assert all(
        (tmp_path / "pieces" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes() for name in files[0]
    )
    assert dict(read_hf(tmp_path / "pieces")[2]).keys() == model(1).keys()
