"""Modified Kneser-Ney over bytes as Chen and Goodman (1999) write it down: slow, nothing left out."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache

FALLBACK = (0.5, 1.0, 1.5)


class PlainKneserNey:
    """Interpolated p(byte | context) of an order; line feeds stand before each text."""

    def __init__(self, texts: Sequence[str], order: int) -> None:
        occurring: Counter[bytes] = Counter()
        for text in texts:
            data = b"\n" * (order - 1) + text.encode()
            occurring.update(data[i : i + order] for i in range(len(data) - order + 1))
        self.order = order
        self.counts: dict[int, dict[bytes, int]] = {order: dict(occurring)}
        for length in range(order - 1, 0, -1):
            before: dict[bytes, set[int]] = defaultdict(set)
            for gram in self.counts[length + 1]:
                before[gram[1:]].add(gram[0])
            self.counts[length] = {gram: len(bytes_) for gram, bytes_ in before.items()}
        self.discounts = {length: self._discounts(list(counts.values())) for length, counts in self.counts.items()}
        self.followers: dict[bytes, list[int]] = defaultdict(list)
        for counts in self.counts.values():
            for gram, count in counts.items():
                self.followers[gram[:-1]].append(count)
        self.probability = cache(self._probability)

    @staticmethod
    def _discounts(counts: list[int]) -> tuple[float, float, float]:
        """Equation 26."""
        n1, n2, n3, n4 = (counts.count(k) for k in (1, 2, 3, 4))
        if not (n1 and n2 and n3):
            return FALLBACK
        y = n1 / (n1 + 2 * n2)
        found = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
        return found if all(0 < d < k for k, d in enumerate(found, start=1)) else FALLBACK

    def _probability(self, byte: int, context: bytes) -> float:
        """The interpolated form: equation 25 over the adjusted counts."""
        lower = self.probability(byte, context[1:]) if context else 1 / 256
        counts = self.followers.get(context, [])
        if not counts:
            return lower
        discount = (0.0, *self.discounts[len(context) + 1])
        own = self.counts[len(context) + 1].get(context + bytes([byte]), 0)
        left_over = sum(discount[min(count, 3)] for count in counts)
        return (own - discount[min(own, 3)] + left_over * lower) / sum(counts)
