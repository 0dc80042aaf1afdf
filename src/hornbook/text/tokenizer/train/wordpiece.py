"""Train a WordPiece tokenizer (Wu et al., arXiv:1609.08144) as BERT uses it, with the tokenizers library.

Words are split at blanks and marks (each mark and each Chinese character is a word); a piece inside a word is written
with `##` before it. A word whose letters are all known is never unknown, because every letter of the alphabet is in
the vocabulary at the beginning of a word and inside one.

The library's trainer numbers the letters inside words in the order of a hash table, which decides ties between merges
and so makes another vocabulary in every process. Here they are given to it as special tokens, in a fixed order.
"""

import json
from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from hornbook.text.config.text import WordPiece
from hornbook.text.tokenizer.special_tokens import OURS, spell_special_tokens
from hornbook.text.tokenizer.tokenizer import Tokenizer
from hornbook.text.tokenizer.train.characters import frequent_letters

INSIDE = "##"
_MIN_FREQUENCY = 2


def train_wordpiece(config: WordPiece, texts: Iterable[list[str]]) -> Tokenizer:
    """Train on batches of texts, which are read twice; [CLS] and [SEP] delimit documents."""
    names = OURS["wordpiece"]
    raw = tokenizers.Tokenizer(models.WordPiece(unk_token=names["unk"], max_input_chars_per_word=100))
    raw.normalizer = normalizers.BertNormalizer(lowercase=config.lowercase)  # type: ignore[assignment]
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
    raw.decoder = decoders.WordPiece(prefix=INSIDE, cleanup=False)  # type: ignore[assignment]
    specials = spell_special_tokens(config)
    letters = [
        letter
        for letter in frequent_letters(texts, (config.vocab - len(specials)) // 4, raw.normalizer.normalize_str)
        if not letter.isspace()
    ]
    inner = [INSIDE + letter for letter in letters if _is_inside_words(raw, letter)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=config.vocab,
        min_frequency=_MIN_FREQUENCY,
        special_tokens=[*specials, *inner],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        continuing_subword_prefix=INSIDE,
        show_progress=False,
    )
    raw.train_from_iterator(texts, trainer)
    return _finish(raw, specials)


def _is_inside_words(raw: tokenizers.Tokenizer, letter: str) -> bool:
    """Whether a letter may follow another in a word; marks and Chinese characters may not."""
    assert raw.normalizer is not None
    assert raw.pre_tokenizer is not None
    return len(raw.pre_tokenizer.pre_tokenize_str(raw.normalizer.normalize_str(f"a{letter}"))) == 1


def _finish(raw: tokenizers.Tokenizer, specials: list[str]) -> Tokenizer:
    """Take back that letters are special, and put the delimiters around a text for those who ask for them."""
    data = json.loads(raw.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] in specials]
    clean = tokenizers.Tokenizer.from_str(json.dumps(data))
    begin, end = OURS["wordpiece"]["cls"], OURS["wordpiece"]["sep"]
    clean.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {end} $B:1 {end}:1",
        special_tokens=[(token, specials.index(token)) for token in (begin, end)],
    )
    return Tokenizer(clean.to_str(pretty=True), begin, end)
