"""A user's own function as a step, by its import path."""

from typing import Any

from hornbook.errors import UsageError
from hornbook.text.config.modules import load_function
from hornbook.text.ingest.document import Document, is_valid_unicode
from hornbook.text.refinery.step import Edit


class PythonStep(Edit):
    """Calls `package.module:function` with each document; the result replaces the document."""

    counters = ("changed",)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._call = load_function(config.call)
        self.reasons = (config.name or config.call,)

    def edit(self, document: Document) -> tuple[str | None, tuple[int, ...]]:
        """The function's text, None to drop the document. Raises UsageError naming document and function."""
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
