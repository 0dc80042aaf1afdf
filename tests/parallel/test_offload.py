"""What is held on disk: the same bits, no memory beside it, no file left, and refusals."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hornbook.errors import Exit, StorageError, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.offload import offload
from hornbook.parallel.offload.offload import DiskTensors, check_offload, mapped_like
from hornbook.run.job.job import Start
from hornbook.run.launch.launch import launch
from hornbook.settings.resolve import resolve

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors are moved too."""
    monkeypatch.setattr(offload, "SMALLEST", 1)


def saved(folder: Path) -> list[bytes]:
    checkpoint = RunDir(folder).checkpoints / "step-00000012"
    return [path.read_bytes() for path in sorted(checkpoint.rglob("*.safetensors"))]


COMMON = ("model.dropout=0.1", "model.layers=2")


@pytest.fixture(scope="module")
def plain(tiny_settings: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that keeps all in memory. Read only."""
    run = RunDir(tmp_path_factory.mktemp("plain") / "run")
    assert launch(resolve(None, (*tiny_settings, *COMMON), environ={}), run, Start()) == Exit.DONE
    return run.path


@pytest.mark.parametrize(
    "words",
    [
        ["optimizer=false"],
        ["activations=false", "parameters=true"],
        ["parameters=true"],
    ],
)
@pytest.mark.parametrize("recompute", ["none", "selective", "block"])
def test_a_run_has_the_same_bits(
    tmp_path: Path, launch_run: Launch, plain: Path, branch: Branch, words: list[str], recompute: str
) -> None:
    """And a resume, which reads weights and moments into files."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    settings = ["parallel.offload=disk", *(f"parallel.offload.{word}" for word in [*words, f"folder={folder}"])]
    settings += [f"parallel.recompute={recompute}"]
    assert launch_run(tmp_path / "run", *COMMON, *settings) == Exit.DONE
    assert branch(tmp_path / "run") == branch(plain)
    assert saved(tmp_path / "run") == saved(plain)
    assert list(folder.iterdir()) == []
    for step in (8, 12):
        (RunDir(tmp_path / "run").checkpoints / f"step-{step:08d}").rename(tmp_path / f"gone-{step}")
    assert launch_run(tmp_path / "run", mode="resume") == Exit.DONE
    assert saved(tmp_path / "run") == saved(plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_saved_tensors_come_back_from_the_file(tmp_path: Path, dtype: torch.dtype) -> None:
    whole = torch.randn(6, 5, 4).to(dtype)
    disk = DiskTensors(str(tmp_path))
    for tensor in (whole, whole[2:], whole.transpose(0, 2), whole[:, 1, ::2]):
        pack, unpack = disk.begin()
        kept = [pack(tensor), pack(tensor[1:])]
        assert disk._end == whole.nbytes  # once for all that share it, and over what the pass before left
        for original, each in zip((tensor, tensor[1:]), kept, strict=True):
            found = unpack(each)
            assert torch.equal(found, original)
            assert found.stride() == original.stride()
            assert found.untyped_storage().data_ptr() != original.untyped_storage().data_ptr()
        del kept, each, found
    weight = nn.Parameter(torch.ones(4))
    assert disk.pack(weight) is weight


def test_two_passes_that_wait_for_backward_do_not_overwrite_each_other(tmp_path: Path) -> None:
    disk = DiskTensors(str(tmp_path))
    kept = [disk.begin()[0](torch.full((8,), float(number))) for number in range(3)]
    assert [float(disk.unpack(each).mean()) for each in kept] == [0.0, 1.0, 2.0]


def test_values_that_change_are_written_again(tmp_path: Path) -> None:
    pack, unpack = DiskTensors(str(tmp_path)).begin()
    tensor = torch.zeros(4)
    before = pack(tensor)
    after = pack(tensor.add_(1))
    assert (unpack(before).sum(), unpack(after).sum()) == (0, 4)


def test_mapped_tensors_are_zero_and_leave_no_name(tmp_path: Path) -> None:
    tensor = mapped_like(torch.ones(3, 2, dtype=torch.bfloat16), str(tmp_path))
    assert (tensor.dtype, tensor.shape, float(tensor.sum())) == (torch.bfloat16, (3, 2), 0.0)
    assert list(tmp_path.iterdir()) == []
    assert torch.equal(tensor.fill_(2), torch.full((3, 2), 2.0, dtype=torch.bfloat16))


def test_a_full_disk_or_a_missing_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StorageError, match=r"missing.*parallel\.offload\.folder"):
        DiskTensors(str(tmp_path / "missing"))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(StorageError, match="No space left"):
        mapped_like(torch.ones(3), str(tmp_path))


@pytest.mark.parametrize(("device", "kind"), [("cpu", "cpu"), ("cuda", "disk"), ("mps", "cpu")])
def test_what_a_device_cannot_do_is_refused(device: str, kind: str) -> None:
    config = ParallelConfig.model_validate({"offload": kind}).offload
    with pytest.raises(UsageError, match=rf'parallel\.offload is "{kind}"'):
        check_offload(config, torch.device(device))
    check_offload(ParallelConfig.model_validate({"offload": "disk"}).offload, torch.device("cpu"))
    state = ParallelConfig.model_validate({"offload": {"kind": "disk", "activations": False}}).offload
    check_offload(state, torch.device("cuda"))  # moments alone, of an update on the host
    with pytest.raises(UsageError, match="the state of the optimizer alone"):
        check_offload(state, torch.device("mps"))


def test_a_refusal_comes_before_the_run_directory(tmp_path: Path, launch_run: Launch) -> None:
    with pytest.raises(UsageError, match="in its memory already"):
        launch_run(tmp_path / "run", "parallel.offload=cpu")
    assert not (tmp_path / "run").exists()
