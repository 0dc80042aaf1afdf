"""Train a byte-level BPE tokenizer (Sennrich et al., arXiv:1508.07909; bytes as in GPT-2) with the tokenizers library.

Text is split by GPT-4's pattern: words with one leading blank or mark, numbers of at most three digits, runs of
marks, line ends and blanks. The 256 bytes are always in the vocabulary, so every text can be encoded.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from hornbook.durable import write_atomic
from hornbook.text.config import BPE
from hornbook.text.store import write_json
from hornbook.text.tokenizer import END_OF_TEXT, Tokenizer

PATTERN = (
    r"(?i:'(?:[sdmt]|ll|ve|re))|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_MIN_FREQUENCY = 2
_SETTINGS = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "clean_up_tokenization_spaces": False,
    "model_max_length": 10**30,
}


def train_bpe(config: BPE, texts: Iterable[list[str]]) -> Tokenizer:
    """Train on batches of texts. Where the text has too few repeated pairs, the vocabulary is smaller than asked."""
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab,
        min_frequency=_MIN_FREQUENCY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    raw.train_from_iterator(texts, trainer)
    return Tokenizer(raw.to_str(pretty=True), None, END_OF_TEXT)


def save_tokenizer(tokenizer: Tokenizer, folder: Path, settings: dict[str, Any] | None = None) -> None:
    """Write tokenizer.json, and the two files by which transformers' AutoTokenizer knows its special tokens.

    `settings`: the tokenizer_config.json it came with; its delimiters are set to those in use.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = {"eos_token": tokenizer.end}
    if tokenizer.delimiter_id != tokenizer.end_id or not settings:
        names["bos_token"] = tokenizer.begin
    write_json(folder / "special_tokens_map.json", names)
    write_json(folder / "tokenizer_config.json", {**(settings or _SETTINGS), **names})
    write_atomic(folder / "tokenizer.json", tokenizer.definition)
