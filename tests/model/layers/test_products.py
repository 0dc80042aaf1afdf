"""Products of narrow types: widened ones are the narrow ones up to a rounding, forward and backward."""

import time
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from hornbook.model.layers import precision, products
from hornbook.model.layers.precision import Choice, choose_precision
from hornbook.model.layers.products import is_widened, linear, matmul, mm_into

ROUNDING = 2.0**-8
"""Half a unit in the last place of bfloat16, relative."""
CPU = torch.device("cpu")
Product = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """What this CPU is fast at is remembered by the process."""
    remembered = choose_precision, precision.bf16_ratio, products._ask_cpu
    for each in remembered:
        each.cache_clear()
    yield
    for each in remembered:
        each.cache_clear()


@pytest.fixture
def wide(_forget: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that multiplies no narrow type."""
    monkeypatch.setattr(products, "_multiplies", lambda dtype: dtype == torch.float32)


def operands(*shapes: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


CASES: dict[str, tuple[Product, list[tuple[int, ...]]]] = {
    "linear": (linear, [(3, 5, 33), (7, 33)]),
    "linear with a bias": (linear, [(3, 5, 33), (7, 33), (7,)]),
    "linear of one row": (linear, [(33,), (7, 33)]),
    "matrices": (matmul, [(4, 33), (33, 6)]),
    "batches": (matmul, [(2, 3, 4, 33), (2, 3, 33, 6)]),
    "a shared right side": (matmul, [(2, 3, 4, 33), (1, 3, 33, 6)]),
}


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES)
def test_a_widened_product_is_rounded_once(case: str, dtype: torch.dtype) -> None:
    product, shapes = CASES[case]
    narrow = operands(*shapes, dtype=dtype)
    exact = [each.detach().double().requires_grad_() for each in narrow]
    y, wanted = product(*narrow), product(*exact)
    assert y.dtype == dtype
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    y.backward(grad)
    wanted.backward(grad.double())
    for found, right in zip([y, *(x.grad for x in narrow)], [wanted, *(x.grad for x in exact)], strict=True):
        assert found is not None
        assert right is not None
        assert found.dtype == dtype
        # One rounding of each number; what float32 adds to it is a thousand times less, but where sums cancel.
        assert torch.allclose(found.double(), right, rtol=ROUNDING, atol=1e-5)


@pytest.mark.usefixtures("wide")
def test_a_product_into_given_memory() -> None:
    left, right = (each.detach() for each in operands((4, 33), (33, 6)))
    out = torch.empty(4, 6, dtype=torch.bfloat16)
    assert mm_into(left, right, out) is out
    assert torch.equal(out, matmul(left, right))


@pytest.mark.usefixtures("wide")
def test_what_backward_keeps_stays_narrow() -> None:
    kept: list[torch.dtype] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.dtype)
        return tensor

    x, weight = operands((4, 33), (7, 33))
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        linear(x, weight)
        matmul(x, weight.T)
    assert kept == [torch.bfloat16] * 4


def test_other_types_are_multiplied_as_they_are() -> None:
    for dtype in (torch.float32, torch.float64):
        left, right = operands((4, 33), (33, 6), dtype=dtype)
        assert not is_widened(left)
        assert torch.equal(matmul(left, right), left @ right)


def test_a_missing_capability_needs_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "missing_bf16", lambda _device: "no bf16 instructions")
    monkeypatch.setattr(precision, "bf16_ratio", lambda _device: pytest.fail("measured"))
    assert choose_precision(CPU) == Choice("fp32", "no bf16 instructions")
    assert is_widened(torch.ones(1, dtype=torch.bfloat16))


@pytest.mark.parametrize(("ratio", "chosen"), [(2.0, "bf16"), (0.5, "fp32"), (1.0, "fp32")])
def test_a_capability_is_settled_by_a_measurement(monkeypatch: pytest.MonkeyPatch, ratio: float, chosen: str) -> None:
    monkeypatch.setattr(precision, "missing_bf16", lambda _device: "")
    monkeypatch.setattr(precision, "bf16_ratio", lambda _device: ratio)
    assert choose_precision(CPU).precision == chosen
    assert is_widened(torch.ones(1, dtype=torch.bfloat16)) == (chosen == "fp32")


def test_compiled_code_takes_the_answer_and_does_not_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the measurement is traced: a clock would break the graph."""
    monkeypatch.setattr(products, "choose_precision", lambda _device: Choice("fp32", f"{time.perf_counter()}"))
    compiled = torch.compile(is_widened, backend="eager", fullgraph=True)
    assert [compiled(torch.ones(1, dtype=dtype)) for dtype in (torch.bfloat16, torch.float32)] == [True, False]


def test_measuring_leaves_the_threads_as_they_were() -> None:
    before = torch.get_num_threads()
    assert precision.bf16_ratio(CPU) > 0
    assert torch.get_num_threads() == before


def test_a_gpu_is_asked_for_its_own_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def supported(including_emulation: bool) -> bool:
        asked.append(including_emulation)
        return False

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert choose_precision(torch.device("cuda")).precision == "fp32"
    assert asked == [False]
