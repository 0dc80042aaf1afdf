"""Peers of the BPE kernels, and what all contenders share: work asked for by one JSON line, answered by one.

    bpe.py (rustbpe|tiktoken|tokenizers) FOLDER

FOLDER has texts.jsonl, and tokenizer.json once one is trained. Imports nothing of hornbook.
"""

# pyright: reportMissingImports=false

import hashlib
import json
import sys
import time
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

VOCAB = 32_768
BATCH = 2**20
PATTERN = (
    r"(?i:'(?:[sdmt]|ll|ve|re))|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
# Longer runs of blanks overflow the stack of tiktoken's regex engine.
CASES = {
    "one letter": "a" * 100_000,
    "two letters": "ab" * 50_000,
    "blanks": " " * 20_000,
    "dashes": "-" * 100_000,
    "combining marks": "e" + "\u0301" * 50_000,
    "joined emoji": "\U0001f468\u200d\U0001f469\u200d" * 6_000,
    "ideographs without a mark": "\u6570\u5b66\u6a21\u578b\u8bad\u7ec3" * 6_000,
    "a long identifier": "internationalizationOfTheTokenizer" * 3_000,
    "many identifiers of 70 letters": ("internationalization" * 3 + "Configura ") * 1_500,
    "unassigned": "\U000e0001" * 25_000,
}


def read_texts(folder: Path) -> list[str]:
    """The corpus."""
    with (folder / "texts.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def batches(texts: list[str]) -> Iterable[list[str]]:
    """About a megabyte at a time, as `hornbook tokenize` reads them."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def digest_tokens(tokens: Iterable[bytes]) -> str:
    """Of a vocabulary in the order of its ranks."""
    return hashlib.sha256(b"".join(len(token).to_bytes(4, "little") + token for token in tokens)).hexdigest()


def digest_ids(encoded: Iterable[Any]) -> str:
    """Of the tokens of all texts: lists or arrays of ids."""
    digest = hashlib.sha256()
    for ids in encoded:
        digest.update(array("I", ids).tobytes() + b"|")
    return digest.hexdigest()


Work = Callable[[list[str]], Any]


def serve(train: Work | None, make_encoder: Callable[[], Work] | None, digest: Any = None) -> None:
    """Answer `{"work": "train"}`, `{"work": "encode"}` and `{"work": CASE}` with CPU seconds and a digest.

    make_encoder: gives what encodes texts; making it is not timed.
    """
    texts = read_texts(Path(sys.argv[2]))
    print("ready", flush=True)
    for line in sys.stdin:
        work = json.loads(line)["work"]
        function = train if work == "train" or make_encoder is None else make_encoder()
        assert function is not None
        given = texts if work in ("train", "encode") else [CASES[work]]
        begin = time.process_time()
        result = function(given)
        seconds = time.process_time() - begin
        found = digest(result) if work == "train" else digest_ids(result)
        print(json.dumps({"cpu_seconds": seconds, "digest": found}), flush=True)


def byte_letters() -> list[str]:
    """GPT-2's alphabet of bytes."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(0x100, 0x200))
    return [chr(byte) if byte in visible else chr(next(hidden)) for byte in range(256)]


def serve_rustbpe() -> None:
    """Vocabulary of the bytes and the merges."""
    import rustbpe

    def train(texts: list[str]) -> Any:
        tokenizer = rustbpe.Tokenizer()
        tokenizer.train_from_iterator(iter(texts), VOCAB - 1, pattern=PATTERN)
        return tokenizer

    def digest(tokenizer: Any) -> str:
        return digest_tokens(bytes(token) for token, _ in sorted(tokenizer.get_mergeable_ranks(), key=lambda x: x[1]))

    serve(train, None, digest)


def serve_tiktoken() -> None:
    """The vocabulary of tokenizer.json with its ids as ranks; with a special token, without one it is slower."""
    import tiktoken

    definition = json.loads((Path(sys.argv[2]) / "tokenizer.json").read_text(encoding="utf-8"))
    specials = {token["content"]: token["id"] for token in definition["added_tokens"]}
    byte_of = {letter: byte for byte, letter in enumerate(byte_letters())}
    vocab = definition["model"]["vocab"].items()
    ranks = {bytes(byte_of[letter] for letter in token): rank for token, rank in vocab if token not in specials}
    encoding = tiktoken.Encoding("bpe", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=specials)
    serve(None, lambda: lambda texts: [encoding.encode_ordinary(text) for text in texts])


def serve_tokenizers() -> None:
    """The library on one thread: its faster batches, without offsets."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    def train(texts: list[str]) -> Any:
        raw: Any = Tokenizer(models.BPE())
        split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
        levels = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        raw.pre_tokenizer = pre_tokenizers.Sequence([split, levels])
        raw.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(
            vocab_size=VOCAB,
            min_frequency=2,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=alphabet,
            show_progress=False,
        )
        raw.train_from_iterator(batches(texts), trainer)
        return raw.to_str(pretty=True)

    path = Path(sys.argv[2]) / "tokenizer.json"
    tokenizer: Any = Tokenizer.from_file(str(path)) if path.exists() else None

    def encode(texts: list[str]) -> Any:
        encodings = (tokenizer.encode_batch_fast(batch, add_special_tokens=False) for batch in batches(texts))
        return [encoding.ids for batch in encodings for encoding in batch]

    serve(train, lambda: encode, lambda definition: hashlib.sha256(definition.encode()).hexdigest())


if __name__ == "__main__":
    {"rustbpe": serve_rustbpe, "tiktoken": serve_tiktoken, "tokenizers": serve_tokenizers}[sys.argv[1]]()
