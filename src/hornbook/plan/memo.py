"""Results kept by the identity of a model's configuration, which holds lists and cannot be a key itself."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from hornbook.model.config.model import ModelConfig

P = ParamSpec("P")
T = TypeVar("T")
KEPT = 256
"""Results that a function keeps."""


class _ByIdentity:
    """A configuration as a key: it is frozen, and the key keeps it alive, so that its id stays its own."""

    def __init__(self, model: ModelConfig) -> None:
        self.model = model

    def __hash__(self) -> int:
        return id(self.model)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self.model is other.model


def kept_by_model(
    function: Callable[Concatenate[ModelConfig, P], T],
) -> Callable[Concatenate[ModelConfig, P], T]:
    """The function, whose other arguments are hashable, with its results kept; nobody may change them."""

    @lru_cache(KEPT)
    def keyed(key: _ByIdentity, *rest: Any, **named: Any) -> T:
        return function(key.model, *rest, **named)

    @wraps(function)
    def wrapper(model: ModelConfig, /, *rest: P.args, **named: P.kwargs) -> T:
        return keyed(_ByIdentity(model), *rest, **named)

    return wrapper
