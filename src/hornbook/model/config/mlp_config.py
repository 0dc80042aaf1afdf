"""Configuration of what each position computes alone: an MLP, a gated one, or a mixture of experts."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from hornbook.errors import UsageError
from hornbook.model.config.part import Cut, LayerPart, Model, Part, Problems, Rows, Weight, linear, placed
from hornbook.settings.fields import OPEN, Count, Number

Activation = Literal["gelu", "gelu_tanh", "relu", "relu2", "silu"]


class _MLP(LayerPart):
    """Some projections to the inner width, `ModelConfig.hidden`, and one back."""

    inner: ClassVar[Sequence[str]]
    """Names of the projections to it."""

    def build(self, model: Model, _layer: int) -> Any:
        return self.make(model.width, model.hidden, self)

    def weights(self: Any, model: Model) -> list[Weight]:
        width, hidden, found = model.width, model.hidden, list[Weight]()
        for name in self.inner:
            found += linear(name, width, hidden, Cut(0, "hidden", hidden), bias=self.bias, joined=bool(found))
        return found + linear("down", hidden, width, Cut(1, "hidden", hidden), bias=self.bias)

    def of_rank(self, model: Model, ranks: int) -> Any:
        return self.model_copy(update={"hidden": -(-model.hidden // ranks)})


class PlainMLPConfig(_MLP):
    """Two projections with an activation between."""

    builder = "mlp.mlp:MLP"
    inner = ("up",)
    kind: Literal["mlp"] = "mlp"
    hidden: Count | None = Field(default=None, ge=1)
    """Inner width; by default 4 x width."""
    activation: Activation = "gelu_tanh"
    """`gelu_tanh` is GPT-2's approximation, `gelu` the exact form, `relu2` the square of `relu`."""
    bias: bool = True
    """Biases of both projections."""

    def saved_bytes(self, model: Model, rows: Rows) -> int:
        inner = 1 if rows.rebuilding or self.activation == "relu" else 2
        return rows.values(inner * model.hidden) + rows.cast(self.num_matmul_weights(model))


class GLUConfig(_MLP):
    """Gated linear unit (Shazeer 2020, arXiv 2002.05202); with `silu` it is SwiGLU."""

    builder = "mlp.mlp:GLU"
    inner = ("gate", "up")
    kind: Literal["glu"] = "glu"
    hidden: Count | None = Field(default=None, ge=1)
    """Inner width; by default 8/3 x width, rounded up to a multiple of 64."""
    activation: Activation = "silu"
    """Activation of the gate."""
    bias: bool = False
    """Biases of the three projections."""

    def saved_bytes(self, model: Model, rows: Rows) -> int:
        matrix = model.width * model.hidden
        return rows.values(self._kept(rows) * model.hidden) + rows.stacked(2 * matrix) + rows.cast(matrix)

    def _kept(self, rows: Rows) -> int:
        """Values kept of each inner dim: gate and up, the activation and what it is made of, and the product."""
        match self.activation:
            case "silu":
                return 4 if rows.eager and not rows.rebuilding else 3 if self.bias and not rows.rebuilding else 2
            case "relu":
                return 3 if rows.rebuilding else 4
            case "relu2":
                return 3 if rows.rebuilding else 5
            case _:
                return 2 if rows.rebuilding else 4


class SoftmaxRouterConfig(Part):
    """Softmax over all experts, the largest chosen (Mixtral, OLMoE, Qwen3)."""

    builder = "mlp.router:SoftmaxRouter"
    kind: Literal["softmax"] = "softmax"
    renormalize: bool = True
    """The chosen ones' weights sum to 1 (Mixtral, Qwen3; not OLMoE)."""
    jitter: float = Field(default=0.0, ge=0, lt=1)
    """In training the router's inputs are multiplied by numbers from [1 - jitter, 1 + jitter]."""


class SigmoidRouterConfig(Part):
    """Sigmoid scores; a bias that no gradient reaches takes part in the choice only (DeepSeek-V3, arXiv 2412.19437)."""

    builder = "mlp.router:SigmoidRouter"
    kind: Literal["sigmoid"] = "sigmoid"
    renormalize: bool = True
    """The chosen ones' weights sum to 1 before `scale`."""
    scale: Number = 1.0
    """Factor of the weights."""
    groups: Count = Field(default=1, ge=1)
    """Number of groups that the experts are divided into."""
    groups_active: Count = Field(default=1, ge=1)
    """Number of groups that a token chooses from: those with the largest sum of their two best scores."""
    balance_rate: Number = Field(default=1e-3, ge=0)
    """Step of the bias after each update, against the sign of an expert's excess load (arXiv 2408.15664)."""


class SwitchRouterConfig(Part):
    """One expert per token, its softmax probability as weight (Fedus et al. 2021, arXiv 2101.03961)."""

    builder = "mlp.router:SwitchRouter"
    kind: Literal["switch"] = "switch"
    jitter: float = Field(default=0.01, ge=0, lt=1)
    """In training the router's inputs are multiplied by numbers from [1 - jitter, 1 + jitter]."""


def expert_room(capacity: float, active: int, count: int, tokens: int) -> int:
    """Choices of a row of `tokens` tokens that an expert with a capacity serves in training."""
    return max(1, int(capacity * active * tokens / count))


RouterConfig = Annotated[SoftmaxRouterConfig | SigmoidRouterConfig | SwitchRouterConfig, Field(discriminator="kind")]


class ExpertsConfig(LayerPart):
    """A mixture of gated linear units, of which each token uses a few (Shazeer et al. 2017, arXiv 1701.06538)."""

    builder = "mlp.experts:Experts"
    kind: Literal["experts"] = "experts"
    count: Count = Field(default=8, ge=1)
    """Experts in each layer."""
    active: Count = Field(default=2, ge=1)
    """Experts each token uses."""
    hidden: Count | None = Field(default=None, ge=1)
    """Inner width of an expert; by default as of a GLU."""
    activation: Activation = "silu"
    """Activation of the gates."""
    router: RouterConfig = SoftmaxRouterConfig()
    """Which experts a token uses, and their weights."""
    shared_hidden: Count | None = Field(default=None, ge=1)
    """Inner width of a further expert that every token uses; none by default."""
    capacity: Number | None = Field(default=None, gt=0)
    """In training an expert takes at most capacity * active * tokens / count tokens of a row; the rest pass it by."""
    balance_loss: Number = Field(default=0.01, ge=0)
    """Weight of the loss that is least when all experts of a layer are used evenly (1 then; Switch, eq. 4)."""
    z_loss: Number = Field(default=0.0, ge=0)
    """Weight of the mean squared log-sum of the router's exponentials (ST-MoE, arXiv 2202.08906)."""

    def build(self, model: Model, layer: int) -> Any:
        return self.make(model.width, model.hidden, self, layer)

    def weights(self, model: Model) -> list[Weight]:
        width, hidden, count, active = model.width, model.hidden, self.count, self.active
        shared = [] if self._shared is None else self._shared.weights(self._beside(model))
        return [
            Weight("router.weight", (count, width)),
            Weight("gate", (count, hidden, width), "matrix", Cut(1, "hidden", hidden), active),
            Weight("up", (count, hidden, width), "matrix", Cut(1, "hidden", hidden), active, joined=True),
            Weight("down", (count, width, hidden), "matrix", Cut(2, "hidden", hidden), active),
            *placed("shared", shared),
        ]

    def of_rank(self, model: Model, ranks: int) -> Any:
        sizes = {"hidden": model.hidden, "shared_hidden": self.shared_hidden}
        return self.model_copy(update={name: size and -(-size // ranks) for name, size in sizes.items()})

    @property
    def _shared(self) -> GLUConfig | None:
        """The expert that every token uses."""
        hidden = self.shared_hidden
        return None if hidden is None else GLUConfig(hidden=hidden, activation=self.activation)

    def _beside(self, model: Model) -> Model:
        """The model as the expert that every token uses sees it."""
        return model.model_copy(update={"mlp": self._shared})

    @property
    def has_losses(self) -> bool:
        """Whether rows have losses of routing, which the objective weights."""
        return bool(self.balance_loss or self.z_loss)

    def saved_bytes(self, model: Model, rows: Rows) -> int:
        """Gate and up of every choice, its weight, what the router kept, and the expert that serves all.

        Raises UsageError where that depends on the routing, or on the number of tokens of each expert.
        """
        if self.activation != "silu" or self.capacity is not None:
            text = 'experts with another activation than "silu", or with a capacity,'
            raise UsageError(f"what {text} keep for backward is not known before they run")
        kept = rows.values(2 * model.hidden * self.active) + 4 * rows.tokens * self.active
        if rows.eager:
            kept += self._saved_eagerly(model, rows)
        return kept + self._saved_routing(model, rows) + self._saved_losses(rows) + self._saved_shared(model, rows)

    def _saved_eagerly(self, model: Model, rows: Rows) -> int:
        """What each choice goes through, in and out, where its gate is torch's operations; its place; the matrices."""
        inner = (2 if rows.rebuilding else 3) * model.hidden
        kept = rows.values(self.active * (2 * model.width + inner)) + 24 * rows.tokens * self.active
        if rows.itemsize == 4:
            return kept
        return kept + rows.itemsize * (3 * model.width * model.hidden * self.count - rows.tokens * self.active)

    def _saved_routing(self, model: Model, rows: Rows) -> int:
        """Scores of all experts and the choice; what weights are divided by; inputs with jitter and the jitter."""
        kept = 4 * self.count + 8 * self.active
        if self.router.kind == "sigmoid":
            kept += 4  # the sum of all scores
        elif self.router.jitter:
            kept += 2 * 4 * model.width
        if self.router.kind != "switch" and self.router.renormalize:
            kept += 4 * (self.active + 1)
        return rows.tokens * kept

    def _saved_losses(self, rows: Rows) -> int:
        """Which tokens count and how many of a row, each expert's share of a row; logits and their log-sums."""
        balance = 4 * rows.tokens + 4 * rows.rows * (self.count + 1) if self.balance_loss else 0
        return balance + (4 * rows.tokens * (self.count + 2) + 4 * rows.rows if self.z_loss else 0)

    def _saved_shared(self, model: Model, rows: Rows) -> int:
        return 0 if self._shared is None else self._shared.saved_bytes(self._beside(model), rows)

    def problems(self, _model: Model = None) -> Problems:
        if self.active > self.count:
            yield "mlp.active", f"{self.active} experts cannot be active where there are {self.count}"
        router = self.router
        if router.kind == "switch" and self.active != 1:
            yield "mlp.active", f"a switch router chooses one expert: set it to 1, not {self.active}"
        if router.kind != "sigmoid":
            return
        if self.count % router.groups:
            yield "mlp.router.groups", f"{self.count} experts do not divide into {router.groups} groups"
        elif router.groups_active > router.groups:
            yield "mlp.router.groups_active", f"there are {router.groups} groups, not {router.groups_active}"
        elif (room := router.groups_active * self.count // router.groups) < self.active <= self.count:
            text = f"{router.groups_active} groups hold {room} experts, but {self.active} are active"
            yield "mlp.router.groups_active", f"{text}: raise it, or lower the number of groups"


MLPConfig = Annotated[PlainMLPConfig | GLUConfig | ExpertsConfig, Field(discriminator="kind"), *OPEN]
