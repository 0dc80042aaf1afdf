"""The tokenizer's files beside a model: copied as they are, completed for AutoTokenizer."""

import json
import os
import shutil

import pytest

from hornbook.errors import IntegrityError
from hornbook.model.generate.prompts import encode_spelled
from hornbook.model.hf.hf_tokenizer import copy_tokenizer, frame_texts
from hornbook.text.config.text import BPE, Unigram, WordPiece
from hornbook.text.tokenizer.files import save_tokenizer
from hornbook.text.tokenizer.prompt_encoding import encode_text
from hornbook.text.tokenizer.tokenizer import Tokenizer
from hornbook.text.tokenizer.train import train_tokenizer

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")


def test_a_bare_tokenizer_is_completed_for_autotokenizer(tokenizer_folder, tmp_path):
    import transformers

    ids = copy_tokenizer(tokenizer_folder, tmp_path, 512)
    assert (tmp_path / "tokenizer.json").read_bytes() == (tokenizer_folder / "tokenizer.json").read_bytes()
    ours, theirs = Tokenizer.load(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert ids == {"bos_token_id": ours.delimiter_id, "eos_token_id": ours.end_id, "pad_token_id": None}
    assert (ours.delimiter_id, ours.end_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert theirs.model_max_length == 512
    assert ours.digest == Tokenizer.load(tokenizer_folder).digest
    text = "the letters \u00e9t\u00e9 \U0001f600"
    assert theirs.encode(text, add_special_tokens=False) == ours.encode(text)


@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder"])
def test_a_model_that_writes_and_has_no_unknown_token_names_its_end_token_there(tokenizer_folder, tmp_path, kind):
    """As GPT-2 and GPT-NeoX do: ctranslate2 refuses a model whose unknown token is null."""
    copy_tokenizer(tokenizer_folder, tmp_path, 512, kind=kind)
    settings, made = json.loads((tmp_path / "tokenizer_config.json").read_text()), Tokenizer.load(tmp_path)
    assert settings["unk_token"] == made.end
    assert made.unknown_id is None
    assert made.digest == Tokenizer.load(tokenizer_folder).digest


@pytest.mark.parametrize("bare", [False, True])
def test_pairs_have_token_types_where_the_model_reads_them(tmp_path, bare):
    """Without them the second text of a pair is taken for the first, and outputs differ from ours in silence."""
    import transformers

    made = train_tokenizer(WordPiece(vocab=300), [["the letters of the page", "a page of letters 12"] * 9])
    save_tokenizer(made, tmp_path / "source")
    if bare:
        (tmp_path / "source" / "tokenizer_config.json").unlink()
    for types in (False, True):
        out = tmp_path / f"types-{types}"
        out.mkdir()
        copy_tokenizer(tmp_path / "source", out, 512, types=types)
        read = transformers.AutoTokenizer.from_pretrained(out)("the page", "a page")
        asked = encode_text(made, "the page", "a page")
        assert read["input_ids"] == asked.tokens
        assert read.get("token_type_ids") == (asked.types if types else None)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("encoder", BPE(vocab=300, objectives=["masked"])),
        ("encoder", WordPiece(vocab=300)),
        ("encoder_decoder", BPE(vocab=300, objectives=["infill"])),
        ("encoder_decoder", Unigram(vocab=400)),
    ],
    ids=lambda each: getattr(each, "kind", each),
)
def test_encoders_read_the_same_tokens_in_other_programs(tmp_path, kind, config):
    """A byte-level tokenizer has no template of its own: texts lacked their delimiter, and masks had a blank before."""
    import tokenizers

    made = train_tokenizer(config, [["the letters of the page", "a page of letters 12"] * 9])
    save_tokenizer(made, tmp_path)
    frame_texts(tmp_path, kind)
    read, source = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")), kind == "encoder_decoder"
    mask = "12" if made.special.mask is None else made.spell(made.special.mask)
    for text in ("the page", f"the {mask} page", f"the\n\n {mask}", f" \n{mask}", mask):
        assert read.encode(text).ids == encode_spelled(made, text, source=source)
    if kind == "encoder":
        asked, found = encode_text(made, "the page", "a page"), read.encode("the page", "a page")
        assert (found.ids, found.type_ids) == (asked.tokens, asked.types)
    assert Tokenizer.load(tmp_path).digest == made.digest


@pytest.mark.parametrize("config", [BPE(vocab=300), Unigram(vocab=400), WordPiece(vocab=300)], ids=lambda c: c.kind)
def test_a_template_of_texts_for_decoders_gives_tokens_and_types_as_ours(tmp_path, config):
    """Types by their numbers, for a model may be given vectors of token types later; no end token stands last."""
    import tokenizers

    made = train_tokenizer(config, [["the letters of the page", "a page of letters 12"] * 9])
    save_tokenizer(made, tmp_path / "out")
    frame_texts(tmp_path / "out", "decoder")
    read = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    for second in (None, "a page"):
        asked, found = encode_text(made, "the page", second), read.encode("the page", second)
        last = len(asked.tokens) - (made.end_id != made.delimiter_id)
        assert (found.ids, found.type_ids) == (asked.tokens[:last], asked.types[:last])
        assert max(found.type_ids) == (second is not None)


@pytest.mark.parametrize(
    "config",
    [
        BPE(vocab=300, objectives=["masked", "fim", "span"], sentinels=4),
        WordPiece(vocab=300),
        Unigram(vocab=400, objectives=["ul2"], sentinels=4),
    ],
    ids=lambda config: config.kind,
)
def test_autotokenizer_knows_the_special_tokens_of_every_kind(tmp_path, config):
    """From tokenizer.json alone, and from the files that training writes."""
    import transformers

    made = train_tokenizer(config, [["the letters of the page", "a page of letters 12"] * 9])
    save_tokenizer(made, tmp_path / "whole")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "tokenizer.json").write_text(made.definition)
    for source in ("whole", "bare"):
        out = tmp_path / f"{source}-out"
        out.mkdir()
        copy_tokenizer(tmp_path / source, out, 512)
        theirs = transformers.AutoTokenizer.from_pretrained(out)
        special = Tokenizer.load(out).special
        assert special == made.special
        assert (theirs.pad_token_id, theirs.mask_token_id) == (special.pad, special.mask)
        assert (theirs.bos_token_id, theirs.eos_token_id) == (special.begin, special.end)
        assert (theirs.cls_token_id, theirs.sep_token_id) == (special.cls, special.sep)
        assert theirs.unk_token_id == made.unknown_id
        assert {*special.sentinels, *special.modes.values()} <= set(theirs.all_special_ids)
        for text in ("the letters", "an unseen\tpage\n", ""):
            assert theirs.encode(text, add_special_tokens=False) == made.encode(text)


def test_settings_that_are_there_stay_as_they_are(tokenizer_folder, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(tokenizer_folder, source)
    settings = {"eos_token": {"content": "<|endoftext|>", "lstrip": False}, "chat_template": "{{ messages }}"}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    (source / "secrets.txt").write_text("not a part of a tokenizer")
    (tmp_path / "out").mkdir()
    copy_tokenizer(source, tmp_path / "out", 512)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"tokenizer.json", "tokenizer_config.json"}
    assert (tmp_path / "out" / "tokenizer_config.json").read_text() == json.dumps(settings)


def test_only_regular_files_are_copied(tokenizer_folder, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(tokenizer_folder, source)
    os.mkfifo(source / "merges.txt")
    (tmp_path / "out").mkdir()
    with pytest.raises(IntegrityError, match=r"merges\.txt: not a regular file"):
        copy_tokenizer(source, tmp_path / "out", 512)
