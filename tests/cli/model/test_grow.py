"""`hornbook grow`: a deeper, shallower or sparser starting point from a checkpoint."""

import json

import torch

from hornbook.cli.main import main
from hornbook.errors import Exit
from hornbook.model.storage.load import load_model

TOKENS = torch.arange(16)[None]


@torch.no_grad()
def hidden(folder) -> torch.Tensor:
    return load_model(folder).model(TOKENS)[0]


def test_more_layers_and_experts_that_compute_the_same(checkpoint, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["--layers", "5", "--experts", "4", "--active", "2"]
    assert main(["grow", str(checkpoint), "--out", str(out), "--json", *words]) == Exit.DONE
    report = json.loads(capsys.readouterr().out)
    assert report["computes_the_same"] is True
    loaded = load_model(out)
    assert loaded.tokenizer is not None
    assert (loaded.config.layers, loaded.config.mlp.kind) == (5, "experts")
    torch.testing.assert_close(hidden(out), hidden(checkpoint), rtol=1e-5, atol=1e-5)
    assert main(["generate", str(out), "-p", "a", "--tokens", "3", "--json"]) == Exit.DONE


def test_fewer_layers_and_plain_copies_compute_something_else(checkpoint, tmp_path, capsys):
    for words in (["--layers", "1"], ["--layers", "4", "--copies", "--order", "spread"]):
        out = tmp_path / words[1]
        assert main(["grow", str(checkpoint), "--out", str(out), *words]) == Exit.DONE
        assert "it does not compute the same as the original" in capsys.readouterr().out
        assert not torch.allclose(hidden(out), hidden(checkpoint), atol=1e-2)


def test_a_dry_run_writes_nothing(checkpoint, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["grow", str(checkpoint), "--out", str(out), "--layers", "6", "-n"]) == Exit.DONE
    assert "6 layers, width 32, MLP glu; nothing written" in capsys.readouterr().out
    assert not out.exists()


def test_what_cannot_be_is_refused(checkpoint, tmp_path, capsys):
    out = str(tmp_path / "out")
    assert main(["grow", str(checkpoint), "--out", out]) == Exit.USAGE
    assert "give --layers, --encoder-layers or --experts" in capsys.readouterr().err
    assert main(["grow", str(checkpoint), "--out", out, "--layers", "4", "--order", "mix"]) == Exit.USAGE
    assert "'mix' is not one of 'stack', 'spread'" in capsys.readouterr().err
    assert main(["grow", str(checkpoint), "--out", out, "--encoder-layers", "4"]) == Exit.USAGE
    assert "no encoder beside it" in capsys.readouterr().err
