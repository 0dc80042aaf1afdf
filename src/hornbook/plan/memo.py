"""Results kept by the identity of a model's configuration, which holds lists and cannot be a key itself."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from hornbook.model.config.model import ModelConfig
from hornbook.settings.fields import Config

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=Config)
KEPT = 256
"""Results that a function keeps."""


class ByIdentity(Generic[C]):
    """A configuration as a key: it is frozen, and the key keeps it alive, so that its id stays its own."""

    def __init__(self, config: C) -> None:
        self.config = config

    def __hash__(self) -> int:
        return id(self.config)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and self.config is other.config  # pyright: ignore[reportUnknownMemberType]


def kept_by_model(
    function: Callable[Concatenate[ModelConfig, P], T],
) -> Callable[Concatenate[ModelConfig, P], T]:
    """The function, whose other arguments are hashable, with its results kept; nobody may change them."""

    @lru_cache(KEPT)
    def keyed(key: ByIdentity[ModelConfig], *rest: Any, **named: Any) -> T:
        return function(key.config, *rest, **named)

    @wraps(function)
    def wrapper(model: ModelConfig, /, *rest: P.args, **named: P.kwargs) -> T:
        return keyed(ByIdentity(model), *rest, **named)

    return wrapper
