"""Names of devices: exactly one device, or a message with names like it."""

import tomllib
from pathlib import Path

import pytest

from hornbook.errors import UsageError
from hornbook.plan.devices.device_rates import shares_of
from hornbook.plan.devices.hardware import device_named, known_devices, parse_cluster, read_hardware, this_cluster
from hornbook.plan.devices.names import TEMPLATE, typed
from hornbook.plan.planner import plan_run, price_of
from hornbook.settings.resolve import resolve


@pytest.mark.parametrize(
    ("text", "name", "tera", "gib"),
    [
        ("A10", "A10", 125.0, 22.1),
        ("a10g", "A10G", 70.0, 22.1),
        ("L4", "L4", 121.0, 22.0),
        ("L40", "L40", 181.0, 44.4),
        ("L40S", "L40S", 362.0, 44.5),
        ("H20", "H20", 148.0, 95.1),
        ("H200", "H200 SXM", 989.4, 139.8),
        ("h100-80gb", "H100 SXM", 989.4, 79.1),
        ("NVIDIA H100 80GB HBM3", "H100 SXM", 989.4, 79.1),
        ("A100", "A100", 312.0, 79.1),
        ("A100-SXM4-40GB", "A100 40GB", 312.0, 39.4),
        ("A100-PCIE-40GB", "A100 PCIe 40GB", 312.0, 39.4),
        ("4090", "RTX 4090", 165.2, 23.5),
        ("A6000", "RTX A6000", 154.8, 47.5),
        ("6000-ada", "RTX 6000 Ada", 364.2, 47.5),
        ("V100-16GB", "V100 SXM2 16GB", None, 15.8),
        ("M1-Max-32GB", "M1 Max", None, 24.0),
    ],
)
def test_a_name_is_exactly_one_device(text: str, name: str, tera: float | None, gib: float) -> None:
    found = device_named(text)
    assert (found.name, found.bf16, found.memory) == (name, tera, gib)


def test_every_name_is_that_of_its_device() -> None:
    for each in known_devices():
        assert device_named(typed(each)).name == each.name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A1O", "no device 'A1O'; did you mean A10?"),
        ("H100-94GB", "did you mean H100-SXM, H100-NVL, H100-PCIe"),
        ("A100-64GB", "no device 'A100-64GB'"),
        ("RTX 4090 Laptop", "no device 'RTX 4090 Laptop'; did you mean RTX-4090"),
        ("L", "no device 'L'; did you mean L4"),
        ("Foo", "no device 'Foo'. Known are A10, A100"),
        ("1x24GB", "24GB is a size of memory, not a device; devices with it: A10, A10G, RTX-3090, L4, RTX-4090"),
        ("24 GiB", "devices with it: A10"),
        ("1x4GB", "no known device has it"),
        ("M1-Max", "it is sold with 32, 64 GB of memory: write which, M1-Max-64GB"),
        ("M1-Max-48GB", "no device 'M1-Max-48GB'; did you mean M1-Max-64GB"),
        ("8xM3-Max", "M3-Max: Apple publishes no rate of its GPU"),
    ],
)
def test_another_name_is_refused_with_those_like_it(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_cluster(text)
    assert said in str(caught.value)


def test_no_number_of_the_template_can_be_planned_with(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(TEMPLATE.format(name="Foo 9"))
    asked = tomllib.loads(file.read_text())["device"][0]
    assert {value for key, value in asked.items() if key != "name"} == {"?"}
    with pytest.raises(UsageError) as caught:
        read_hardware(file)
    assert all(f"{key}: Input should be a valid" in str(caught.value) for key in asked if key != "name")


def test_a_device_of_ones_own_has_its_exact_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[[device]]\nname = "H100"\nhour = 2.0\n[[device]]\nname = "Foo 90"\nfp32 = 1\nmemory = 8\nbandwidth = 9\n'
    )
    own = read_hardware(file)
    assert (device_named("H100", own).hour, device_named("H100", own).bf16) == (2.0, 989.4)
    assert device_named("foo-90", own).fp32 == 1.0
    with pytest.raises(UsageError, match="did you mean Foo-90"):
        device_named("Foo9", own)


def test_a_chip_has_the_calibration_of_its_like_and_no_other() -> None:
    assert shares_of(device_named("A800")) == shares_of(device_named("A100"))
    assert shares_of(device_named("A10")) == shares_of(device_named("L40")) != shares_of(device_named("A100"))
    assert price_of(parse_cluster("8xA100"))[0] is not None
    assert price_of(parse_cluster("8xA10"))[0] is None


def test_a_card_without_bf16_is_planned_in_fp32() -> None:
    for name in ("T4", "V100", "M2-24GB"):
        assert plan_run(resolve("tiny", environ={}).recipe, parse_cluster(name)).best.precision == "fp32"
    with pytest.raises(UsageError, match="T4 has no products in bf16"):
        plan_run(resolve("tiny", ["train.precision=bf16"], environ={}).recipe, parse_cluster("T4"))


def test_an_unknown_gpu_of_this_machine_is_no_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "information").write_text("Model: \t\t NVIDIA A100-SXM4-40GB\n")
    assert this_cluster(tmp_path).device.name == "A100 40GB"
    (tmp_path / "0" / "information").write_text("Model: \t\t NVIDIA RTX A1000\n")
    with pytest.raises(UsageError, match="this machine's NVIDIA RTX A1000: no device"):
        this_cluster(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert this_cluster(tmp_path).device.is_cpu
