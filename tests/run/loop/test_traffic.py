"""A run on two ranks says at each log interval what crossed them, and learns as one process does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir


def metrics(folder: Path) -> list[dict[str, Any]]:
    return list(read_records(RunDir(folder).metrics))


@pytest.mark.parametrize(
    ("words", "flows"),
    [
        (("parallel.bucket_mb=0.01",), {("replica", "all-reduce")}),
        (
            ("parallel.shard=everything", "parallel.reshard=false"),
            {("shard", "all-gather"), ("shard", "reduce-scatter"), ("shard", "all-reduce")},
        ),
    ],
    ids=["ddp", "fsdp"],
)
def test_what_crosses_ranks_is_in_the_bill(
    train_whole: Callable[..., Path], words: tuple[str, ...], flows: set[tuple[str, str]]
) -> None:
    common = ("log.every=4", "parallel.data=2", "parallel.compress=bf16")
    found, alone = metrics(train_whole(*common, *words)), metrics(train_whole())
    assert [each["loss"] for each in found] == pytest.approx([each["loss"] for each in alone], rel=1e-3)
    for each in found:
        if "bill" in each:
            crossed = each["bill"]["communication"]
            assert {(flow["axis"], flow["kind"]) for flow in crossed["flows"]} == flows
            assert min(flow["bytes"] for flow in crossed["flows"]) > 0
            assert crossed["seconds"] > 0
            assert crossed["waited"] > 0
