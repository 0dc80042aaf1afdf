"""Update rules that treat a matrix as a matrix: Muon and SOAP. They leave other parameters to another rule."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from hornbook.optim.config.rule import Factors, Shape, StateTensor, UpdateRule
from hornbook.settings.fields import Count, Number, named

if TYPE_CHECKING:
    from torch.optim import Optimizer


class MuonRule(UpdateRule):
    """Momentum whose singular values are all made about 1 (Jordan et al. 2024, kellerjordan.github.io/posts/muon)."""

    whole: ClassVar = True
    kind: Literal["muon"] = "muon"
    lr: Number = Field(default=3e-4, gt=0)
    """Peak learning rate; with `scale = "match_rms"` that of AdamW, with `shape` about 0.02."""
    momentum: Number = Field(default=0.95, ge=0, lt=1)
    """Decay of the mean of gradients."""
    nesterov: bool = True
    """Look ahead: mix the gradient into the mean once more."""
    scale: Literal["match_rms", "shape"] = "match_rms"
    """Factor on the update of a matrix of r rows and c columns: `match_rms` is 0.2 sqrt(max(r, c)), so that a value
    changes as much as with AdamW (Moonlight, arXiv 2502.16982); `shape` is sqrt(max(1, r / c)) (Jordan)."""
    iteration: Literal["quintic", "polar_express"] = "quintic"
    """Newton-Schulz iteration: `quintic` brings singular values near 1 fast and keeps them within 0.7 to 1.2 (Jordan);
    `polar_express` converges to 1 (arXiv 2505.16932)."""
    iterations: Count = Field(default=5, ge=1, le=20)
    """Number of iterations."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the iterations; `auto` is bfloat16 where the device multiplies it natively, else float32."""

    def refusal(self, role: str, shape: Shape) -> str:
        if role != "matrix":
            return f"Muon is for the matrices between embedding and head, and this is of role {role!r}"
        return "" if len(shape) in (2, 3) else f"it has {len(shape)} dims, a matrix 2 and stacked ones 3"

    def mup_problem(self) -> str:
        """The factors are those of AdamW, whose updates have the size that `match_rms` gives."""
        return "" if self.scale == "match_rms" else 'its scale "shape" follows the width by itself: take "match_rms"'

    def state_tensors(self, shape: Shape) -> tuple[StateTensor, ...]:  # noqa: ARG002
        return (StateTensor("momentum_buffer"),)

    @property
    def narrow_products(self) -> bool:
        return self.dtype != "float32"

    def update_operations(self, shape: Shape) -> float:
        """Each iteration: X X' and its product with X of the longer side, and its square."""
        short, long = sorted(shape[-2:])
        return self.iterations * (4.0 * short * short * long + 2.0 * short**3)

    def build(self, groups: list[dict[str, Any]]) -> "Optimizer":
        return named("optim.muon:MuonUpdate")(groups, self)


class SoapRule(UpdateRule):
    """Adam in the eigenbasis of Shampoo's preconditioner (Vyas et al. 2024, arXiv 2409.11321, algorithm 3)."""

    whole: ClassVar = True
    kind: Literal["soap"] = "soap"
    lr: Number = Field(default=3e-3, gt=0)
    """Peak learning rate."""
    weight_decay: Number = Field(default=0.01, ge=0)
    """Decoupled decay, multiplied by the learning rate."""
    beta1: Number = Field(default=0.95, ge=0, lt=1)
    """Decay of the first moment."""
    beta2: Number = Field(default=0.95, ge=0, lt=1)
    """Decay of the second moment, and of the sums that the eigenbasis is of."""
    eps: Number = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""
    refresh_every: Count = Field(default=10, ge=1)
    """Steps between two updates of the eigenbasis (power iteration and QR)."""
    max_side: Count = Field(default=10_000, ge=0)
    """Longest side of a matrix that has an eigenbasis; a longer one has none, and 0 is AdamW."""
    one_sided: bool = False
    """Only the shorter side of a matrix has an eigenbasis."""

    def sides(self, shape: Shape) -> tuple[bool, bool]:
        """Whether there is an eigenbasis for the (columns, rows) of matrices of this shape: (left, right)."""
        left, right = (side <= self.max_side for side in shape[-2:])
        if self.one_sided and left and right:
            return shape[-2] < shape[-1], shape[-2] >= shape[-1]
        return left, right

    def refusal(self, role: str, shape: Shape) -> str:  # noqa: ARG002
        return "" if len(shape) in (2, 3) else f"it has {len(shape)} dims, a matrix 2 and stacked ones 3"

    def state_tensors(self, shape: Shape) -> tuple[StateTensor, ...]:
        """`left` and `right` are means of G G' and G' G, `left_basis` and `right_basis` their eigenvectors."""
        kept = [StateTensor("step", "scalar", "float32"), StateTensor("exp_avg"), StateTensor("exp_avg_sq")]
        for side, present in zip(("left", "right"), self.sides(shape), strict=True):
            kept += [StateTensor(name, side) for name in (side, f"{side}_basis")] if present else []  # pyright: ignore
        return tuple(kept)

    def update_operations(self, shape: Shape) -> float:
        """Of each side with an eigenbasis: the mean of squares, to the basis and back; and at each refresh the moment
        turned, two products of squares and a QR decomposition with its Q (8 / 3 n^3)."""
        found, size = 0.0, float(shape[-2] * shape[-1])
        for side, present in zip(shape[-2:], self.sides(shape), strict=True):
            refresh = 4 * size * side + (4 + 8 / 3) * side**3
            found += present * (6 * size * side + refresh / self.refresh_every)
        return found

    def group_settings(self, decayed: bool, factors: Factors) -> dict[str, float]:
        return {**super().group_settings(decayed, factors), "eps": self.eps * factors.eps}

    def build(self, groups: list[dict[str, Any]]) -> "Optimizer":
        return named("optim.soap:SoapUpdate")(groups, self)
