"""What a microbatch takes in some blocks, by what it goes into."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Passes:
    """Seconds of a microbatch in some blocks."""

    forward: float = 0.0
    backward: float = 0.0
    again: float = 0.0
    sent: float = 0.0
    """Forward messages that nothing hides."""
    answered: float = 0.0
    """The same backward."""

    def __add__(self, other: "Passes") -> "Passes":
        again, sent, answered = self.again + other.again, self.sent + other.sent, self.answered + other.answered
        return Passes(self.forward + other.forward, self.backward + other.backward, again, sent, answered)

    @property
    def total(self) -> float:
        """Seconds of all of it."""
        return self.forward + self.backward + self.again + self.sent + self.answered
