"""An optimizer from outside the package, as docs/parts.md prints it: trained, saved, resumed and resharded."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from hornbook.errors import Exit, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.run.job.control import Request, write_request
from hornbook.settings.resolve import resolve
from tests.run.launcher import Launcher

ROOT = Path(__file__).resolve().parents[3]
WORDS = ("optim=lion:Lion", "optim.lr=3e-3", "model.width=64", "parallel.exact=true", "checkpoint.every=4")

Branch = Callable[[Path], list[dict[str, Any]]]
Launch = Callable[..., Exit]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in the path with the module `lion`, and `other`: state that is not declared."""
    folder = tmp_path / "modules"
    folder.mkdir()
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "parts.md").read_text(), re.DOTALL)
    (lion,) = (block for block in blocks if "class Lion(" in block)
    (folder / "lion.py").write_text(lion)
    undeclared = lion.replace("lion:Lion", "other:Lion").replace('(StateTensor("momentum"),)', "()")
    undeclared = undeclared.replace('self.state[p]["momentum"]', 'self.state[p].setdefault("m", torch.zeros_like(p))')
    (folder / "other.py").write_text(undeclared)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in ("lion", "other"):
        sys.modules.pop(name, None)


def stop_at(folder: Path, step: int) -> None:
    """Have the run in `folder`, which need not have begun, stop after `step` steps."""
    (folder / "control").mkdir(parents=True, exist_ok=True)
    write_request(RunDir(folder), Request(action="stop", at_step=step))


def last_bytes(folder: Path) -> dict[str, bytes]:
    """Weights and moments of the last checkpoint."""
    checkpoint = RunDir(folder).checkpoints / "step-00000012"
    return {path.name: path.read_bytes() for path in checkpoint.rglob("*.safetensors")}


def test_it_trains_is_saved_and_goes_on_bit_for_bit(
    own: Path, tmp_path: Path, launch_run: Launch, launcher: Launcher, branch: Branch
) -> None:
    """In one process, stopped and resumed; then on two ranks that share the model, and in one process again."""
    assert launch_run(tmp_path / "whole", *WORDS) == Exit.DONE
    losses = [step["loss"] for step in branch(tmp_path / "whole")]
    assert losses[-1] < losses[0] - 0.5
    moments = load_file(RunDir(tmp_path / "whole").checkpoints / "step-00000012" / "trainer" / "optimizer.safetensors")
    assert {name.rpartition(".")[2] for name in moments} == {"momentum"}
    assert all(bool(tensor.any()) for tensor in moments.values())

    run = tmp_path / "run"
    stop_at(run, 3)
    assert launch_run(run, *WORDS) == Exit.RESUMABLE
    stop_at(run, 6)
    assert launch_run(run, mode="resume") == Exit.RESUMABLE
    for ranks, stop in ((2, 9), (1, None)):
        if stop is not None:
            stop_at(run, stop)
        words = ["resume", str(run), f"parallel.data={ranks}", "parallel.shard=everything"]
        started = launcher.start(words, tmp_path / "log", environ={"PYTHONPATH": str(own)})
        assert started.wait() == (Exit.DONE if stop is None else Exit.RESUMABLE), started.text
    assert branch(run) == branch(tmp_path / "whole")
    assert last_bytes(run) == last_bytes(tmp_path / "whole")


@pytest.mark.usefixtures("own")
def test_moments_of_another_optimizer_are_refused(tmp_path: Path, launch_run: Launch) -> None:
    stop_at(tmp_path / "run", 2)
    launch_run(tmp_path / "run", *WORDS)
    with pytest.raises(UsageError, match=r'optim\.kind "lion:Lion" -> "adamw" cannot change on resume'):
        launch_run(tmp_path / "run", "optim.kind=adamw", mode="resume")


@pytest.mark.usefixtures("own")
def test_state_that_is_not_declared_ends_the_run_with_its_first_step(tmp_path: Path, launch_run: Launch) -> None:
    with pytest.raises(UsageError, match=r"it keeps \{'m': 'torch.float32 .*`Lion.state_tensors` must list all of it"):
        launch_run(tmp_path / "run", "optim=other:Lion")


@pytest.mark.usefixtures("own")
def test_what_is_no_optimizer_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="lion:LionUpdate is no part"):
        resolve(None, ["optim=lion:LionUpdate"], {})


@pytest.mark.usefixtures("own")
def test_its_settings_are_checked_as_all_others_are() -> None:
    assert resolve(None, ["optim=lion:Lion", "optim.beta2=0.98", "optim.clip=0"], {}).recipe.optim.beta2 == 0.98
    with pytest.raises(UsageError, match="beta3"):
        resolve(None, ["optim=lion:Lion", "optim.beta3=0.9"], {})
