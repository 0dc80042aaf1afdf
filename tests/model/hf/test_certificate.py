"""The certificate: passes where both sides agree, and fails for each single thing that does not."""

import json
import re
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from hornbook.errors import Exit, IntegrityError, UsageError
from hornbook.files.extras import install_command
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.mlp_config import GLUConfig, PlainMLPConfig
from hornbook.model.config.model_config import LMHead, ModelConfig
from hornbook.model.config.position_config import LearnedPositionsConfig, RopeConfig
from hornbook.model.hf import certificate
from hornbook.model.hf.certificate import MissingTransformers, certify
from hornbook.model.hf.hf import left_out, read_hf, write_hf
from hornbook.model.hf.hf_config import identify
from hornbook.model.storage.load import load_model
from tests.model.likenesses import gpt2_like
from tests.model.parity import make_pair

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")

VOCAB = 320
CONFIGS = {
    "gpt2": gpt2_like(layers=1, hidden=24, length=24),
    "llama": ModelConfig(
        layers=1,
        width=16,
        heads=2,
        attention=FullAttentionConfig(kv_heads=1, bias=True, out_bias=True),
        mlp=GLUConfig(hidden=24, bias=True),
        head=LMHead(tied=False),
        position=RopeConfig(length=24),
    ),
    "qwen3": ModelConfig(
        layers=1,
        width=16,
        heads=2,
        attention=FullAttentionConfig(kv_heads=1, head_dim=12, qk_norm="head"),
        mlp=GLUConfig(hidden=24),
        position=RopeConfig(length=24),
    ),
}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_we_write_is_certified(config, dtype, tmp_path, random_model, tokenizer_folder):
    model = random_model(config, VOCAB, 1)
    write_hf(tmp_path, model, config, VOCAB, tokenizer_folder, dtype=dtype)
    found = certify(tmp_path, source=dict(model.named_parameters())).require()
    assert found.relative_difference is not None
    assert 0 <= found.relative_difference <= 1e-5
    assert found.largest_logit is not None
    assert found.largest_logit > 1
    assert (found.positions, found.tokens, found.tensors_equal) == (24, 2 + 34 + 24, True)
    assert found.tokenizer is not None
    assert found.tokenizer.ids_equal
    assert found.tokenizer.restored
    assert f"loaded back by {found.compared_with} as {found.architecture}, logits equal" in found.summary()
    written = (tmp_path / "certificate.json").read_bytes()
    assert json.loads(written) == json.loads(json.dumps(found.to_json()))
    certify(tmp_path, source=dict(model.named_parameters()))
    assert (tmp_path / "certificate.json").read_bytes() == written


def test_a_change_of_any_one_tensor_is_found(config, tmp_path, random_model):
    """The proof that the certificate looks at every parameter: it fails when any one differs by 1%.

    Each element by its own share, since a norm over queries or keys hides a common factor.
    """
    write_hf(tmp_path / "a", random_model(config, VOCAB, 2), config, VOCAB, None)
    write_hf(tmp_path / "b", random_model(config, VOCAB, 2), config, VOCAB, None)
    tensors = load_file(tmp_path / "b" / "model.safetensors")
    assert certify(tmp_path / "a", reference=tmp_path / "b").ok
    for name, tensor in tensors.items():
        changed = tensors | {name: tensor * (1 + 0.01 * torch.linspace(-1, 1, tensor.numel()).view(tensor.shape))}
        save_file(changed, tmp_path / "b" / "model.safetensors", metadata={"format": "pt"})
        found = certify(tmp_path / "a", reference=tmp_path / "b")
        assert not found.ok, name
        assert "logits differ by" in found.problems[0]


@pytest.mark.parametrize(
    ("differs", "rounds", "passes", "asked"),
    [
        (0.9e-5, 0.0, True, 0),
        (1.2e-5, 0.8e-5, True, 1),
        (1.2e-5, 0.5e-5, False, 1),
        (0.9e-4, 1.0, True, 1),
        (1.1e-4, 1.0, False, 0),
        (1e-3, 1.0, False, 0),
        (float("nan"), 1.0, False, 0),
    ],
)
def test_the_bound_follows_the_rounding_of_float32_and_never_lets_a_thousandth_pass(
    tmp_path, random_model, monkeypatch, differs, rounds, passes, asked
):
    """A sound BLOOM of 12 heads and 2,048 positions differs by 1.2e-5, and is off from its own float64 by 0.8e-5."""
    config, calls = CONFIGS["llama"], []
    write_hf(tmp_path, random_model(config, VOCAB), config, VOCAB, None)
    logits = certificate._Logits(differs, 1.0, 10, 10)
    monkeypatch.setattr(certificate, "_compare_logits", lambda *_: logits)
    monkeypatch.setattr(certificate, "_rounding", lambda *_: (calls.append(1), rounds)[1])
    found = certify(tmp_path)
    assert (found.ok, len(calls)) == (passes, asked)
    assert found.tolerance == (2 * rounds if asked and passes else 1e-5)


def test_the_rounding_of_their_float32_is_measured(config, tmp_path, random_model):
    write_hf(tmp_path, random_model(config, VOCAB, 1), config, VOCAB, None)
    ours, architecture = load_model(tmp_path), identify(json.loads((tmp_path / "config.json").read_text()))
    assert architecture is not None
    with certificate._quiet_transformers() as transformers:
        theirs = certificate._load_theirs(transformers, tmp_path, ours.config, [])
        before = {name: tensor.clone() for name, tensor in theirs.named_parameters()}
        assert 1e-9 < certificate._rounding(theirs, ours, architecture, 0) < 1e-5
        assert all(torch.equal(tensor, before[name]) for name, tensor in theirs.named_parameters())


def test_what_transformers_itself_cannot_run_is_said(tmp_path, random_model, monkeypatch):
    config = CONFIGS["llama"]
    write_hf(tmp_path, random_model(config, VOCAB), config, VOCAB, None)

    def broken(*_: object) -> None:
        raise KeyError("sliding_attention")

    monkeypatch.setattr(certificate, "_run_theirs", broken)
    with pytest.raises(UsageError, match=r"transformers cannot run LlamaForCausalLM as config\.json has it"):
        certify(tmp_path)


def test_a_failed_certificate_is_an_integrity_error_with_every_problem(tmp_path, random_model, monkeypatch):
    config = CONFIGS["llama"]
    monkeypatch.setattr(certificate, "_rounding", lambda *_: 0.0)
    model = random_model(config, VOCAB)
    write_hf(tmp_path, model, config, VOCAB, None)
    source = dict(model.named_parameters())
    source["norm.weight"] = source["norm.weight"] + 1e-6
    found = certify(tmp_path, source=source, tolerance=0.0)
    with pytest.raises(IntegrityError) as caught:
        found.require()
    assert caught.value.exit_code == Exit.INTEGRITY
    assert "stored tensors differ from the given ones: norm.weight" in str(caught.value)
    assert "logits differ by" in str(caught.value)
    assert json.loads((tmp_path / "certificate.json").read_text())["ok"] is False


def test_logits_that_are_no_numbers_are_not_certified(tmp_path, random_model):
    config = CONFIGS["llama"]
    tensors = dict(random_model(config, VOCAB).named_parameters())
    tensors["norm.weight"] = torch.full_like(tensors["norm.weight"], float("nan"))
    write_hf(tmp_path, tensors, config, VOCAB, None)
    assert "logits differ by nan" in certify(tmp_path).problems[0]


def test_tokenizers_that_disagree_are_found(tmp_path, random_model, tokenizer_folder):
    config = CONFIGS["llama"]
    for name in ("a", "b"):
        write_hf(tmp_path / name, random_model(config, VOCAB), config, VOCAB, tokenizer_folder)
    path = tmp_path / "b" / "tokenizer.json"
    data = json.loads(path.read_text())
    data["model"]["merges"] = data["model"]["merges"][:3]
    path.write_text(json.dumps(data))
    found = certify(tmp_path / "a", reference=tmp_path / "b")
    assert any("the tokenizers disagree on 'The quick brown fox" in problem for problem in found.problems)
    assert found.tokenizer is not None
    assert not found.tokenizer.ids_equal


def test_a_context_too_long_to_compare_is_compared_at_both_ends(tmp_path, random_model, monkeypatch):
    config = CONFIGS["gpt2"]
    write_hf(tmp_path, random_model(config, VOCAB), config, VOCAB, None)
    monkeypatch.setattr(certificate, "MAX_LOGITS", 20 * VOCAB)
    found = certify(tmp_path).require()
    assert (found.positions, found.tokens) == (24, 2 + 34 + 20 + 16)


def test_our_own_architecture_is_computed_by_its_modelling_file(tmp_path, random_model):
    config = ModelConfig(layers=1, width=16, heads=2, mlp=PlainMLPConfig(), position=RopeConfig(length=24))
    model = random_model(config, VOCAB)
    write_hf(tmp_path, model, config, VOCAB, None)
    found = certify(tmp_path, source=dict(model.named_parameters())).require()
    assert found.tensors_equal
    assert "as HornbookForCausalLM, logits equal" in found.summary()
    assert "mlp.kind is 'mlp'" in found.note


def test_without_transformers_the_extra_is_named(tmp_path, random_model, monkeypatch):
    config = CONFIGS["llama"]
    write_hf(tmp_path, random_model(config, VOCAB), config, VOCAB, None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingTransformers, match=re.escape(install_command("hf"))):
        certify(tmp_path)


def test_settings_of_transformers_are_put_back(tmp_path, random_model):
    import transformers

    log = transformers.utils.logging
    log.set_verbosity_info()
    log.enable_progress_bar()
    config = CONFIGS["llama"]
    write_hf(tmp_path, random_model(config, VOCAB), config, VOCAB, None)
    certify(tmp_path)
    try:
        assert log.get_verbosity() == log.INFO
        assert log.is_progress_bar_enabled()
    finally:
        log.set_verbosity_warning()


@pytest.mark.parametrize("name", ["bloom", "deepseek_v3", "roberta", "modernbert", "t5_v1_1", "bart"])
def test_every_family_is_certified_as_it_is_and_as_we_write_it(name, tmp_path):
    """Without positions to ask for, with positions counted otherwise, experts, two stacks."""
    make_pair(name, 1, tmp_path / "theirs")
    config, vocab, stream = read_hf(tmp_path / "theirs")
    tensors = dict(stream)
    write_hf(tmp_path / "ours", tensors, config, vocab, None)
    found = certify(tmp_path / "ours", reference=tmp_path / "theirs", source=tensors).require()
    assert found.relative_difference is not None
    assert certify(tmp_path / "ours", source=tensors).require().architecture == found.architecture


def test_tensors_of_other_heads_are_left_out_by_both(tmp_path):
    make_pair("bert", 1, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    width = tensors["bert.embeddings.LayerNorm.weight"].shape[0]
    more = {"bert.pooler.dense.weight": torch.ones(width, width), "cls.seq_relationship.bias": torch.ones(2)}
    save_file(tensors | more, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert certify(tmp_path).ok
    assert left_out(tmp_path) == sorted(more)


def test_yarn_with_an_attention_factor_is_theirs(tmp_path):
    """It was accepted and ignored where it was 1.0, and the logits were off by a quarter."""
    import transformers

    scaling = {"rope_type": "yarn", "factor": 6.0, "original_max_position_embeddings": 12, "rope_theta": 100.0}
    for factor in (1.0, 1.7):
        torch.manual_seed(1)
        config = transformers.LlamaConfig(
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            head_dim=24,
            vocab_size=VOCAB,
            max_position_embeddings=72,
            initializer_range=0.2,
            rope_parameters=scaling | {"attention_factor": factor},
        )
        folder = tmp_path / str(factor)
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
        assert certify(folder).ok


@pytest.mark.parametrize("architecture", ["bert", "roberta", "bart"])
def test_untied_embeddings_are_refused_in_right_words(architecture, tmp_path):
    pair = make_pair(architecture, 0, tmp_path)
    del pair
    keys = json.loads((tmp_path / "config.json").read_text())
    tensors = load_file(tmp_path / "model.safetensors")
    keys.pop("hornbook", None)
    names = {"bert": "cls.predictions.decoder.bias", "roberta": "lm_head.decoder.bias"}
    vocab = next(
        tensor for name, tensor in tensors.items() if name.endswith(("word_embeddings.weight", "shared.weight"))
    )
    heads = {"bert": "cls.predictions.decoder.weight", "roberta": "lm_head.decoder.weight", "bart": "lm_head.weight"}
    tensors[heads[architecture]] = torch.ones_like(vocab)
    extra = names.get(architecture, "model.encoder.embed_tokens.weight")
    tensors[extra] = torch.ones(len(vocab)) if architecture in names else torch.ones_like(vocab)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(keys | {"tie_word_embeddings": False}))
    with pytest.raises(UsageError, match=r"tie_word_embeddings is false\): only models that share them are supported"):
        read_hf(tmp_path)


def test_positions_counted_from_another_padding_are_found():
    """RoBERTa of transformers begins at the id of padding + 1; comparisons of logits name positions themselves."""
    roberta = identify({"architectures": ["RobertaForMaskedLM"], "model_type": "roberta"})
    config = ModelConfig(layers=1, width=16, heads=2, position=LearnedPositionsConfig(length=32, offset=2))
    assert certificate.positions_problem(roberta, config, 1) == []
    (problem,) = certificate.positions_problem(roberta, config, 257)
    assert "the id of padding (257), and those of this model begin at 2" in problem
    assert "model.position.offset = 258" in problem
    assert len(certificate.positions_problem(roberta, config, None)) == 1
    assert certificate.positions_problem(None, config, 257) == []
