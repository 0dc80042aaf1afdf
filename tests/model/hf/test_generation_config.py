"""What begins, ends and fills up texts: kept of imported models, complete in ours, the same in transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch

from hornbook.cli.main import main
from hornbook.errors import Exit, IntegrityError
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.position_config import AlibiConfig, PositionConfig, RopeConfig
from hornbook.model.hf.certificate import certify
from hornbook.model.hf.generation_config import FILE
from hornbook.model.hf.hf import write_hf
from hornbook.model.storage.load import load_model
from hornbook.model.transformer import Transformer
from hornbook.text.config.text import BPE
from hornbook.text.tokenizer.files import save_tokenizer
from hornbook.text.tokenizer.tokenizer import Tokenizer
from hornbook.text.tokenizer.train import train_tokenizer

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning", "ignore::UserWarning")
ROWS, MARKS = 320, ["<|turn|>", "<|done|>"]
CHAT = (
    "{% for m in messages %}<|turn|>{{ m['role'] }}\n{{ m['content'] }}<|done|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
ROPE = RopeConfig(length=64)
RandomModel = Callable[..., Transformer]


@pytest.fixture(scope="module")
def chat_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer with two marks of turns, and a template that uses them."""
    folder = tmp_path_factory.mktemp("chat")
    made = train_tokenizer(BPE(vocab=300), [["the letters of the page", "a page of letters 12"] * 9])
    larger = tokenizers.Tokenizer.from_str(made.definition)
    larger.add_special_tokens(MARKS)
    save_tokenizer(Tokenizer(larger.to_str(), made.begin, made.end), folder)
    (folder / "chat_template.jinja").write_text(CHAT)
    return folder


def written(folder: Path, random_model: RandomModel, tokenizer: Path | None, position: PositionConfig = ROPE) -> Path:
    config = ModelConfig(layers=2, width=32, heads=2, position=position)
    write_hf(folder, random_model(config, ROWS), config, ROWS, tokenizer)
    return folder


def read(folder: Path, name: str = FILE) -> dict[str, Any]:
    return json.loads((folder / name).read_text())


def foreign(folder: Path, **keys: Any) -> Path:
    """The folder as another program leaves it."""
    config = read(folder, "config.json")
    del config["hornbook"]
    (folder / "config.json").write_text(json.dumps(config | keys))
    return folder


def export(*words: object) -> None:
    assert main(["export", *map(str, words)]) == Exit.DONE


@pytest.mark.parametrize("position", [ROPE, AlibiConfig(length=64)], ids=lambda each: each.kind)
def test_an_export_continues_and_answers_as_generate_does(
    tmp_path: Path, random_model: RandomModel, chat_tokenizer: Path, position: PositionConfig
) -> None:
    """Through a class of transformers, and through the modelling file."""
    made = written(tmp_path / "made", random_model, chat_tokenizer, position)
    export(made, "--out", tmp_path / "out")
    assert read(tmp_path / "out", "certificate.json")["texts"] == 20
    loaded = load_model(tmp_path / "out")
    assert loaded.tokenizer is not None
    done = next(iter(loaded.ends - {loaded.tokenizer.end_id}))
    assert loaded.tokenizer.spell(done) == "<|done|>"
    found = read(tmp_path / "out")
    assert set(found["eos_token_id"]) == loaded.ends
    assert found["pad_token_id"] == loaded.tokenizer.end_id
    assert read(made)["suppress_tokens"] == list(range(loaded.tokenizer.vocab_size, ROWS))
    assert loaded.tokenizer.digest == Tokenizer.load(chat_tokenizer).digest  # its data is still its data


def test_the_certificate_finds_texts_that_differ(
    tmp_path: Path, random_model: RandomModel, chat_tokenizer: Path
) -> None:
    made = written(tmp_path / "made", random_model, chat_tokenizer)
    export(made, "--out", tmp_path / "out")
    assert certify(made).ok
    bare = json.loads((made / "tokenizer.json").read_text()) | {"post_processor": None}
    (made / "tokenizer.json").write_text(json.dumps(bare))
    with pytest.raises(IntegrityError, match=r"the prompt 'The' has the tokens \[\d+, .* in transformers"):
        certify(made).require()  # without the delimiter in its template
    (tmp_path / "out" / FILE).write_text(json.dumps(read(tmp_path / "out") | {"eos_token_id": 0}))
    with pytest.raises(IntegrityError, match=r"a turn of the chat ends with '<\|done\|>' .* transformers would go on"):
        certify(tmp_path / "out").require()


def test_batches_are_padded_and_long_texts_cut(tmp_path: Path, random_model: RandomModel, chat_tokenizer: Path) -> None:
    transformers = pytest.importorskip("transformers")
    export(written(tmp_path / "made", random_model, chat_tokenizer), "--out", tmp_path / "out")
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    rows = reader(["the page", "a page of letters of the page"], padding=True, return_tensors="pt")
    assert set(rows) == {"input_ids", "attention_mask"}
    made = model.generate(**rows, max_new_tokens=4, do_sample=False)
    alone = model.generate(**reader("the page", return_tensors="pt"), max_new_tokens=4, do_sample=False)
    assert torch.equal(made[0, -4:], alone[0, -4:])
    assert len(reader("the page " * 99, truncation=True)["input_ids"]) == 64


@pytest.mark.parametrize("ends", [[0, 2], 2])
def test_settings_of_an_imported_model_survive(
    tmp_path: Path, random_model: RandomModel, chat_tokenizer: Path, ends: Any
) -> None:
    sampling = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1}
    source = foreign(written(tmp_path / "source", random_model, chat_tokenizer), bos_token_id=1, eos_token_id=ends)
    bare = read(source, "tokenizer.json") | {"post_processor": None}
    (source / "tokenizer.json").write_text(json.dumps(bare))
    given = sampling | {"eos_token_id": ends, "bos_token_id": 1, "pad_token_id": 0}
    (source / FILE).write_text(json.dumps(given | {"transformers_version": "4.50", "_from_model_config": True}))
    assert main(["import", str(source), "--out", str(tmp_path / "in")]) == Exit.DONE
    export(tmp_path / "in", "--out", tmp_path / "out")
    export(tmp_path / "out", "--out", tmp_path / "again")
    for name in ("in", "out", "again"):
        assert read(tmp_path / name) == given
        keys = read(tmp_path / name, "config.json")
        assert (keys["bos_token_id"], keys["eos_token_id"]) == (1, ends)
        assert load_model(tmp_path / name).ends == frozenset(ends if isinstance(ends, list) else [ends])
        assert load_model(tmp_path / name).prefix == ()
        assert read(tmp_path / name, "certificate.json")["texts"] == 20


def test_ends_of_a_model_without_settings_of_generation_are_those_of_its_configuration(
    tmp_path: Path, random_model: RandomModel, chat_tokenizer: Path
) -> None:
    source = foreign(written(tmp_path / "source", random_model, chat_tokenizer), eos_token_id=[2, 3])
    (source / FILE).unlink()
    assert main(["import", str(source), "--out", str(tmp_path / "in")]) == Exit.DONE
    assert read(tmp_path / "in")["eos_token_id"] == [2, 3]


@pytest.mark.parametrize("put", ["template", "neither"])
def test_an_imported_tokenizer_decides_what_begins_a_prompt(
    tmp_path: Path, random_model: RandomModel, chat_tokenizer: Path, put: str
) -> None:
    made = written(tmp_path / "made", random_model, chat_tokenizer)
    source = foreign(made)
    if put != "template":
        bare = read(source, "tokenizer.json") | {"post_processor": None}
        (source / "tokenizer.json").write_text(json.dumps(bare))
    assert main(["import", str(source), "--out", str(tmp_path / "in")]) == Exit.DONE
    loaded = load_model(tmp_path / "in")
    assert loaded.tokenizer is not None
    assert loaded.prefix == (() if put == "neither" else (loaded.tokenizer.delimiter_id,))


@pytest.mark.parametrize(("files", "text"), [(["tokenizer.model"], "but|alone"), ([], "no tokenizer")])
def test_a_folder_without_tokenizer_json_says_so(
    tmp_path: Path, random_model: RandomModel, capsys: pytest.CaptureFixture[str], files: list[str], text: str
) -> None:
    source = foreign(written(tmp_path / "source", random_model, None))
    for name in files:
        (source / name).write_bytes(b"")
    assert main(["import", str(source), "--out", str(tmp_path / "in")]) == Exit.DONE
    said = " ".join(capsys.readouterr().err.split())
    assert "imported without a tokenizer" in said
    assert all(name in said for name in files)
    assert any(each in said for each in text.split("|"))


def test_values_that_are_no_numbers_and_ids_without_rows_are_named(
    tmp_path: Path, random_model: RandomModel, chat_tokenizer: Path
) -> None:
    made = written(tmp_path / "made", random_model, chat_tokenizer)
    tensors = dict(load_model(made).model.named_parameters())
    tensors["norm.weight"] = tensors["norm.weight"].detach().clone()
    tensors["norm.weight"][3] = float("nan")
    with pytest.raises(IntegrityError, match=r"^norm\.weight: values that are no numbers"):
        certify(made, source=tensors)
    config = ModelConfig(layers=2, width=32, heads=2, position=ROPE)
    with pytest.raises(IntegrityError, match=r"chat.*: its tokenizer has \d+ ids, and its model only 40 rows"):
        write_hf(tmp_path / "small", random_model(config, 40), config, 40, chat_tokenizer)
