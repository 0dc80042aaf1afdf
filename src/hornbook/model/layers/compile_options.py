"""Options of torch.compile, by what the installed torch knows."""

import inspect
from typing import Any

import torch


def compile_options(**options: Any) -> dict[str, Any]:
    """Those that torch.compile takes; before 2.13 it has no limit for a single function."""
    known = inspect.signature(torch.compile).parameters
    return {name: value for name, value in options.items() if name in known}
