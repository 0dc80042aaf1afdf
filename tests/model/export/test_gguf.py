"""GGUF files: their bytes by a reader of a few lines, what is refused, and what transformers reads."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hornbook.cli.main import main
from hornbook.errors import Exit, UsageError
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.mlp_config import ExpertsConfig
from hornbook.model.config.model_config import LMHead, ModelConfig
from hornbook.model.config.position_config import NTKScaling, RopeConfig, YaRN
from hornbook.model.export import gguf_model
from hornbook.model.export.gguf import BLOCK, quantize, rounded
from hornbook.model.export.gguf_certificate import Reading, problems_of
from hornbook.model.export.gguf_model import plan_gguf, to_neighbours, write_model
from hornbook.model.hf.hf import write_hf
from hornbook.text.tokenizer.bpe.tables import PATTERN
from hornbook.text.tokenizer.tokenizer import Tokenizer

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")

VOCAB = 320
FULL = FullAttentionConfig
SHAPE = {"layers": 2, "width": 64, "heads": 4, "position": RopeConfig(length=64, theta=5000.0)}
CONFIGS = {
    "llama": ModelConfig(**SHAPE, attention=FULL(kv_heads=2)),
    "qwen2": ModelConfig(**SHAPE, attention=FULL(kv_heads=2, bias=True), head=LMHead(tied=False)),
    "qwen3": ModelConfig(**SHAPE, attention=FULL(kv_heads=1, head_dim=128, qk_norm="head")),
}


@pytest.fixture(scope="session")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer that splits text as ours do, with a chat template."""
    from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
    from tokenizers import Tokenizer as Library

    made = Library(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["the page says the letters, and \u00e9t\u00e9 12345 too"] * 9, trainer)
    folder = tmp_path_factory.mktemp("bpe")
    made.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    return folder


def read(path: Path) -> tuple[dict[str, Any], dict[str, tuple[tuple[int, ...], int, int]], bytes]:
    """(metadata, (shape, type, offset) of each tensor, data): the format once more, the other way round."""
    data, at = path.read_bytes(), 0

    def take(form: str) -> Any:
        nonlocal at
        values = struct.unpack_from(f"<{form}", data, at)
        at += struct.calcsize(f"<{form}")
        return values[0] if len(values) == 1 else values

    def text() -> str:
        nonlocal at
        size = take("Q")
        at += size
        return data[at - size : at].decode()

    def value(kind: int) -> Any:
        if kind == 9:
            inner, count = take("I"), take("Q")
            return [value(inner) for _ in range(count)]
        return text() if kind == 8 else take({4: "I", 5: "i", 6: "f", 7: "?"}[kind])

    assert (data[:4], struct.unpack_from("<I", data, 4)) == (b"GGUF", (3,))
    at = 8
    tensors, keys = take("Q"), take("Q")
    metadata = {text(): value(take("I")) for _ in range(keys)}
    infos = {}
    for _ in range(tensors):
        name = text()
        dims = [take("Q") for _ in range(take("I"))]
        infos[name] = (tuple(dims[::-1]), *take("IQ"))
    return metadata, infos, data[-(-at // 32) * 32 :]


def written(tmp_path: Path, config: ModelConfig, tokenizer: Path, dtype: Any, random_model: Any):
    model = random_model(config, VOCAB, 5)
    tensors = {name: each.detach() for name, each in model.named_parameters()}
    plan = plan_gguf(config, VOCAB, dtype, tokenizer, "mine")
    return (*read(write_model(tmp_path, plan, tensors)), tensors)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_file_holds_all_of_the_model(kind: str, tmp_path: Path, bpe: Path, random_model: Any) -> None:
    config = CONFIGS[kind]
    metadata, infos, data, tensors = written(tmp_path, config, bpe, "fp32", random_model)
    assert metadata["general.architecture"] == kind
    expected = {"block_count": 2, "embedding_length": 64, "attention.head_count": 4, "context_length": 64}
    expected |= {"attention.head_count_kv": config.kv_heads, "attention.key_length": config.head_dim}
    assert {key: metadata[f"{kind}.{key}"] for key in expected} == expected
    assert metadata[f"{kind}.rope.freq_base"] == 5000.0
    assert len(infos) == len(tensors)

    def stored(name: str) -> Tensor:
        shape, code, offset = infos[name]
        assert code == 0
        assert offset % 32 == 0
        return torch.from_numpy(np.frombuffer(data, "<f4", np.prod(shape), offset).reshape(shape).copy())

    assert torch.equal(stored("token_embd.weight"), tensors["embedding.weight"])
    assert torch.equal(stored("blk.1.ffn_down.weight"), tensors["blocks.1.mlp.down.weight"])
    query, ours = stored("blk.1.attn_q.weight"), tensors["blocks.1.attention.query.weight"]
    if kind != "llama":
        assert torch.equal(query, ours)
        return
    half = config.head_dim // 2
    for head in range(4):
        for pair in range(half):
            row = head * config.head_dim + pair
            assert torch.equal(query[head * config.head_dim + 2 * pair], ours[row])
            assert torch.equal(query[head * config.head_dim + 2 * pair + 1], ours[row + half])


def test_a_tokenizer_is_spelled_out(tmp_path: Path, bpe: Path, random_model: Any) -> None:
    metadata, *_ = written(tmp_path, CONFIGS["llama"], bpe, "fp32", random_model)
    tokenizer, given = Tokenizer.load(bpe), json.loads((bpe / "tokenizer.json").read_text())
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    known = tokenizer.vocab_size
    assert tokens[:known] == [tokenizer.spell(number) for number in range(known)]
    assert tokens[known:] == [f"[UNUSED{number}]" for number in range(known, VOCAB)]
    assert kinds == [3] + [1] * (known - 1) + [5] * (VOCAB - known)
    merges = [each if isinstance(each, str) else " ".join(each) for each in given["model"]["merges"]]
    assert metadata["tokenizer.ggml.merges"] == merges
    assert (metadata["tokenizer.ggml.pre"], metadata["tokenizer.ggml.bos_token_id"]) == ("dbrx", 0)
    assert metadata["tokenizer.chat_template"] == "{{ messages[0]['content'] }}"


def test_q8_0_rounds_to_the_nearest_of_127_steps() -> None:
    values = torch.randn(7, 2 * BLOCK, generator=torch.Generator().manual_seed(0))
    values[0] = 0
    scales, codes = quantize(values)
    assert int(codes.abs().max()) == 127
    found = rounded(values, "q8_0")
    steps = scales.repeat_interleave(BLOCK).view(values.shape)
    assert bool(((found - values).abs() <= 0.5 * steps + 127 * steps * 2**-11).all())
    assert not found[0].any()


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "q8_0"])
def test_narrow_types_have_their_bytes(dtype: str, tmp_path: Path, bpe: Path, random_model: Any) -> None:
    _, infos, data, tensors = written(tmp_path, CONFIGS["qwen2"], bpe, dtype, random_model)
    assert {infos[name][1] for name in infos if "norm" in name or "bias" in name} == {0}
    shape, code, offset = infos["token_embd.weight"]
    count, wanted = shape[0] * shape[1], rounded(tensors["embedding.weight"], dtype)  # pyright: ignore[reportArgumentType]
    if dtype == "q8_0":
        blocks = np.frombuffer(data, np.dtype([("scale", "<f2"), ("codes", "i1", BLOCK)]), count // BLOCK, offset)
        found = blocks["scale"].astype(np.float32)[:, None] * blocks["codes"]
    elif dtype == "fp16":
        found = np.frombuffer(data, "<f2", count, offset).astype(np.float32)
    else:
        found = (np.frombuffer(data, "<u2", count, offset).astype(np.uint32) << 16).view(np.float32)
    assert code == {"fp16": 1, "bf16": 30, "q8_0": 8}[dtype]
    assert np.array_equal(found.reshape(shape), wanted.numpy())


WRONG = {
    "scaling of kind 'yarn'": CONFIGS["llama"].model_copy(
        update={"position": RopeConfig(length=64, scaling=YaRN(factor=2, original=32))}
    ),
    "HornbookForCausalLM|none": CONFIGS["llama"].model_copy(
        update={"position": RopeConfig(length=64, scaling=NTKScaling(factor=2))}
    ),
    "attention.bias": CONFIGS["llama"].model_copy(update={"attention": FULL(bias=True, out_bias=True)}),
    "Mixtral": ModelConfig(**SHAPE, mlp=ExpertsConfig(count=4, active=2, hidden=32)),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_has_no_place_is_refused_by_name(what: str, bpe: Path) -> None:
    with pytest.raises(UsageError, match=what):
        plan_gguf(WRONG[what], VOCAB, "fp32", bpe, "mine")


def test_rows_and_tokenizers_that_do_not_fit_are_refused(bpe: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    odd = ModelConfig(**SHAPE | {"width": 40})
    with pytest.raises(UsageError, match="multiples of 32 values"):
        plan_gguf(odd, VOCAB, "q8_0", bpe, "mine")
    with pytest.raises(UsageError, match="needs a tokenizer"):
        plan_gguf(CONFIGS["llama"], VOCAB, "fp32", None, "mine")
    data = json.loads((bpe / "tokenizer.json").read_text())
    data["normalizer"] = {"type": "Lowercase"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(UsageError, match="splits text as GPT-2, Llama 3 or Qwen 2"):
        plan_gguf(CONFIGS["llama"], VOCAB, "fp32", tmp_path, "mine")
    assert plan_gguf(CONFIGS["llama"], VOCAB, "fp32", tokenizer_folder, "m").metadata["tokenizer.ggml.pre"] == "gpt-2"


def model_folder(tmp_path: Path, config: ModelConfig, bpe: Path, random_model: Any) -> Path:
    write_hf(tmp_path / "model", random_model(config, VOCAB, 5), config, VOCAB, bpe)
    return tmp_path / "model"


def test_export_refuses_what_other_folders_have_no_type_for(
    tmp_path: Path, bpe: Path, random_model: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(model_folder(tmp_path, CONFIGS["llama"], bpe, random_model))
    out = ["--out", str(tmp_path / "out")]
    assert main(["export", folder, *out, "--dtype", "q8_0"]) == Exit.USAGE
    assert main(["export", folder, *out, "--to", "gguf", "--quantize", "int8"]) == Exit.USAGE
    assert main(["export", folder, *out, "--to", "gguf", "-n"]) == Exit.DONE
    assert "would write" in capsys.readouterr().out
    assert main(["export", folder, *out, "--to", "gguf", "--no-certificate"]) == Exit.DONE
    assert {"model.gguf", "tokenizer.json", "lineage.json"} <= {each.name for each in (tmp_path / "out").iterdir()}


@pytest.mark.parametrize(
    ("kind", "dtype"), [("llama", "fp32"), ("llama", "q8_0"), ("qwen2", "fp16"), ("qwen3", "bf16")]
)
def test_transformers_computes_the_same(
    kind: str, dtype: str, tmp_path: Path, bpe: Path, random_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gguf")
    folder = model_folder(tmp_path, CONFIGS[kind], bpe, random_model)
    words = ["export", str(folder), "--to", "gguf", "--dtype", dtype, "--out"]
    assert main([*words, str(tmp_path / "out")]) == Exit.DONE
    certificate = json.loads((tmp_path / "out" / "certificate.json").read_text())
    assert certificate["ok"]
    assert certificate["readings"][0]["program"] == "transformers"
    assert certificate["readings"][0]["same_best"] == 1
    if kind == "llama":  # rows in another order are another model, and the certificate says so
        monkeypatch.setattr(gguf_model, "to_neighbours", lambda weight, _: weight)
        assert main([*words, str(tmp_path / "wrong")]) == Exit.INTEGRITY
        assert not (tmp_path / "wrong").exists()


def test_neighbours_keep_every_row() -> None:
    weight = torch.arange(24.0).view(12, 2)
    assert sorted(map(tuple, to_neighbours(weight, 2).tolist())) == list(map(tuple, weight.tolist()))


def test_what_a_program_was_allowed_is_told_as_it_is() -> None:
    reading = Reading("llama.cpp", 0.5, allowed=0.25, same_best=0.9, tokenizer_equal=True)
    (problem,) = problems_of([reading])
    assert problem == "llama.cpp: logits differ by 5.00e-01 of the largest one; 0.25 is allowed"
