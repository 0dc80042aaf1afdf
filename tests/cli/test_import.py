"""`hornbook import`: from a folder of transformers to one that every verb reads."""

import json
import pickle
from pathlib import Path

import pytest
import torch

from hornbook.cli.main import main
from hornbook.errors import Exit
from hornbook.model.hf import read_hf

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")  # of transformers' own imports


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def theirs(tmp_path, tiny_corpus) -> Path:
    """GPT-2 as transformers makes and saves it, with a tokenizer as transformers saves it."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=16, n_layer=2, n_head=2, n_positions=32, vocab_size=257, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "theirs")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tiny_corpus / "tokenizer" / "tokenizer.json"), eos_token="<|endoftext|>"
    )
    tokenizer.save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


def test_a_model_of_transformers_is_imported_and_certified(theirs, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["import", str(theirs), "--out", str(out), "--json"]) == Exit.DONE
    report = json.loads(capsys.readouterr().out)
    assert report["certificate"]["ok"] is True
    tokenizer = report["certificate"]["tokenizer"]
    assert (tokenizer["ids_equal"], tokenizer["restored"]) == (True, True)
    config, vocab, stream = read_hf(out)
    original = dict(read_hf(theirs)[2])
    assert (config.layers, config.width, vocab) == (2, 16, 257)
    assert all(torch.equal(tensor, original[name]) for name, tensor in stream)
    assert main(["generate", str(out), "-p", "a", "--tokens", "5", "--json"]) == Exit.DONE


def test_it_says_what_it_did(theirs, tmp_path, capsys):
    assert main(["import", str(theirs), "--out", str(tmp_path / "out")]) == Exit.DONE
    printed = capsys.readouterr().out
    assert "original loaded by transformers" in printed
    assert "as GPT2LMHeadModel, logits equal" in printed


def test_a_dry_run_writes_nothing(theirs, tmp_path, capsys):
    assert main(["import", str(theirs), "--out", str(tmp_path / "out"), "-n"]) == Exit.DONE
    assert "2 layers, width 16, 257 rows" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_pickles_are_refused_and_not_run(theirs, tmp_path, capsys):
    class Payload:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "executed",))

    (theirs / "model.safetensors").write_bytes(pickle.dumps(Payload()))
    assert main(["import", str(theirs), "--out", str(tmp_path / "out")]) == Exit.INTEGRITY
    assert "this is a pickle" in capsys.readouterr().err
    assert not (tmp_path / "executed").exists()
    assert not (tmp_path / "out").exists()


def test_what_is_not_understood_is_refused(theirs, tmp_path, capsys):
    keys = json.loads((theirs / "config.json").read_text())
    (theirs / "config.json").write_text(json.dumps(keys | {"scale_attn_by_inverse_layer_idx": True}))
    assert main(["import", str(theirs), "--out", str(tmp_path / "out")]) == Exit.USAGE
    assert "scale_attn_by_inverse_layer_idx" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_none(tmp_path, capsys):
    assert main(["import", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")]) == Exit.INTEGRITY
    assert "config.json: cannot be read: No such file" in capsys.readouterr().err
