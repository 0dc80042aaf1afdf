"""The letters of a text, most frequent first: which of them a vocabulary of pieces of words holds.

The tokenizers library breaks ties between letters in the order of a hash table that differs from process to
process; counted here, the choice is the same every time.
"""

from collections import Counter
from collections.abc import Callable, Iterable

_MIN_COUNT = 2
"""As in the training of pieces: what occurs once is chance."""


def frequent_letters(texts: Iterable[list[str]], most: int, normalize: Callable[[str], str] = str) -> list[str]:
    """The `most` most frequent characters of the normalised texts in the order of Unicode; ties go to the lower one."""
    counts: Counter[str] = Counter()
    for batch in texts:
        for text in batch:
            counts.update(normalize(text))
    ranked = sorted(counts, key=lambda letter: (-counts[letter], letter))
    return sorted(letter for letter in ranked[:most] if counts[letter] >= _MIN_COUNT)
