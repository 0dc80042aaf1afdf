"""Import and export against transformers: equal logits, equal bits, and clear refusals."""

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hornbook.errors import IntegrityError, UsageError
from hornbook.model.attention.key_value_cache import KVCache
from hornbook.model.build_model import build_model
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.head_config import LMHead, MaskedHead
from hornbook.model.config.mlp_config import GLUConfig, PlainMLPConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.norm_config import LayerNormConfig
from hornbook.model.config.position_config import LearnedPositionsConfig, RopeConfig
from hornbook.model.hf.hf import read_hf, stored_bytes, write_hf
from hornbook.model.hf.hf_config import choose_architecture
from hornbook.model.hf.hf_layout import parameter_shapes
from hornbook.model.init.init import initial_values
from hornbook.model.transformer import Transformer
from hornbook.text.tokenizer.tokenizer import Tokenizer
from tests.model.likenesses import bert_like

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")  # of transformers' own imports

TOLERANCE = 1e-5
VOCAB = 80


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def random_config(family: str, seed: int) -> ModelConfig:
    """A tiny configuration that the architecture represents, with everything varied that it can vary."""
    draw = random.Random(f"{family}{seed}")
    heads, head_dim = draw.choice([2, 4]), draw.choice([4, 8])
    common = {"layers": draw.choice([1, 2]), "heads": heads, "head": LMHead(tied=draw.random() < 0.5)}
    if family == "gpt2":
        return ModelConfig(
            **common,
            width=heads * head_dim,
            attention=FullAttentionConfig(bias=True, out_bias=True),
            mlp=PlainMLPConfig(
                activation=draw.choice(["gelu_tanh", "gelu", "relu", "silu"]), hidden=draw.choice([None, 24])
            ),
            norm=LayerNormConfig(eps=draw.choice([1e-5, 1e-3])),
            position=LearnedPositionsConfig(length=48),
        )
    bias = draw.random() < 0.5
    return ModelConfig(
        **common,
        width=heads * draw.choice([6, 8]),
        attention=FullAttentionConfig(
            kv_heads=draw.choice([1, 2, heads]),
            head_dim=head_dim,
            bias=bias,
            out_bias=bias,
            qk_norm="head" if family == "qwen3" else "none",
        ),
        mlp=GLUConfig(
            hidden=draw.choice([None, 40]),
            activation=draw.choice(["silu", "gelu_tanh", "relu"]),
            bias=family == "llama" and draw.random() < 0.5,
        ),
        position=RopeConfig(theta=draw.choice([10_000.0, 500.0]), length=48),
    )


CASES = [(family, seed) for family in ("gpt2", "llama", "qwen3") for seed in range(4)]
NAMES = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def from_pretrained(folder: Path, **options: object):
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32, **options
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    return model.eval()


def load(folder: Path) -> Transformer:
    config, vocab, stream = read_hf(folder)
    model = build_model(config, vocab, "cpu")
    model.load_state_dict(dict(stream))
    return model.eval()


def logits(model: Transformer, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.head.logits(model(ids)[0])


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert float((ours - theirs).abs().max()) <= TOLERANCE * float(theirs.abs().max())


def randomise(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            center = 1.0 if ("norm" in name or "ln_" in name) and name.endswith("weight") else 0.0
            parameter.copy_(center + 0.3 * torch.randn_like(parameter))


@pytest.mark.parametrize(("family", "seed"), CASES)
def test_export_is_loaded_by_transformers_with_equal_logits(family, seed, tmp_path, random_model):
    config = random_config(family, seed)
    model = random_model(config, VOCAB, seed)
    write_hf(tmp_path, model, config, VOCAB, None)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [NAMES[family]]
    theirs = from_pretrained(tmp_path)
    generator = torch.Generator().manual_seed(seed)
    for batch, length in ((3, 1), (2, 17), (1, 48)):
        ids = torch.randint(0, VOCAB, (batch, length), generator=generator)
        with torch.no_grad():
            expected = theirs(input_ids=ids).logits
        assert_close(logits(model, ids), expected)


@pytest.mark.parametrize(("family", "seed"), CASES)
def test_export_and_import_is_the_identity(family, seed, tmp_path, random_model):
    config = random_config(family, seed)
    model = random_model(config, VOCAB, seed)
    write_hf(tmp_path, model, config, VOCAB, None)
    read_config, vocab, stream = read_hf(tmp_path)
    assert (read_config, vocab) == (config, VOCAB)
    read = dict(stream)
    assert read.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(read[name], parameter) for name, parameter in model.named_parameters())


def their_model(family: str):
    import transformers

    size = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 0}
    if family == "gpt2":
        config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=48, **size)
        return transformers.GPT2LMHeadModel(config)
    size |= {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    if family == "llama":
        biased = {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 2}
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**size, **biased))
    config = transformers.Qwen3Config(**size, num_key_value_heads=1, head_dim=12, tie_word_embeddings=True)
    return transformers.Qwen3ForCausalLM(config)


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_import_from_transformers_and_back(family, tmp_path):
    torch.manual_seed(7)
    theirs = their_model(family).eval()
    randomise(theirs)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    ids = torch.randint(0, VOCAB, (2, 19))
    with torch.no_grad():
        expected = theirs(input_ids=ids).logits
    assert_close(logits(ours, ids), expected)
    # a cached step gives what the whole row gives
    cache = KVCache()
    with torch.no_grad():
        ours(ids[:, :-1], cache=cache)
        step = ours.head.logits(ours(ids[:, -1:], cache=cache)[0])
    assert_close(step[:, 0], expected[:, -1])
    # and back: their tensors, bit for bit
    config, vocab, stream = read_hf(tmp_path / "theirs")
    write_hf(tmp_path / "ours", dict(stream), config, vocab, None)
    back = from_pretrained(tmp_path / "ours").state_dict()
    assert back.keys() == theirs.state_dict().keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in theirs.state_dict().items())


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_what_transformers_saves_again_is_read(family, tmp_path, random_model):
    config = random_config(family, 1)
    model = random_model(config, VOCAB)
    write_hf(tmp_path / "ours", model, config, VOCAB, None)
    from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    read_config, _, stream = read_hf(tmp_path / "theirs")
    assert read_config == config
    assert all(torch.equal(tensor, model.get_parameter(name)) for name, tensor in stream)


def test_their_parameters_are_all_ours(tmp_path, random_model):
    config = random_config("llama", 0)
    model = random_model(config, VOCAB)
    write_hf(tmp_path, model, config, VOCAB, None)
    count = sum(tensor.numel() for tensor in load_file(tmp_path / "model.safetensors").values())
    assert count == sum(parameter.numel() for parameter in model.parameters())
    assert stored_bytes(config, VOCAB, "float32") == 4 * count


def test_shards_hold_the_same_tensors(tmp_path, random_model):
    config = random_config("gpt2", 2)
    model = random_model(config, VOCAB)
    write_hf(tmp_path / "one", model, config, VOCAB, None)
    write_hf(tmp_path / "many", model, config, VOCAB, None, shard_bytes=4000)
    files = sorted(path.name for path in (tmp_path / "many").glob("*.safetensors"))
    assert len(files) > 3
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == stored_bytes(config, VOCAB, "float32")
    whole = load_file(tmp_path / "one" / "model.safetensors")
    assert index["weight_map"].keys() == whole.keys()
    theirs = from_pretrained(tmp_path / "many").state_dict()
    assert all(torch.equal(theirs[name], tensor) for name, tensor in whole.items())
    ours = dict(read_hf(tmp_path / "many")[2])
    assert all(torch.equal(ours[name], parameter) for name, parameter in model.named_parameters())


def test_the_same_model_gives_the_same_bytes(tmp_path, random_model, tokenizer_folder):
    config = random_config("qwen3", 3)
    model = random_model(config, 320)
    for name in ("a", "b"):
        write_hf(tmp_path / name, model, config, 320, tokenizer_folder)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


@pytest.mark.parametrize("types", [0, 1, 2])
def test_the_tokenizer_beside_a_model_gives_types_where_there_are_two(tmp_path, tokenizer_folder, types):
    config = bert_like(length=24)
    config = config.model_copy(
        update={"embedding": config.embedding.model_copy(update={"types": types}), "head": MaskedHead()}
    )
    write_hf(tmp_path, initial_values(build_model(config, 320), config, seed=0), config, 320, tokenizer_folder)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert ("token_type_ids" in settings.get("model_input_names", [])) == (types == 2)
    for name in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / name).read_text())["bos_token_id"] == Tokenizer.load(tmp_path).delimiter_id


def test_bf16_is_rounded_to_nearest_and_recorded(tmp_path, random_model):
    config = random_config("gpt2", 0)
    model = random_model(config, VOCAB)
    write_hf(tmp_path, model, config, VOCAB, None, dtype="bfloat16")
    for name, tensor in read_hf(tmp_path, dtype=None)[2]:
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, model.get_parameter(name).to(torch.bfloat16))
    assert all(tensor.dtype == torch.float32 for _, tensor in read_hf(tmp_path)[2])
    keys = json.loads((tmp_path / "config.json").read_text())
    assert (keys["dtype"], keys["torch_dtype"]) == ("bfloat16", "bfloat16")


def test_an_iterator_of_tensors_can_be_written(tmp_path, random_model):
    config = random_config("llama", 1)
    model = random_model(config, VOCAB)
    pairs = ((name, parameter.detach()) for name, parameter in model.named_parameters())
    write_hf(tmp_path, pairs, config, VOCAB, None)
    assert all(torch.equal(tensor, model.get_parameter(name)) for name, tensor in read_hf(tmp_path)[2])


UNREPRESENTED = [
    ModelConfig(layers=1, width=16, heads=2, attention=FullAttentionConfig(out_bias=True)),
    ModelConfig(layers=1, width=16, heads=2, mlp=PlainMLPConfig()),
    ModelConfig(layers=2, width=16, heads=2, norm=LayerNormConfig()),
    ModelConfig(layers=1, width=15, heads=2, attention=FullAttentionConfig(head_dim=8)),
    ModelConfig(layers=1, width=16, heads=2, attention=FullAttentionConfig(qk_norm="head"), mlp=GLUConfig(bias=True)),
    ModelConfig(layers=1, width=16, heads=2, position=LearnedPositionsConfig(length=8)),
]


@pytest.mark.parametrize("config", UNREPRESENTED)
def test_what_no_architecture_represents_keeps_our_names(config, tmp_path, random_model):
    assert choose_architecture(config) is None
    model = random_model(config, VOCAB) if config.position.kind == "rope" else None
    tensors = (
        dict(model.named_parameters())
        if model
        else {name: torch.randn(shape) for name, shape in parameter_shapes(config, VOCAB).items()}
    )
    write_hf(tmp_path, tensors, config, VOCAB, None)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["HornbookForCausalLM"]
    read_config, vocab, stream = read_hf(tmp_path)
    assert (read_config, vocab) == (config, VOCAB)
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in stream)
    with pytest.raises(ValueError, match="trust_remote_code"):
        from_pretrained(tmp_path)


def rewrite(folder: Path, edit) -> None:
    """Change the tensors of a folder."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture
def gpt2(tmp_path):
    config = ModelConfig(
        layers=2,
        width=16,
        heads=2,
        attention=FullAttentionConfig(bias=True, out_bias=True),
        mlp=PlainMLPConfig(),
        norm=LayerNormConfig(),
        position=LearnedPositionsConfig(length=8),
    )
    folder = tmp_path / "gpt2"
    tensors = {name: torch.randn(shape) for name, shape in parameter_shapes(config, VOCAB).items()}
    write_hf(folder, tensors, config, VOCAB, None)
    return folder


def test_files_of_the_bare_model_are_read(gpt2):
    expected = dict(read_hf(gpt2)[2])

    def as_on_the_hub(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        for layer in range(2):
            tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 8, 8).tril()
            tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)

    rewrite(gpt2, as_on_the_hub)
    read = dict(read_hf(gpt2)[2])
    assert read.keys() == expected.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in expected.items())


def test_a_tied_head_may_be_stored_if_it_is_the_embedding(gpt2):
    rewrite(gpt2, lambda tensors: tensors.update({"lm_head.weight": tensors["transformer.wte.weight"].clone()}))
    assert "head.weight" not in dict(read_hf(gpt2)[2])
    rewrite(gpt2, lambda tensors: tensors["lm_head.weight"].mul_(2))
    with pytest.raises(IntegrityError, match=r"ties lm_head\.weight to transformer\.wte\.weight, but it differs"):
        read_hf(gpt2)


def test_tensors_that_do_not_match_are_named(gpt2):
    def damage(tensors):
        del tensors["transformer.h.1.ln_1.weight"]
        tensors["transformer.h.2.ln_1.weight"] = torch.ones(16)
        tensors["transformer.h.0.mlp.c_fc.weight"] = torch.ones(64, 16)
        tensors["transformer.wpe.weight"] = torch.ones(8, 16, dtype=torch.float64)

    rewrite(gpt2, damage)
    with pytest.raises(IntegrityError) as caught:
        read_hf(gpt2)
    text = str(caught.value)
    assert "missing: transformer.h.1.ln_1.weight" in text
    assert "unexpected: transformer.h.2.ln_1.weight" in text
    assert "transformer.h.0.mlp.c_fc.weight: expected shape [16, 64], found [64, 16]" in text
    assert "transformer.wpe.weight: stored as F64; F32, BF16, F16 can be read" in text


def test_a_configuration_of_absurd_size_is_refused_at_once(gpt2):
    keys = json.loads((gpt2 / "config.json").read_text())
    del keys["hornbook"]
    (gpt2 / "config.json").write_text(json.dumps(keys | {"n_layer": 10**9}))
    with pytest.raises(IntegrityError, match="1000000000 layers"):
        read_hf(gpt2)


def test_an_unknown_architecture_is_refused_with_the_known_ones(gpt2):
    (gpt2 / "config.json").write_text(json.dumps({"architectures": ["MambaForCausalLM"]}))
    with pytest.raises(UsageError, match=r"MambaForCausalLM; known are GPT2LMHeadModel, .*LlamaForCausalLM, Qwen2"):
        read_hf(gpt2)


def test_the_wrong_tensors_are_a_defect_of_the_caller(tmp_path):
    config = random_config("llama", 0)
    with pytest.raises(AssertionError, match="do not belong to this configuration"):
        write_hf(tmp_path, {}, config, VOCAB, None)
