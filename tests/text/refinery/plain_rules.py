"""The published rules, spelled slowly from the papers over plain Python strings: the tests' reference."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

Split = Callable[[str], list[str]]
Rule = tuple[str, float]
"""The key of a threshold and the value that is held against it."""


def in_ranges(character: str, ranges: str) -> bool:
    pairs = [part.partition("-") for part in ranges.split()]
    return any(int(first, 16) <= ord(character) <= int(last or first, 16) for first, _, last in pairs)


def is_symbol(character: str, symbols: str, terminals: str) -> bool:
    return in_ranges(character, symbols) or character in terminals


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else (float("inf") if part else 0.0)


def is_word_character(character: str) -> bool:
    kind = unicodedata.category(character)
    return character.isalnum() or character.isnumeric() or kind == "Pc" or kind[0] == "M" or character in "\u200c\u200d"


def sentences(line: str, terminals: str) -> int:
    count, inside, marked = 0, False, False
    for character in line:
        if is_word_character(character):
            inside, marked = True, False
        elif inside and character in terminals:
            if character.isascii():
                marked = True
            else:
                count, inside, marked = count + 1, False, False
        elif marked and character.isspace():
            count, inside, marked = count + 1, False, False
    return count + inside


def quality(text: str, split: Split, languages: Sequence[Sequence[str]], symbols: str, terminals: str) -> list[Rule]:
    """Gopher, section A.1.1, in its order."""
    words, lines = split(text), text.splitlines()
    plain = [word for word in words if not all(is_symbol(character, symbols, terminals) for character in word)]
    mean = ratio(sum(map(len, plain)), len(plain))
    ellipses = text.count("...") + text.count("\u2026")
    return [
        ("min_words", len(plain)),
        ("max_words", len(plain)),
        ("min_word_length", mean),
        ("max_word_length", mean),
        ("max_hashes", ratio(text.count("#"), len(words))),
        ("max_ellipses", ratio(ellipses, len(words))),
        ("max_bullet_lines", ratio(sum(line.lstrip().startswith(("-", "\u2022")) for line in lines), len(lines))),
        ("max_ellipsis_lines", ratio(sum(line.rstrip().endswith(("...", "\u2026")) for line in lines), len(lines))),
        ("min_alphabetic_words", ratio(sum(any(map(str.isalpha, word)) for word in words), len(words))),
        ("min_stop_words", max((len(set(stop) & set(words)) for stop in languages), default=0)),
    ]


def repeats(parts: Sequence[str]) -> tuple[int, int]:
    again = [part for place, part in enumerate(parts) if part in parts[:place]]
    return len(again), sum(map(len, again))


def top_gram(words: Sequence[str], n: int) -> int:
    grams = Counter(" ".join(words[i : i + n]) for i in range(len(words) - n + 1))
    if not grams:
        return 0
    most = max(grams.values())
    return next(len(gram) * most for gram in grams if grams[gram] == most)


def duplicate_grams(words: Sequence[str], n: int) -> int:
    seen: set[str] = set()
    total = place = 0
    while place + n <= len(words):
        gram = "".join(words[place : place + n])
        total += len(gram) if gram in seen else 0
        place += n if gram in seen else 1
        seen.add(gram)
    return total


def repetition(text: str, split: Split) -> list[Rule]:
    """Gopher, Table A1."""
    paragraphs, lines, words = re.split(r"\n{2,}", text.strip()), re.split(r"\n+", text), split(text)
    (number, characters), (line_number, line_characters) = repeats(paragraphs), repeats(lines)
    return [
        ("max_duplicate_paragraphs", number / len(paragraphs)),
        ("max_duplicate_paragraph_characters", ratio(characters, len(text))),
        ("max_duplicate_lines", line_number / len(lines)),
        ("max_duplicate_line_characters", ratio(line_characters, len(text))),
        *((f"max_top_{n}_gram", ratio(top_gram(words, n), len(text))) for n in (2, 3, 4)),
        *((f"max_duplicate_{n}_grams", ratio(duplicate_grams(words, n), len(text))) for n in range(5, 11)),
    ]


def fineweb(text: str, split: Split, terminals: str, short: int) -> list[Rule]:
    """FineWeb, section 3.5."""
    lines = [line for line in text.split("\n") if line.strip()]
    return [
        ("min_terminal_lines", ratio(sum(line.endswith(tuple(terminals)) for line in lines), len(lines))),
        ("max_short_lines", ratio(sum(len(line) <= short for line in lines), len(lines))),
        ("max_duplicate_characters", ratio(repeats(lines)[1], len(text.replace("\n", "")))),
        ("max_newlines", ratio(text.count("\n"), len(split(text)))),
    ]


def c4(text: str, terminals: str) -> tuple[str, str]:
    """(reason or "", the text that stays): C4, section 2.2, lines and then the document, as its code has them."""
    kept: list[str] = []
    policies = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
    for each in text.splitlines():
        line, words = each.strip(), each.split()
        if any(len(word) > 1000 for word in words):
            continue
        line = re.sub(r"\[\d*]|\[edit]|\[citation needed]", "", line)
        if not line.endswith((".", "?", "!", '"', "'")) or line.endswith("...") or len(words) < 3:
            continue
        if "lorem ipsum" in line.lower():
            return "lorem_ipsum", ""
        if "javascript" in line.lower():
            continue
        if "{" in line:
            return "curly_bracket", ""
        if not any(policy in line.lower() for policy in policies):
            kept.append(line)
    enough = sum(sentences(line, terminals) for line in kept) >= 5
    return ("", "\n".join(kept).strip()) if enough else ("min_sentences", "")


def first_broken(rules: Sequence[Rule], config: Any) -> str:
    """The key of the first rule that is broken, or ""."""
    for key, value in rules:
        threshold = getattr(config, key)
        if threshold is not None and (value > threshold if key.startswith("max_") else value < threshold):
            return key
    return ""
