"""Which split regexes our kernels know (`bpe/split`); tokenizers with another are left to the tokenizers library."""

from dataclasses import dataclass

PATTERN = (
    r"(?i:'(?:[sdmt]|ll|ve|re))|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
"""The regex of the tokenizers that we train: GPT-4's."""

_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_NANOCHAT = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class Style:
    """How one of the known regexes splits."""

    digits: int
    """Most numbers in a row that stay together; 0 for GPT-2's way, which differs in blanks and line ends too."""


STYLES = {
    PATTERN: Style(3),
    _LLAMA_3: Style(3),
    _LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}"): Style(1),
    _NANOCHAT: Style(2),
    GPT2: Style(0),
}
"""Regex -> style: ours, that of GPT-4 and Llama 3, of Qwen 2, of nanochat, of GPT-2."""
