"""`hornbook export`: files, certificate, exit codes, and nothing half done."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hornbook.cli.main import main
from hornbook.errors import Exit
from hornbook.files.extras import install_command
from hornbook.model.build_model import build_model
from hornbook.model.hf import certificate
from hornbook.model.hf.hf import write_hf
from hornbook.model.init.init import initial_values
from hornbook.model.storage.load import load_model
from hornbook.text.tokenizer.tokenizer import Tokenizer

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")  # of transformers' own imports

FILES = {
    "lineage.json",
    "certificate.json",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_run_is_exported_and_certified(run_with_checkpoints, tmp_path, capsys):
    out = tmp_path / "deep" / "out"
    assert main(["export", str(run_with_checkpoints), "--to", "hf", "--out", str(out)]) == Exit.DONE
    printed, said = capsys.readouterr()
    assert said == f"next: hornbook generate {out} -p TEXT\n"
    assert names(out) == FILES
    assert names(out.parent) == {"out"}
    for path in out.iterdir():
        assert path.name in printed
        assert f"{path.stat().st_size:,} bytes" in printed
    assert "as LlamaForCausalLM, logits equal (max diff" in printed


def test_json_is_one_object(checkpoint, tmp_path, capsys):
    assert main(["export", str(checkpoint), "--out", str(tmp_path / "out"), "--dtype", "bf16", "--json"]) == Exit.DONE
    report = json.loads(capsys.readouterr().out)
    assert report["certificate"]["ok"] is True
    assert report["certificate"]["tensors_equal"] is True
    assert report["files"] == {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()}
    stored = load_file(tmp_path / "out" / "model.safetensors")
    exact = load_file(checkpoint / "model.safetensors")
    assert stored.keys() == exact.keys()
    for name, each in stored.items():
        assert torch.equal(each, exact[name][: len(each)].to(torch.bfloat16)), name


def test_transformers_finds_model_and_tokenizer(checkpoint, tmp_path):
    import transformers

    assert main(["export", str(checkpoint), "--out", str(tmp_path / "out"), "--no-certificate"]) == Exit.DONE
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = tokenizer("the page", return_tensors="pt", add_special_tokens=False)
    assert model(**ids).logits.shape == (1, 8, len(tokenizer))
    assert tokenizer.eos_token == "<|endoftext|>"
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_rows_that_pad_the_vocabulary_are_left_out(checkpoint, tmp_path):
    """Other programs refuse more rows than tokens, or choose such a row as the next token."""
    assert main(["export", str(checkpoint), "--out", str(tmp_path / "out")]) == Exit.DONE
    padded, whole = load_model(checkpoint), load_model(tmp_path / "out")
    assert whole.tokenizer is not None
    assert padded.vocab == 320 > whole.vocab == whole.tokenizer.vocab_size
    tokens = torch.arange(whole.vocab)[:256].reshape(16, 16)
    with torch.no_grad():
        ours, theirs = (each.model.head.logits(each.model(tokens)[0]) for each in (padded, whole))
    torch.testing.assert_close(theirs, ours[..., : whole.vocab], rtol=1e-5, atol=1e-5)
    assert "suppress_tokens" not in json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert main(["export", str(tmp_path / "out"), "--out", str(tmp_path / "again"), "--no-certificate"]) == Exit.DONE
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "again"))
    assert first == second


@pytest.mark.parametrize(("rows", "imported"), [(384, False), (320, True)])
def test_rows_that_were_asked_for_or_imported_stay(rows, imported, checkpoint, tmp_path):
    config = load_model(checkpoint).config
    values = initial_values(build_model(config, rows), config, seed=0)
    write_hf(tmp_path / "in", values, config, rows, checkpoint, like=checkpoint if imported else None)
    assert main(["export", str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--no-certificate"]) == Exit.DONE
    assert json.loads((tmp_path / "out" / "config.json").read_text())["vocab_size"] == rows


def test_a_dry_run_writes_nothing(checkpoint, tmp_path, capsys):
    assert main(["export", str(checkpoint), "--out", str(tmp_path / "out"), "-n"]) == Exit.DONE
    assert "nothing written" in capsys.readouterr().out
    assert main(["export", str(checkpoint), "--out", str(tmp_path / "out"), "-n", "--json"]) == Exit.DONE
    plan = json.loads(capsys.readouterr().out)
    tokens = Tokenizer.load(checkpoint).vocab_size
    weights = sum(tensor[:tokens].numel() * 4 for tensor in load_file(checkpoint / "model.safetensors").values())
    assert (plan["architecture"], plan["weights_bytes"]) == ("LlamaForCausalLM", weights)
    assert list(tmp_path.iterdir()) == []


WRONG = [
    (["nowhere", "--out", "x"], "no such run or checkpoint"),
    (["CHECKPOINT", "--out", "x", "--to", "mlx"], "is not one of 'hf', 'peft'"),
    (["CHECKPOINT", "--out", "x", "--dtype", "int4"], "is not one of 'fp32', 'bf16'"),
    (["CHECKPOINT", "--out", "CHECKPOINT"], "not empty"),
    (["CHECKPOINT"], "--out"),
]


@pytest.fixture
def in_folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_wrong_requests_are_usage_errors(words, message, checkpoint, in_folder, capsys):
    assert main(["export", *(str(checkpoint) if word == "CHECKPOINT" else word for word in words)]) == Exit.USAGE
    assert message in capsys.readouterr().err
    assert list(in_folder.iterdir()) == []


def test_a_failed_certificate_leaves_no_export(checkpoint, tmp_path, monkeypatch, capsys):
    ours = certificate._our_logits
    monkeypatch.setattr(certificate, "_our_logits", lambda *arguments: 1.001 * ours(*arguments))
    assert main(["export", str(checkpoint), "--out", str(tmp_path / "out")]) == Exit.INTEGRITY
    assert "the certificate failed" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_flipped_bit_in_the_weights_is_an_integrity_error(run_with_checkpoints, tmp_path, capsys):
    shutil.copytree(run_with_checkpoints, tmp_path / "run")
    newest = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))
    for folder in newest:
        data = bytearray((folder / "model.safetensors").read_bytes())
        data[-5] ^= 1
        (folder / "model.safetensors").write_bytes(data)
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == Exit.INTEGRITY
    assert not (tmp_path / "out").exists()
    assert "model.safetensors" in capsys.readouterr().err


def test_without_transformers_it_exports_and_says_what_is_missing(checkpoint, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert main(["export", str(checkpoint), "--out", str(tmp_path / "out")]) == Exit.DONE
    assert names(tmp_path / "out") == FILES - {"certificate.json"}
    printed = capsys.readouterr()
    assert install_command("hf") in printed.out
    assert "warning" in printed.err


KILLED = """
import os, signal, sys
from hornbook.model.hf import hf
from hornbook.cli.main import main
write = hf.write_json
def dying(path, content):
    write(path, content)
    os.kill(os.getpid(), signal.SIGKILL)
hf.write_json = dying
main(["export", sys.argv[1], "--out", sys.argv[2]])
"""


def test_a_killed_export_leaves_nothing_under_its_name_and_can_be_repeated(checkpoint, tmp_path):
    out = tmp_path / "out"
    done = subprocess.run([sys.executable, "-c", KILLED, checkpoint, out], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not out.exists()
    assert len(names(tmp_path)) == 1
    for folder in (out, tmp_path / "undisturbed"):
        assert main(["export", str(checkpoint), "--out", str(folder), "--no-certificate"]) == Exit.DONE
    assert names(tmp_path) == {"out", "undisturbed"}
    for path in out.iterdir():
        assert path.read_bytes() == (tmp_path / "undisturbed" / path.name).read_bytes()


def test_a_place_that_cannot_be_written_is_a_storage_error(checkpoint, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["export", str(checkpoint), "--out", str(tmp_path / "file")]) == Exit.USAGE
    assert main(["export", str(checkpoint), "--out", str(tmp_path / "file" / "out")]) == Exit.STORAGE
    assert "file" in capsys.readouterr().err
