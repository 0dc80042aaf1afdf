"""The tokenizer's files beside a model: copied as they are, completed for AutoTokenizer."""

import json
import os
import shutil

import pytest

from hornbook.errors import IntegrityError
from hornbook.model.hf_tokenizer import copy_tokenizer
from hornbook.text.tokenizer import Tokenizer

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
