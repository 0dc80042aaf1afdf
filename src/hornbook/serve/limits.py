"""What a server takes on at most, so that no request and no number of them can use it up."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Sizes and times; what exceeds one is refused with a 4xx or 503 status that says so."""

    slots: int = 16
    """Texts that are generated together."""
    queue: int = 128
    """Texts that may wait for a slot."""
    context: int = 1024
    """Tokens of prompt and text together."""
    seconds: float = 300.0
    """From the arrival of a request to its end."""
    body_bytes: int = 2**21
    body_seconds: float = 30.0
    """For the whole body of a request to arrive."""
    choices: int = 64
    """Texts that one request may ask for: prompts times `n`."""
    prefill: int = 256
    """Tokens of prompts that are read between two steps of the texts that are generated."""
    drain_seconds: float = 30.0
    """For requests to end once the server is to stop."""
