"""Adapting a model from the command line: train --surgery, generate, export of adapters and codes, new tokens."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from hornbook.cli.main import main
from hornbook.errors import Exit
from hornbook.model.storage.load import load_model
from hornbook.text.tokenizer.tokenizer import Tokenizer

ONE_STEP = ("train.tokens=128", "optim.schedule.warmup=0 steps")


@pytest.fixture
def words(tiny_settings: tuple[str, ...]) -> list[str]:
    """Settings of a tiny run but data and shape, which `--data` and `--from` give."""
    return [word for word in tiny_settings if not word.startswith(("data.path", "model."))]


def said(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def logits_of(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    model = load_model(folder).model
    assert model.head is not None
    with torch.no_grad():
        return model.head.logits(model(ids)[0])


def test_an_adapter_from_the_command_line(
    tmp_path: Path, tiny_corpus: Path, checkpoint: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run, step = tmp_path / "run", '[{kind="lora", rank=4}]'
    command = ["train", "--data", str(tiny_corpus), "--from", str(checkpoint), "--out", str(run), *words]
    assert main([*command, "--surgery", step, "-n", "--json"]) == Exit.DONE
    summary = said(capsys)
    assert summary["surgery"][0]["kind"] == "lora"
    assert 0 < summary["trained"] < summary["parameters"] / 2
    assert main([*command, "--surgery", step]) == Exit.DONE
    assert f"{summary['trained']:,} of" in capsys.readouterr().err
    assert main(["generate", str(run), "-p", "the", "--tokens", "4", "--greedy", "--json"]) == Exit.DONE
    held_out = tmp_path / "held-out.txt"
    held_out.write_text("a model learns to read")
    assert main(["eval", str(run), "--data", str(held_out), "--json"]) == Exit.DONE
    assert main(["export", str(run), "--out", str(tmp_path / "merged"), "--no-certificate", "--json"]) == Exit.DONE
    for folder in (run, max((run / "checkpoints").glob("step-*"))):
        assert main(["import", str(folder), "--out", str(tmp_path / "imported")]) == Exit.USAGE
        assert f"merge it with `hornbook export {folder} --out FOLDER`" in capsys.readouterr().err
    assert main(["export", str(run), "--to", "peft", "--out", str(tmp_path / "adapter")]) == Exit.DONE
    assert capsys.readouterr().err == f"next: hornbook generate {tmp_path / 'adapter'} -p TEXT\n"
    assert main(["generate", str(tmp_path / "adapter"), "-p", "the", "--tokens", "2"]) == Exit.DONE
    ids = torch.arange(40)[None]
    trained = logits_of(tmp_path / "adapter", ids)
    merged = logits_of(tmp_path / "merged", ids)
    torch.testing.assert_close(merged, trained[..., : merged.shape[-1]], atol=1e-4, rtol=1e-5)
    assert not torch.allclose(trained, logits_of(checkpoint, ids), atol=1e-2)
    assert main(["train", "--data", str(tiny_corpus), "--from", str(run), "--out", str(tmp_path / "x"), *words]) == 2
    assert "is an adapter, and a run starts from whole weights" in capsys.readouterr().err


@pytest.mark.parametrize("step", ['[{kind="bottleneck", width=4}]', "prompt", '[{kind="llama_adapter", below=0}]'])
def test_what_cannot_be_merged_is_refused_before_anything_is_written(
    tmp_path: Path, tiny_settings: tuple[str, ...], step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run said that it would be exported."""
    run, out = tmp_path / "run", ["--out", str(tmp_path / "out")]
    assert main(["train", "--out", str(run), *tiny_settings, f"surgery={step}", *ONE_STEP]) == Exit.DONE
    for words in ([], ["-n"], ["-n", "--quantize", "int8"]):
        assert main(["export", str(run), *out, *words]) == Exit.USAGE
        assert "cannot be merged" in capsys.readouterr().err
    assert main(["export", str(run), *out, "--to", "peft", "-n"]) == Exit.DONE
    assert not (tmp_path / "out").exists()


def test_a_prefix_goes_to_peft_without_the_network_that_made_it(
    tmp_path: Path, tiny_settings: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    step = 'surgery=[{kind="prefix", length=3, hidden=5}]'
    assert main(["train", "--out", str(run), *tiny_settings, step, *ONE_STEP]) == Exit.DONE
    assert main(["export", str(run), "--out", str(out)]) == Exit.USAGE
    assert "cannot be merged" in capsys.readouterr().err
    assert main(["export", str(run), "--to", "peft", "--out", str(out)]) == Exit.DONE
    assert "peft.PeftModel.from_pretrained" in capsys.readouterr().out
    assert json.loads((out / "adapter_config.json").read_text())["peft_type"] == "PREFIX_TUNING"
    ids = torch.arange(20)[None]
    trained = logits_of(max((run / "checkpoints").glob("step-*")), ids)
    torch.testing.assert_close(logits_of(out, ids), trained, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("form", "most"), [("int8", 0.01), ("int4-group16", 0.12), ("int8-tensor", 0.02)])
def test_codes_instead_of_weights(
    tmp_path: Path, checkpoint: Path, form: str, most: float, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "quantized"
    assert main(["export", str(checkpoint), "--quantize", form, "--out", str(out), "--json"]) == Exit.DONE
    report = said(capsys)
    assert 0 < report["relative_error"] < most
    assert report["bytes_after"] < report["bytes_before"] * (0.3 if "int8" in form else 0.2)
    ids = torch.arange(40)[None]
    dense, coded = logits_of(checkpoint, ids), logits_of(out, ids)
    assert 0 < float((coded - dense).norm() / dense.norm()) < 5 * most
    assert main(["generate", str(out), "-p", "the", "--tokens", "3", "--greedy"]) == Exit.DONE
    capsys.readouterr()
    assert main(["export", str(checkpoint), "--quantize", form, "--out", str(tmp_path / "again")]) == Exit.DONE
    assert capsys.readouterr().err == f"next: hornbook generate {tmp_path / 'again'} -p TEXT\n"


def test_rounding_makes_good_its_errors_on_a_text(
    tmp_path: Path, checkpoint: Path, tiny_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, form = tmp_path / "calibrated", ["--quantize", "int4-group16", "--calibrate", str(tiny_corpus), "--rows", "8"]
    assert main(["export", str(checkpoint), *form, "--act-order", "--out", str(out), "--json"]) == Exit.DONE
    report = said(capsys)
    nearest, made = report["output_errors"]
    assert 0 < made < nearest
    assert report["after"]["bytes"] < report["before"]["bytes"]
    assert report["after"]["parameters"] == report["before"]["parameters"]
    assert 0 < abs(report["after"]["loss"] - report["before"]["loss"]) < 0.05
    assert main(["export", str(checkpoint), *form, "--out", str(tmp_path / "again")]) == Exit.DONE
    assert re.search(r"loss: \d\.\d{4} -> \d\.\d{4}\n", capsys.readouterr().out)
    assert main(["generate", str(out), "-p", "the", "--tokens", "3", "--greedy"]) == Exit.DONE


def test_new_tokens_begin_as_their_pieces(tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "new.txt").write_text("model\nletters\n")
    out = tmp_path / "extended"
    arguments = ["import", str(checkpoint), "--add-tokens", str(tmp_path / "new.txt"), "--out", str(out), "--json"]
    assert main(arguments) == Exit.DONE
    assert said(capsys)["vocab"] == 320
    old, new = Tokenizer.load(checkpoint), Tokenizer.load(out)
    assert new.encode("a model of") == [*old.encode("a "), 257, *old.encode(" of")]
    assert new.decode(new.encode("a model of letters")) == "a model of letters"
    before, after = load_model(checkpoint).model, load_model(out).model
    rows = before.get_parameter("embedding.weight")
    assert torch.equal(after.get_parameter("embedding.weight")[257], rows[old.encode("model")].mean(0))
    assert torch.equal(after.get_parameter("embedding.weight")[259:], rows[259:])
    ids = torch.tensor([old.encode("the page says")])
    assert torch.equal(logits_of(out, ids)[..., :257], logits_of(checkpoint, ids)[..., :257])


def test_new_tokens_are_added_to_a_run(tmp_path: Path, checkpoint: Path, run_with_checkpoints: Path) -> None:
    (tmp_path / "new.txt").write_text("model\n")
    both = list[bytes]()
    for source in (run_with_checkpoints, checkpoint):
        out = tmp_path / source.name
        assert main(["import", str(source), "--add-tokens", str(tmp_path / "new.txt"), "--out", str(out)]) == Exit.DONE
        both.append((out / "model.safetensors").read_bytes())
    assert both[0] == both[1]


def test_a_vocabulary_that_grows_has_no_rows_without_tokens_and_keeps_its_settings(
    tmp_path: Path, checkpoint: Path
) -> None:
    source, out = tmp_path / "source", tmp_path / "extended"
    shutil.copytree(checkpoint, source)
    settings = {"eos_token": "<|endoftext|>", "chat_template": "{{ messages }}", "model_max_length": 64}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "new.txt").write_text("\n".join(f"word{number}" for number in range(100)))
    assert main(["import", str(source), "--add-tokens", str(tmp_path / "new.txt"), "--out", str(out)]) == Exit.DONE
    assert load_model(out).model.get_parameter("embedding.weight").shape[0] == 257 + 100
    kept = json.loads((out / "tokenizer_config.json").read_text())
    assert {name: kept[name] for name in settings} == settings


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--quantize", "int9"], "--quantize int9: write int8, int4, nf4"),
        (["--quantize", "int4-group0"], "--quantize int4-group0: write int8, int4, nf4"),
        (["--quantize", "int4-group48"], r"rows of 32 values, which groups of 48 do not divide"),
        (["--quantize", "nf4", "--calibrate", "data"], "--calibrate is for integers: give --quantize int8"),
        (["--calibrate", "data"], "--calibrate is for integers"),
        (["--quantize", "int8", "--act-order"], "give it the text, --calibrate DATA"),
        (["--to", "peft"], "holds no adapter"),
        (["--to", "mlx"], "is not one of 'hf', 'peft'"),
    ],
)
def test_mistakes_are_answered_with_exit_code_2(
    tmp_path: Path, checkpoint: Path, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(checkpoint), "--out", str(tmp_path / "out"), *arguments]) == Exit.USAGE
    assert text in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_token_that_is_there_is_refused(tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "new.txt").write_text("word\nword\n")
    out = ["--out", str(tmp_path / "out")]
    assert main(["import", str(checkpoint), "--add-tokens", str(tmp_path / "new.txt"), *out]) == Exit.USAGE
    assert "new token 2, 'word', is there already" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["int4", "nf4"])
def test_rows_that_groups_do_not_divide_have_a_way_out(
    tmp_path: Path, tiny_settings: tuple[str, ...], form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Followed to the letter."""
    run, out = tmp_path / "run", tmp_path / "out"
    words = [*tiny_settings, "model.width=24", "model.mlp.hidden=40", *ONE_STEP]
    assert main(["train", "--out", str(run), *words]) == Exit.DONE
    capsys.readouterr()
    assert main(["export", str(run), "--quantize", form, "--out", str(out)]) == Exit.USAGE
    found = re.search(r"take --quantize (\S+)", capsys.readouterr().err)
    assert found is not None
    assert found[1] == f"{form}-group8"
    assert main(["export", str(run), "--quantize", found[1], "--out", str(out)]) == Exit.DONE
    (tmp_path / "text.txt").write_text("a model learns")
    assert main(["eval", str(out), "--data", str(tmp_path / "text.txt"), "--json"]) == Exit.DONE


def test_layers_that_transformers_has_in_one_matrix_are_not_exported_to_peft(
    tmp_path: Path, tiny_settings: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """A LoRA of rank 4 on each of three would be one of rank 12, which trains on as another model."""
    gpt2 = ["model.position.kind=learned", "model.norm.kind=layer", "model.mlp.kind=mlp", "model.mlp.bias=true"]
    gpt2 += ["model.mlp.activation=gelu_tanh", "model.attention.bias=true", "model.attention.out_bias=true"]
    run = tmp_path / "run"
    surgery = 'surgery=[{kind="lora", rank=4}]'
    assert main(["train", "--out", str(run), *tiny_settings, *gpt2, surgery, *ONE_STEP]) == Exit.DONE
    capsys.readouterr()
    assert main(["export", str(run), "--to", "peft", "--out", str(tmp_path / "out")]) == Exit.USAGE
    assert "of rank 12 there computes the same, but trains as another model" in capsys.readouterr().err
    assert main(["export", str(run), "--out", str(tmp_path / "out"), "--no-certificate"]) == Exit.DONE
