"""A user's own function as a step, by its import path."""

import os
import sys
from collections.abc import Callable
from typing import Any

from hornbook.errors import UsageError
from hornbook.settings.former import import_outside
from hornbook.text.ingest.document import Document
from hornbook.text.ingest.rows import is_valid_unicode
from hornbook.text.refinery.step import Edit


class PythonStep(Edit):
    """Calls `package.module:function` with each document; what it gives back is the document from then on."""

    counters = ("changed",)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._call = load_function(config.call)
        self.reason = config.label if config.name else config.call

    def edit(self, document: Document) -> tuple[str | None, tuple[int, ...]]:
        """The function's text; None where it drops the document. Raises UsageError naming document and function."""
        try:
            found = self._call(document)
        except Exception as error:
            message = f"{self.config.call} failed on document {document.id!r} ({document.origin}): "
            raise UsageError(f"{message}{type(error).__name__}: {error}") from error
        text = found.text if isinstance(found, Document) else found
        if text is not None and not isinstance(text, str):
            raise UsageError(
                f"{self.config.call} gave {type(found).__name__} for document {document.id!r}: "
                "give a Document, its new text, or None to drop it"
            )
        if text is not None and not is_valid_unicode(text):
            raise UsageError(
                f"{self.config.call} gave text with a lone surrogate for document {document.id!r}: "
                "it cannot be written as UTF-8; take such characters out"
            )
        return text, (int(text is not None and text != document.text),)


def load_function(path: str) -> Callable[[Document], Any]:
    """The function at `package.module:function`; the current folder counts as a place for modules."""
    module, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = getattr(import_outside(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"step {path!r} cannot be imported: {error}") from error
    if not callable(found):
        raise UsageError(f"step {path!r} is not a function")
    return found
