"""`hornbook predict`: what transformers says of the same folder and text, for every head; and errors that help."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from hornbook.cli.main import main
from hornbook.errors import Exit
from hornbook.model.build_model import build_model
from hornbook.model.config.head_config import (
    ClassificationHead,
    DenseTransform,
    LMHead,
    RegressionHead,
    SpanHead,
    TokenClassificationHead,
)
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.position_config import RopeConfig
from hornbook.model.hf.hf import write_hf
from hornbook.model.init.init import initialize
from tests.model.likenesses import bert_like

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")  # of transformers' own imports
POSITIONS = 48
WORDS = [
    *("the", "a", "page", "letter", "##s", "word", "reads", "of", "book", "in", "child", "Paris", "Ann"),
    *(",", ".", "?", "who", "where"),
]
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
CLASSES = ClassificationHead(labels=["bad", "good", "neither"], transform=DenseTransform())
BERT = bert_like(length=POSITIONS)
LLAMA = ModelConfig(layers=2, width=32, heads=4, position=RopeConfig(length=POSITIONS))
CLASS_AUTO = "AutoModelForSequenceClassification"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """`run(words...)` -> (exit code, stdout, stderr)."""

    def act(*words: object) -> tuple[int, str, str]:
        code = main(["predict", *map(str, words)])
        return code, *capsys.readouterr()

    return act


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer as BERT's."""
    made = Tokenizer(models.WordPiece({word: i for i, word in enumerate([*SPECIALS, *WORDS])}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=False)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.add_special_tokens(SPECIALS)
    folder = tmp_path_factory.mktemp("wordpiece")
    made.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def model(tmp_path: Path, wordpiece: Path, tiny_corpus: Path) -> Callable[..., Path]:
    """`model(head)` or `model(head, base=LLAMA)`: a folder of a model whose outputs differ much from text to text."""

    def make(head: Any, base: ModelConfig = BERT) -> Path:
        config = base.model_copy(update={"head": head})
        vocab, tokenizer = (len(SPECIALS) + len(WORDS), wordpiece) if base is BERT else (320, tiny_corpus / "tokenizer")
        made, folder = build_model(config, vocab, "cpu"), tmp_path / "model"
        initialize(made, config, 1)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
        write_hf(folder, made, config, vocab, tokenizer)
        return folder

    return make


def theirs(folder: Path, auto: str, *texts: Any, **options: Any) -> Any:
    """What transformers computes of texts, each alone."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    loaded = getattr(transformers, auto).from_pretrained(folder).eval()
    with torch.no_grad():
        read = [
            tokenizer(*(text if isinstance(text, tuple) else (text,)), return_tensors="pt", **options) for text in texts
        ]
        return [(each, loaded(**each)) for each in read]


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


TEXTS = ["the page reads a letter", "who reads ?", "Ann , in Paris .", "the words of the book of the child"]


def written(folder: Path, rows: list[Any], name: str = "lines.jsonl") -> Path:
    path = folder / name
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("multiple", [False, True])
def test_labels_of_texts_are_transformers(model, run: Run, tmp_path: Path, multiple: bool) -> None:
    folder = model(CLASSES.model_copy(update={"multiple": multiple}))
    found = theirs(folder, CLASS_AUTO, *TEXTS)
    code, out, _ = run(folder, written(tmp_path, TEXTS, "lines.txt"), "--json")
    assert code == Exit.DONE
    assert [each["text"] for each in lines(out)] == TEXTS
    for each, (_, result) in zip(lines(out), found, strict=True):
        wanted = (result.logits.sigmoid() if multiple else result.logits.softmax(-1))[0]
        assert list(each["probabilities"].values()) == pytest.approx(wanted.tolist(), abs=1e-5)
        if multiple:
            assert each["labels"] == [
                label for label, p in zip(CLASSES.labels, wanted.tolist(), strict=True) if p >= 0.5
            ]
        else:
            assert each["label"] == CLASSES.labels[int(wanted.argmax())]
    assert len({str(each["probabilities"]) for each in lines(out)}) == len(TEXTS)


def test_pairs_have_their_types(model, run: Run, tmp_path: Path) -> None:
    folder = model(CLASSES)
    pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
    rows = [{"id": i, "text": a, "text_pair": b} for i, (a, b) in enumerate(pairs)]
    code, out, _ = run(folder, written(tmp_path, rows), "--json")
    assert code == Exit.DONE
    for each, (read, result) in zip(
        lines(out), theirs(folder, CLASS_AUTO, *pairs, return_token_type_ids=True), strict=True
    ):
        assert read["token_type_ids"].any()
        assert list(each["probabilities"].values()) == pytest.approx(result.logits.softmax(-1)[0].tolist(), abs=1e-5)
        assert each["text_pair"] == pairs[each["id"]][1]


def test_a_decoder_reads_its_last_token(model, run: Run, tmp_path: Path) -> None:
    folder = model(ClassificationHead(labels=["a", "b"], bias=False), base=LLAMA)
    assert json.loads((folder / "config.json").read_text())["pad_token_id"] is not None
    code, out, _ = run(folder, written(tmp_path, ["the page", "a", "words of it"], "lines.txt"), "--json")
    assert code == Exit.DONE
    texts = [each["text"] for each in lines(out)]  # the tokenizer of the folder begins them
    for each, (_, result) in zip(lines(out), theirs(folder, CLASS_AUTO, *texts), strict=True):
        assert list(each["probabilities"].values()) == pytest.approx(result.logits.softmax(-1)[0].tolist(), abs=1e-5)


@pytest.mark.parametrize("apart", [False, True])
def test_a_decoder_is_exported_with_a_tokenizer_that_begins_texts(
    model, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], apart: bool
) -> None:
    """AutoTokenizer and transformers' class, given the bare text or a pair, say what predict says of either folder."""
    folder, out = model(ClassificationHead(labels=["a", "b"], bias=False), base=LLAMA), tmp_path / "out"
    if apart:  # begin and end; and the tokenizer's own template puts the end behind
        made = Tokenizer(models.BPE())
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        special = ["<s>", "</s>"]
        trainer = trainers.BpeTrainer(
            vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
        made.train_from_iterator(["the page of words"] * 9, trainer)
        made.post_processor = processors.TemplateProcessing(
            single=["$A", "</s>"], pair=["$A", "</s>", "$B", "</s>"], special_tokens=[("</s>", 1)]
        )
        made.save(str(folder / "tokenizer.json"))
        settings = {"bos_token": "<s>", "eos_token": "</s>", "add_eos_token": True}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert main(["export", str(folder), "--out", str(out)]) == Exit.DONE
    capsys.readouterr()
    texts: list[Any] = ["the page", "a", "words of it"]
    pairs = [("the page", "of words"), ("a", "the page")]
    rows = [{"text": text} for text in texts] + [{"text": first, "text_pair": second} for first, second in pairs]
    said = theirs(out, CLASS_AUTO, *texts, *pairs)
    for source in (folder, out):
        found = lines(run(source, written(tmp_path, rows), "--json")[1])
        for each, (_, result) in zip(found, said, strict=True):
            wanted = result.logits.softmax(-1)[0].tolist()
            assert list(each["probabilities"].values()) == pytest.approx(wanted, abs=1e-5)
    assert len({str(each["probabilities"]) for each in found}) == len(rows)


def test_numbers_are_transformers(model, run: Run, tmp_path: Path) -> None:
    folder = model(RegressionHead(outputs=2, transform=DenseTransform()))
    path = written(tmp_path, TEXTS, "lines.txt")
    found = [result.logits[0].tolist() for _, result in theirs(folder, CLASS_AUTO, *TEXTS)]
    assert [each["values"] for each in lines(run(folder, path, "--json")[1])] == [
        pytest.approx(f, abs=1e-5) for f in found
    ]
    shown = [[float(value) for value in line.split("\t")] for line in run(folder, path)[1].splitlines()]
    assert shown == [pytest.approx(f, rel=1e-4) for f in found]


def test_words_have_the_tag_of_their_first_piece(model, run: Run, tmp_path: Path) -> None:
    folder = model(TokenClassificationHead(labels=TAGS))
    words = [*TEXTS[3].split(), "in", "Paris,"]
    code, out, _ = run(folder, written(tmp_path, [" ".join(words), {"words": words}]), "--json")
    assert code == Exit.USAGE  # a line of text among objects
    code, out, _ = run(folder, written(tmp_path, [{"text": " ".join(words)}, {"words": words}]), "--json")
    assert code == Exit.DONE
    ((read, result),) = theirs(folder, "AutoModelForTokenClassification", " ".join(words))
    first = {word: place for place, word in reversed(list(enumerate(read.word_ids(0)))) if word is not None}
    firsts = [first[number] for number in range(len(words))]  # "Paris," is two words to their pre-tokenizer
    wanted = [TAGS[int(result.logits[0, place].argmax())] for place in firsts]
    for each in lines(out):
        assert each["words"] == words
        assert each["tags"] == wanted
    shown = run(folder, written(tmp_path, [" ".join(words)], "lines.txt"))[1]
    assert shown == " ".join(f"{word}/{tag}" for word, tag in zip(words, wanted, strict=True)) + "\n"


def test_long_texts_are_tagged_to_the_end(model, run: Run, tmp_path: Path) -> None:
    folder = model(TokenClassificationHead(labels=TAGS))
    words = (WORDS[:4] + WORDS[5:14]) * 9
    (found,) = lines(run(folder, written(tmp_path, [{"words": words}]), "--json")[1])
    assert None not in found["tags"]
    (short,) = lines(run(folder, written(tmp_path, [{"words": words[:40]}]), "--json")[1])
    assert found["tags"][:20] == short["tags"][:20]


def test_answers_are_the_best_of_the_context(model, run: Run, tmp_path: Path) -> None:
    folder = model(SpanHead())
    rows = [
        {"question": "who reads ?", "context": "the child reads a book ."},
        {"question": TEXTS[1], "context": TEXTS[2]},
    ]
    code, out, _ = run(folder, written(tmp_path, rows), "--json")
    assert code == Exit.DONE
    pairs = [(row["question"], row["context"]) for row in rows]
    for each, row, (read, result) in zip(
        lines(out),
        rows,
        theirs(folder, "AutoModelForQuestionAnswering", *pairs, return_token_type_ids=True),
        strict=True,
    ):
        starts, ends = result.start_logits[0], result.end_logits[0]
        inside = [place for place, number in enumerate(read.sequence_ids(0)) if number == 1]
        score, first, last = max((float(starts[i] + ends[j]), i, j) for i in inside for j in inside if i <= j)
        none, open_ = float(starts[0] + ends[0]), [0, *inside]
        total = float(starts[open_].logsumexp(0) + ends[open_].logsumexp(0))
        if none > score:
            assert each["answer"] is None
        else:
            begin, end = read.token_to_chars(0, first).start, read.token_to_chars(0, last).end
            assert (each["answer"], each["begin"], each["end"]) == (row["context"][begin:end], begin, end)
        assert each["probability"] == pytest.approx(torch.tensor(max(none, score) - total).exp().item(), abs=1e-5)


def test_a_long_context_is_searched_to_its_end(model, run: Run, tmp_path: Path) -> None:
    """Wherever a window finds the answer, its place is that in the whole context."""
    folder = model(SpanHead())
    context = " ".join((WORDS[:4] + WORDS[5:14]) * 9)
    (found,) = lines(run(folder, written(tmp_path, [{"question": "who ?", "context": context}]), "--json")[1])
    assert found["answer"] is None or context[found["begin"] : found["end"]] == found["answer"]
    line = run(folder, written(tmp_path, [{"question": "who ?", "context": context}]))[1]
    assert line.split("\t")[0] == (found["answer"] or "(no answer)")


def test_lines_do_not_see_each_other(model, run: Run, tmp_path: Path) -> None:
    """Batches are padded, and in order of length: every line comes out where it went in, as though alone."""
    folder = model(CLASSES)
    many = [" ".join(TEXTS[i % 4].split()[: 1 + i % 5]) for i in range(40)]
    together = lines(run(folder, written(tmp_path, many, "lines.txt"), "--json")[1])
    assert [each["text"] for each in together] == many
    for number in (0, 7, 39):
        (alone,) = lines(run(folder, written(tmp_path, [many[number]], "lines.txt"), "--json")[1])
        assert alone["probabilities"] == pytest.approx(together[number]["probabilities"], abs=1e-6)


def test_stdin_and_readable_lines(model, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model(CLASSES)
    monkeypatch.setattr(sys, "stdin", io.StringIO("the page\nwho reads ?\n"))
    code, out, _ = run(folder)
    assert code == Exit.DONE
    assert [line.split("\t")[0] in CLASSES.labels for line in out.splitlines()] == [True, True]
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"text": "the page"}\n'))
    assert run(folder, "-", "--objects")[1] == out.splitlines()[0] + "\n"


def test_a_text_too_long_is_cut_and_that_is_said(model, run: Run, tmp_path: Path) -> None:
    folder = model(CLASSES)
    long = "the page " * 40
    code, out, err = run(folder, written(tmp_path, [long, "the page"], "lines.txt"), "--json")
    assert code == Exit.DONE
    assert [each.get("truncated", False) for each in lines(out)] == [True, False]
    assert "1 texts are longer than the model's 48 positions" in " ".join(err.split())
    ((_, result),) = theirs(folder, CLASS_AUTO, long, truncation=True, max_length=POSITIONS)
    assert list(lines(out)[0]["probabilities"].values()) == pytest.approx(
        result.logits.softmax(-1)[0].tolist(), abs=1e-5
    )


@pytest.mark.parametrize(
    ("head", "name", "content", "text"),
    [
        (CLASSES, "lines.txt", b"", "lines.txt is empty: give it lines of text"),
        (CLASSES, "lines.txt", b"the page\n\nwho\n", "lines.txt, line 2 is empty"),
        (CLASSES, "lines.txt", b"the page\n\xff\n", "lines.txt, line 2 is not UTF-8"),
        (CLASSES, "lines.jsonl", b"the page\n", "lines.jsonl, line 1 is not JSON"),
        (CLASSES, "lines.jsonl", b"[1]\n", 'line 1 is JSON, but not an object: it needs {"text": "..."}'),
        (CLASSES, "lines.jsonl", b'{"sentence": "a"}\n', "there is no text (keys: sentence)"),
        (CLASSES, "lines.jsonl", b'{"text": "a", "text_pair": 3}\n', "text_pair is 3"),
        (SpanHead(), "lines.txt", b'{"question": "who ?"}\n', "there is no context (keys: question)"),
        (SpanHead(), "lines.txt", b'{"question": "%s", "context": "a"}\n' % (b"who " * 60), "leaves no room"),
        (TokenClassificationHead(labels=TAGS), "lines.jsonl", b'{"words": ["a", 1]}\n', "write a list of words"),
        (TokenClassificationHead(labels=TAGS), "a.jsonl", b'{"text": "a", "text_pair": "b"}\n', "leave out text_pair"),
    ],
)
def test_what_cannot_be_read_is_named(
    model, run: Run, tmp_path: Path, head: Any, name: str, content: bytes, text: str
) -> None:
    (tmp_path / name).write_bytes(content)
    code, _, err = run(model(head), tmp_path / name)
    assert code == Exit.USAGE
    assert text in err


def test_a_language_model_has_no_labels_to_say(model, run: Run, tmp_path: Path) -> None:
    folder = model(LMHead(), base=LLAMA)
    code, _, err = run(folder, written(tmp_path, TEXTS, "lines.txt"))
    assert code == Exit.USAGE
    assert "its head 'lm' predicts tokens, not labels" in err
    assert run(folder, tmp_path / "nothing.txt")[0] == Exit.USAGE


def test_files_that_lack_are_named(model, run: Run, tmp_path: Path) -> None:
    folder = model(CLASSES)
    code, _, err = run(folder, tmp_path / "nothing.txt")
    assert (code, "nothing.txt cannot be read" in err) == (Exit.USAGE, True)
    (folder / "tokenizer.json").unlink()
    code, _, err = run(folder, written(tmp_path, TEXTS, "lines.txt"))
    assert (code, "no tokenizer.json" in err) == (Exit.USAGE, True)


def test_a_labelling_model_continues_no_text(model, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(model(CLASSES)), "-p", "the"]) == Exit.USAGE
    assert "its head 'classification' predicts labels: use `hornbook predict`" in capsys.readouterr().err
