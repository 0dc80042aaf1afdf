"""Number formats: every rounding is that of torch and of the engine, bit for bit."""

from typing import Any

import numpy as np
import pytest

from hornbook.errors import UsageError
from hornbook.studio.explore.float_formats import BF16, FORMATS, FP16, Int8, numbers_between
from hornbook.studio.explore.page_answer import answered
from hornbook.studio.explore.views import Table
from hornbook.studio.explore.widgets.number_formats import number_formats

FORMS = {form.name: form for form in FORMATS}
TORCH = {"fp32": ("float32", "int32"), "fp16": ("float16", "int16"), "bf16": ("bfloat16", "int16")}
TORCH |= {"fp8 e4m3": ("float8_e4m3fn", "uint8"), "fp8 e5m2": ("float8_e5m2", "uint8")}


def samples() -> np.ndarray:
    """float32: random bits, common magnitudes, all numbers of fp16 and of bf16, and the middles between them."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 20_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    usual = np.float32(rng.normal(size=20_000) * 10.0 ** rng.uniform(-9, 6, 20_000))
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    brains = (np.arange(0x7F80, dtype=np.uint32) << 16).view(np.float32)
    middles = [(each[1:] / 2 + each[:-1] / 2).astype(np.float32) for each in (halves, brains)]
    special = np.array([0.0, np.inf, 448, 464, 480, 61439, 61440, 65519, 65520, 3.3961775e38], np.float32)
    values = np.concatenate([bits[np.isfinite(bits)], usual, halves, brains, *middles, special])
    return np.concatenate([values, -values])


@pytest.mark.parametrize("name", FORMS)
def test_rounding_is_that_of_torch_bit_for_bit(name: str) -> None:
    torch = pytest.importorskip("torch")
    form, values = FORMS[name], samples()
    if not form.has_infinity:  # torch before 2.13 makes NaN of larger numbers; the engine clamps them first
        values = np.clip(values, -form.largest, form.largest)
    dtype, integer = (getattr(torch, each) for each in TORCH[name])
    stored = torch.from_numpy(values).to(dtype)
    mask = 2 ** (1 + form.exponent + form.mantissa) - 1
    expected = stored.view(integer).numpy().astype(np.int64) & mask
    signs = np.signbit(values) * 2 ** (form.exponent + form.mantissa)
    assert np.array_equal(abs(form.places(values)) + signs, expected)
    assert np.array_equal(form.nearest(values), stored.double().numpy())
    limits = torch.finfo(dtype)
    assert (form.largest, form.smallest_normal, 2.0**-form.mantissa) == (limits.max, limits.tiny, limits.eps)


@pytest.mark.parametrize(("name", "dtype"), [("fp8 e4m3", "float8_e4m3fn"), ("fp8 e5m2", "float8_e5m2")])
def test_float8_is_that_of_the_engine(name: str, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    from hornbook.model.layers.float8 import quantize

    values = torch.randn(4096, generator=torch.Generator().manual_seed(1))
    codes, scale = quantize(values, getattr(torch, dtype))
    assert np.array_equal(FORMS[name].nearest((values * scale).numpy()), codes.double().numpy())


def test_int8_is_that_of_the_engines_q8_0_files() -> None:
    torch = pytest.importorskip("torch")
    from hornbook.model.export.gguf import quantize

    blocks = torch.randn(256, 32, generator=torch.Generator().manual_seed(1))
    _, codes = quantize(blocks)
    for values, expected in zip(blocks.numpy(), codes.numpy(), strict=True):
        assert np.array_equal(Int8(float(abs(values).max())).places(values), expected)


def test_the_default_scale_is_the_first_of_the_engine() -> None:
    pytest.importorskip("torch")
    from hornbook.parallel.gradients.gradient_norm import FIRST_SCALE

    assert number_formats.ask({}).loss_scale == FIRST_SCALE


def test_fp16_is_that_of_numpy() -> None:
    with np.errstate(over="ignore"):
        assert np.array_equal(FP16.nearest(samples()), samples().astype(np.float16).astype(np.float64))


@pytest.mark.parametrize("low", [-2.5, -1.0, 0.0, 1.0, 1.5])
def test_numbers_of_a_range_are_counted(low: float) -> None:
    every = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float64)
    inside = every[np.isfinite(every) & (every >= low) & (every <= 3)]
    assert numbers_between(FP16, low, 3.0) == len(np.unique(inside))
    assert numbers_between(Int8(127.0), low, 3.0) == len(range(int(np.ceil(low)), 4))
    assert numbers_between(FP16, 1e6, 1e7) == 0


def rows(table: Table) -> dict[str, list[Any]]:
    return {str(row[0]): list(row[1:]) for row in table.rows}


def test_pi_and_its_bits() -> None:
    found = rows(number_formats().stored)
    assert found["fp16"][0] == found["bf16"][0] == "3.140625"
    assert found["fp32"][3] == "0 10000000 10010010000111111011011"
    assert (found["fp8 e4m3"][0], found["fp8 e4m3"][3]) == ("3.25", "0 1000 101")
    assert found["int8"][3] == "00110010"
    assert rows(number_formats(number="70000").stored)["fp16"] == ["infinity", None, None, "0 11111 0000000000"]
    assert rows(number_formats(number="0").stored)["bf16"] == ["0", 0.0, None, "0 00000000 0000000"]


def test_a_small_gradient_is_lost_in_fp16_without_a_scale() -> None:
    found = rows(number_formats(gradient=1e-8).gradients)
    assert found["fp16, scale 1"][1:] == ["underflows to zero", 1.0]
    assert found["fp16, scale 65,536"][1] == found["bf16, scale 1"][1] == "kept"
    large = rows(number_formats(gradient=8, loss_scale=65536).gradients)
    assert large["fp16, scale 65,536"] == ["infinity", "overflows: the step is refused", None]
    assert rows(number_formats(gradient=1e-6).gradients)["fp16, scale 1"][1] == "kept with fewer digits"
    assert BF16.smallest < 1e-40


def test_a_range_has_curves() -> None:
    answer = number_formats(number="0.001:1000")
    assert answer.errors is not None
    assert [curve.name for curve in answer.errors.curves] == [*FORMS, "int8"]
    assert rows(answer.stored)["bf16"][1] <= 2.0**-8
    assert number_formats(number="-1e59:1e59").errors is not None


@pytest.mark.parametrize("number", ["", "pi", "nan", "inf", "1:2:3", "2:1", "1:1", "1e61", "1" * 5000])
def test_other_texts_are_refused(number: str) -> None:
    with pytest.raises(UsageError, match="number = "):
        number_formats(number=number)


def test_the_page_gets_plain_json() -> None:
    found = answered(number_formats, {"number": "1e50", "largest": "1000"})
    assert found["command"] == "hornbook explore number-formats --number 1e50 --largest 1000"
    assert all(place["line"] > 1 for place in number_formats.places())
