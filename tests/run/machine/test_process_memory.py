"""Memory that a container leaves: control groups in a made folder."""

from pathlib import Path

import psutil
import pytest
import torch

from hornbook.run.machine import process_memory as memory
from hornbook.run.machine.process_memory import container_limits, free_memory, memory_of

V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = ("memory.max", "memory.current", "inactive_file")


def group(folder: Path, names: tuple[str, str, str], limit: str, used: int, cache: int) -> None:
    """A control group as the system shows it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 7\n{names[2]} {cache}\n")


def limits(root: Path, own: str) -> list[tuple[int, int]]:
    (root / "own").write_text(own)
    return list(container_limits(root, root / "own"))


def test_every_group_around_the_process_counts(tmp_path: Path) -> None:
    group(tmp_path / "job" / "step", V2, "max", 50, 0)
    group(tmp_path / "job", V2, "1000", 300, 100)
    group(tmp_path, V2, "5000", 400, 0)
    assert limits(tmp_path, "0::/job/step\n") == [(1000, 200), (5000, 400)]


def test_version_1_and_a_path_that_the_container_does_not_see(tmp_path: Path) -> None:
    group(tmp_path / "memory", V1, "2000", 900, 100)
    own = "5:cpu,cpuacct:/docker/a\n4:memory:/docker/a\n1:name=systemd:/docker/a\n"
    assert limits(tmp_path, own) == [(2000, 800)]


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert list(container_limits(tmp_path, tmp_path / "absent")) == []
    assert limits(tmp_path, "0::/\n") == []


def test_the_limit_of_a_container_is_the_total(monkeypatch: pytest.MonkeyPatch) -> None:
    resident = psutil.Process().memory_info().rss
    monkeypatch.setattr(memory, "container_limits", lambda: iter([(10**15, 0), (10 * resident, 4 * resident)]))
    cpu = torch.device("cpu")
    assert memory_of(cpu).total == min(10 * resident, psutil.virtual_memory().total)
    assert free_memory(cpu) <= 6 * resident + 2 * psutil.Process().memory_info().rss
    monkeypatch.setattr(memory, "container_limits", lambda: iter([(1, 2)]))
    assert free_memory(cpu) == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)
