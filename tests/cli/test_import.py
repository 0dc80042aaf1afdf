"""`hornbook import`: from a folder of transformers to one that every verb reads."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hornbook.cli.main import main
from hornbook.errors import Exit
from hornbook.model.hf.hf import read_hf
from tests.model.architectures import VOCAB
from tests.model.parity import make_pair

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
    assert main(["import", str(tmp_path), "--out", str(tmp_path / "out")]) == Exit.USAGE
    assert "it has no config.json" in capsys.readouterr().err


def test_checkpoints_beside_a_model_do_not_make_it_a_run(theirs, tmp_path):
    (theirs / "checkpoints").mkdir()
    assert main(["import", str(theirs), "--out", str(tmp_path / "out"), "-n"]) == Exit.DONE


@pytest.fixture(scope="session")
def special_tokenizer(tmp_path_factory) -> Path:
    """A tokenizer of 61 ids with the special tokens of BERT and T5."""
    import tokenizers

    special = ["<pad>", "</s>", "[CLS]", "[SEP]", "[MASK]", *(f"<extra_id_{i}>" for i in range(30))]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<pad>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(["the cat sat on the mat and the dog ran to the sea"], trainer)
    path = tmp_path_factory.mktemp("special") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.mark.parametrize("name", ["gpt_j", "opt_350m", "bloom", "gemma2", "deepseek_v3", "bert", "t5", "bart"])
def test_every_family_is_imported_scored_asked_and_exported(name, tmp_path, special_tokenizer, capsys):
    folder, text = tmp_path / "theirs", tmp_path / "text.txt"
    make_pair(name, 2, folder)
    (folder / "tokenizer.json").write_bytes(special_tokenizer.read_bytes())
    text.write_text("the cat sat on the mat and the dog ran to the sea and the cat sat on the dog\n" * 3)
    assert main(["import", str(folder), "--out", str(tmp_path / "ours"), "--no-certificate"]) == Exit.DONE
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "ours"), "--data", str(text), "--json"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out)["loss"] > 0
    prompt = "the cat [MASK] on" if name == "bert" else "the cat sat"
    assert main(["generate", str(tmp_path / "ours"), "-p", prompt, "--tokens", "4", "--greedy"]) == Exit.DONE
    assert main(["export", str(tmp_path / "ours"), "--out", str(tmp_path / "out"), "--no-certificate"]) == Exit.DONE
    original, keys = dict(read_hf(folder)[2]), json.loads((tmp_path / "out" / "config.json").read_text())
    assert all(torch.equal(tensor, original[key]) for key, tensor in read_hf(tmp_path / "out")[2])
    assert keys["architectures"] == json.loads((folder / "config.json").read_text())["architectures"]
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == special_tokenizer.read_bytes()


def test_what_is_left_out_is_said(tmp_path, capsys):
    folder = tmp_path / "theirs"
    make_pair("bert", 1, folder)
    tensors = load_file(folder / "model.safetensors") | {"bert.pooler.dense.bias": torch.ones(3)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert main(["import", str(folder), "--out", str(tmp_path / "out"), "--no-certificate", "--json"]) == Exit.DONE
    captured = capsys.readouterr()
    assert json.loads(captured.out)["left_out"] == ["bert.pooler.dense.bias"]
    assert "bert.pooler.dense.bias: left out, for config.json names another head" in " ".join(captured.err.split())


def test_the_name_of_a_model_is_answered_with_how_to_get_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["import", "gpt2", "--out", "base"]) == Exit.USAGE
    error = capsys.readouterr().err
    assert "gpt2: no such folder" in error
    assert "hf download OWNER/NAME --local-dir FOLDER" in error
    assert main(["train", "tiny", "--from", "gpt2", "--data", "d"]) == Exit.USAGE
    assert "hf download OWNER/NAME --local-dir FOLDER" in capsys.readouterr().err
