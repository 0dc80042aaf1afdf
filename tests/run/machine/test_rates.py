"""What is measured of a machine, where it is kept, and what MFU is a share of."""

import json
from pathlib import Path

import pytest
import torch

from hornbook.errors import StorageError
from hornbook.plan.devices.measured import bench_folder, read_machine
from hornbook.run.machine import rates as machine
from hornbook.run.machine.energy import EnergyMeter
from hornbook.run.machine.peak import Peak, known_peak, measured_peak, num_devices, published_peak
from hornbook.run.machine.saved import device_name, machine_file, step_file, write
from hornbook.settings.resolve import resolve

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HORNBOOK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_machine_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hornbook.run.machine.checks.MATMUL_SECONDS", 0.01)
    monkeypatch.setitem(machine.SIDES, "cpu", (64, 128))
    monkeypatch.setattr(machine, "COPY_BYTES", 1 << 20)
    found = machine.measure_machine(CPU, tmp_path)
    assert {"fp32", "bf16"} <= {*found["products"], *found["widened"]}
    assert not {*found["products"]} & {*found["widened"]}
    assert min(*found["products"].values(), found["memory_bandwidth"], *found["disk"].values()) > 0
    assert json.loads(json.dumps(found)) == found
    assert list(tmp_path.iterdir()) == []  # no probe is left


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="missing"):
        machine.measure_disk(tmp_path / "missing")


def test_what_was_saved_is_read_again(home: Path) -> None:
    assert bench_folder() == home / "bench"
    path = write(machine_file("Some CPU, 2 threads"), {"products": {"fp32": 100.0}})
    assert path == home / "bench" / "Some-CPU-2-threads" / "machine.json"
    assert read_machine("Some CPU, * threads") == [{"format": 1, "products": {"fp32": 100.0}}]
    assert read_machine("another") == []
    path.write_text("{")
    assert read_machine("Some CPU, 2 threads") == []
    path.write_text('{"format": 99}')
    assert read_machine("Some CPU, 2 threads") == []


def test_another_shape_or_layout_is_another_file(tiny_settings: tuple[str, ...]) -> None:
    words = ((), ("model.width=32",), ("parallel.recompute=block",), ("train.micro_batch=1",), ("log.every=7",))
    files = [step_file("cpu", resolve(None, [*tiny_settings, *more], environ={}).recipe) for more in words]
    assert len({*files}) == 4
    assert files[0] == files[-1]  # logging changes no step


def test_a_cache_that_cannot_be_written_is_no_error_unless_it_was_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert write(tmp_path / "file" / "machine.json", {}) is None
    with pytest.raises(StorageError):
        write(tmp_path / "file" / "machine.json", {}, named=True)


def test_the_name_of_a_cpu_has_its_threads(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nmodel name\t: Foo(R) 9000\nmodel name\t: Foo(R) 9000\n")
    name = device_name(CPU, info)
    assert name.startswith("Foo(R) 9000, ")
    assert f", {torch.get_num_threads()} threads" in name
    assert device_name(CPU, tmp_path / "none")


@pytest.mark.parametrize(
    ("driver", "precision", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 80GB HBM3", "bf16-pure", 989.4),
        ("NVIDIA H100 80GB HBM3", "float8", 1978.9),
        ("NVIDIA H100 PCIe", "bf16", 756.0),
        ("NVIDIA H100 NVL", "bf16", 835.5),
        ("NVIDIA H200", "bf16", 989.4),
        ("NVIDIA GH200 480GB", "bf16", 989.4),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312.0),
        ("NVIDIA A100-PCIE-40GB", "fp32", 19.5),
        ("Tesla V100-SXM2-16GB", "fp16", 125.0),
        ("Tesla T4", "fp16", 65.0),
        ("NVIDIA B200", "bf16", 2250.0),
        ("NVIDIA A10", "bf16", 125.0),
        ("NVIDIA A10G", "bf16", 70.0),
        ("NVIDIA L4", "bf16", 121.0),
        ("NVIDIA L40", "bf16", 181.0),
        ("NVIDIA H20", "bf16", 148.0),
        ("NVIDIA GeForce RTX 3090", "bf16", 71.0),
        ("NVIDIA RTX A6000", "bf16", 154.8),
        ("NVIDIA RTX 6000 Ada Generation", "bf16", 364.2),
        ("AMD Instinct MI300X VF", "bf16", 1307.4),
    ],
)
def test_published_peaks(driver: str, precision: str, tera: float) -> None:
    found = published_peak(driver, precision)
    assert found is not None
    assert found.rate == tera * 1e12
    assert found.source.startswith("published for ")
    assert precision in found.source


@pytest.mark.parametrize(
    ("driver", "precision"),
    [
        ("Tesla V100-SXM2-16GB", "bf16"),
        ("NVIDIA T400", "fp16"),
        ("NVIDIA RTX A1000", "fp16"),
        ("NVIDIA A100-SXM4-64GB", "bf16"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16"),
        ("NVIDIA GeForce RTX 4090 D", "bf16"),
        ("some card", "fp32"),
    ],
)
def test_what_is_not_known_has_no_published_peak(driver: str, precision: str) -> None:
    assert published_peak(driver, precision) is None


def test_the_peak_of_a_cpu_is_what_was_measured() -> None:
    assert known_peak(CPU, "fp32") is None
    write(machine_file(device_name(CPU)), {"products": {"fp32": 100.0}, "widened": ["bf16"]})
    assert known_peak(CPU, "fp32") == Peak(100e9, "fp32 products measured here")
    assert known_peak(CPU, "bf16") == Peak(100e9, "fp32 products measured here")  # its products run in fp32
    assert known_peak(CPU, "fp16") is None


def test_damaged_measurements_are_no_peak() -> None:
    assert measured_peak(None, "fp32") is None
    assert measured_peak({"products": {"fp32": "fast"}}, "fp32") is None
    assert measured_peak({"products": {"fp32": 0.0}}, "fp32") is None


def test_ranks_on_a_cpu_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert (num_devices(CPU, 4), num_devices(torch.device("cuda"), 4)) == (1, 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert num_devices(CPU, 8) == 4


def counter(folder: Path, name: str, value: int) -> None:
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "energy_uj").write_text(f"{value}\n")
    (folder / name / "max_energy_range_uj").write_text("1000000\n")


def test_energy_is_summed_over_packages_and_counters_wrap(tmp_path: Path) -> None:
    for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):  # the last is a part of the first
        counter(tmp_path, name, 900_000)
    meter = EnergyMeter(CPU, tmp_path)
    counter(tmp_path, "intel-rapl:0", 950_000)
    counter(tmp_path, "intel-rapl:1", 100_000)
    counter(tmp_path, "intel-rapl:0:0", 999_999)
    assert meter.stop() == {"joules": pytest.approx(0.05 + 0.2), "source": "RAPL of 2 CPU packages"}


def test_energy_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    assert EnergyMeter(CPU, tmp_path / "none").stop()["joules"] is None
    counter(tmp_path, "intel-rapl:0", 1)
    meter = EnergyMeter(CPU, tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    assert meter.stop()["joules"] is None
