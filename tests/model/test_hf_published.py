"""config.json as published on the hub: read whole, and the number of parameters that it is known to have."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from hornbook.errors import IntegrityError, UsageError
from hornbook.model.hf.hf import read_hf
from hornbook.model.hf.hf_config import choose_architecture, from_json, identify
from hornbook.model.hf.hf_layout import parameter_shapes
from tests.model.parity import make_pair

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")

COMMON = {"transformers_version": "4.40", "use_cache": True, "torch_dtype": "float16", "initializer_range": 0.02}
BERT = {
    "architectures": ["BertForMaskedLM"],
    "attention_probs_dropout_prob": 0.1,
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
PUBLISHED = {
    "bert-base-uncased": (BERT, 109_514_298),
    "roberta-base": (
        BERT
        | {"architectures": ["RobertaForMaskedLM"], "model_type": "roberta", "vocab_size": 50265, "pad_token_id": 1}
        | {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "bos_token_id": 0},
        124_697_433,
    ),
    "modernbert-base": (
        {
            "architectures": ["ModernBertForMaskedLM"],
            "model_type": "modernbert",
            "vocab_size": 50368,
            "attention_bias": False,
            "classifier_activation": "gelu",
            "classifier_pooling": "mean",
            "decoder_bias": True,
            "deterministic_flash_attn": False,
            "global_attn_every_n_layers": 3,
            "global_rope_theta": 160000.0,
            "local_rope_theta": 10000.0,
            "local_attention": 128,
            "hidden_activation": "gelu",
            "hidden_size": 768,
            "intermediate_size": 1152,
            "layer_norm_eps": 1e-5,
            "max_position_embeddings": 8192,
            "norm_eps": 1e-5,
            "num_attention_heads": 12,
            "num_hidden_layers": 22,
            "position_embedding_type": "absolute",
            "sep_token_id": 50282,
            "sparse_pred_ignore_index": -100,
            "initializer_cutoff_factor": 2.0,
            "pad_token_id": 50283,
            "cls_token_id": 50281,
        },
        149_655_232,
    ),
    "opt-350m": (
        {
            "architectures": ["OPTForCausalLM"],
            "model_type": "opt",
            "vocab_size": 50272,
            "hidden_size": 1024,
            "activation_function": "relu",
            "do_layer_norm_before": False,
            "ffn_dim": 4096,
            "init_std": 0.02,
            "max_position_embeddings": 2048,
            "num_attention_heads": 16,
            "num_hidden_layers": 24,
            "prefix": "</s>",
            "word_embed_proj_dim": 512,
            "_remove_final_layer_norm": False,
            "layerdrop": 0.0,
            "dropout": 0.1,
        },
        331_196_416,
    ),
    "pythia-70m": (
        {
            "architectures": ["GPTNeoXForCausalLM"],
            "model_type": "gpt_neox",
            "vocab_size": 50304,
            "hidden_act": "gelu",
            "hidden_size": 512,
            "intermediate_size": 2048,
            "layer_norm_eps": 1e-5,
            "max_position_embeddings": 2048,
            "num_attention_heads": 8,
            "num_hidden_layers": 6,
            "rotary_emb_base": 10000,
            "rotary_pct": 0.25,
            "tie_word_embeddings": False,
            "use_parallel_residual": True,
        },
        70_426_624,
    ),
    "bloom-560m": (
        {
            "architectures": ["BloomForCausalLM"],
            "model_type": "bloom",
            "vocab_size": 250880,
            "n_embed": 1024,
            "n_layer": 24,
            "num_attention_heads": 16,
            "offset_alibi": 100,
            "masked_softmax_fusion": True,
            "attention_softmax_in_fp32": True,
            "bias_dropout_fusion": True,
            "skip_bias_add": True,
            "layer_norm_epsilon": 1e-5,
            "n_inner": None,
            "pretraining_tp": 1,
            "unk_token_id": 0,
        },
        559_214_592,
    ),
    "gemma-2-2b": (
        {
            "architectures": ["Gemma2ForCausalLM"],
            "model_type": "gemma2",
            "vocab_size": 256000,
            "head_dim": 256,
            "attention_bias": False,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "cache_implementation": "hybrid",
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 2304,
            "hidden_activation": "gelu_pytorch_tanh",
            "intermediate_size": 9216,
            "num_attention_heads": 8,
            "max_position_embeddings": 8192,
            "num_hidden_layers": 26,
            "num_key_value_heads": 4,
            "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "sliding_window": 4096,
        },
        2_614_341_888,
    ),
    "llama-3.1-8b": (
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": 128256,
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "mlp_bias": False,
            "max_position_embeddings": 131072,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "tie_word_embeddings": False,
            "rope_scaling": {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "rope_type": "llama3",
                "original_max_position_embeddings": 8192,
            },
        },
        8_030_261_248,
    ),
    "mixtral-8x7b": (
        {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "vocab_size": 32000,
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_local_experts": 8,
            "max_position_embeddings": 32768,
            "num_attention_heads": 32,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "output_router_logits": False,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1000000.0,
            "router_aux_loss_coef": 0.02,
            "sliding_window": None,
        },
        46_702_792_704,
    ),
    "qwen3-30b-a3b": (
        {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "vocab_size": 151936,
            "decoder_sparse_step": 1,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "max_position_embeddings": 40960,
            "max_window_layers": 48,
            "mlp_only_layers": [],
            "moe_intermediate_size": 768,
            "norm_topk_prob": True,
            "num_experts": 128,
            "num_attention_heads": 32,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 48,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-6,
            "rope_scaling": None,
            "rope_theta": 1000000.0,
            "sliding_window": None,
            "use_sliding_window": False,
            "tie_word_embeddings": False,
        },
        30_532_122_624,
    ),
    "deepseek-v3": (
        {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "vocab_size": 129280,
            "auto_map": {"AutoConfig": "x"},
            "aux_loss_alpha": 0.001,
            "ep_size": 1,
            "first_k_dense_replace": 3,
            "hidden_act": "silu",
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "kv_lora_rank": 512,
            "max_position_embeddings": 163840,
            "moe_intermediate_size": 2048,
            "moe_layer_freq": 1,
            "n_group": 8,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_attention_heads": 128,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 61,
            "num_key_value_heads": 128,
            "num_nextn_predict_layers": 1,
            "q_lora_rank": 1536,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000,
            "routed_scaling_factor": 2.5,
            "scoring_func": "sigmoid",
            "seq_aux": True,
            "tie_word_embeddings": False,
            "topk_group": 4,
            "topk_method": "noaux_tc",
            "v_head_dim": 128,
            "rope_scaling": {
                "beta_fast": 32,
                "beta_slow": 1,
                "factor": 40,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 4096,
                "type": "yarn",
            },
        },
        671_026_419_200,  # without what predicts further tokens, with the routers' biases
    ),
    "t5-small": (
        {
            "architectures": ["T5ForConditionalGeneration"],
            "model_type": "t5",
            "vocab_size": 32128,
            "d_ff": 2048,
            "d_kv": 64,
            "d_model": 512,
            "num_heads": 8,
            "num_layers": 6,
            "n_positions": 512,
            "decoder_start_token_id": 0,
            "dropout_rate": 0.1,
            "eos_token_id": 1,
            "initializer_factor": 1.0,
            "is_encoder_decoder": True,
            "layer_norm_epsilon": 1e-6,
            "output_past": True,
            "pad_token_id": 0,
            "relative_attention_num_buckets": 32,
            "task_specific_params": {"summarization": {"num_beams": 4}},
        },
        60_506_624,
    ),
    "bart-base": (
        {
            "architectures": ["BartForConditionalGeneration"],
            "model_type": "bart",
            "vocab_size": 50265,
            "activation_dropout": 0.1,
            "activation_function": "gelu",
            "add_bias_logits": False,
            "add_final_layer_norm": False,
            "classif_dropout": 0.1,
            "d_model": 768,
            "decoder_attention_heads": 12,
            "decoder_ffn_dim": 3072,
            "decoder_layers": 6,
            "decoder_start_token_id": 2,
            "early_stopping": True,
            "encoder_attention_heads": 12,
            "encoder_ffn_dim": 3072,
            "encoder_layers": 6,
            "init_std": 0.02,
            "max_position_embeddings": 1024,
            "no_repeat_ngram_size": 3,
            "normalize_before": False,
            "normalize_embedding": True,
            "num_beams": 4,
            "num_hidden_layers": 6,
            "scale_embedding": False,
        },
        139_420_416 + 50265,  # with the logits' biases, which transformers keeps as a buffer
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_have_the_published_number_of_parameters(name):
    keys, parameters = PUBLISHED[name]
    config, vocab = from_json(COMMON | keys)
    shapes = parameter_shapes(config, vocab)
    assert sum(map(math.prod, shapes.values())) == parameters
    assert choose_architecture(config) is identify(keys)


def test_layers_that_differ_are_said_briefly():
    modern, _ = from_json(PUBLISHED["modernbert-base"][0])
    assert (len(modern.first), len(modern.pattern)) == (1, 3)
    thetas = [modern.layer(i).position.theta for i in range(7)]
    assert thetas == [160000.0, 10000.0, 10000.0, 160000.0, 10000.0, 10000.0, 160000.0]
    gemma, _ = from_json(PUBLISHED["gemma-2-2b"][0])
    assert [gemma.layer(i).attention.window for i in range(4)] == [4096, None, 4096, None]
    deepseek, _ = from_json(PUBLISHED["deepseek-v3"][0])
    assert [deepseek.layer(i).mlp.kind for i in (0, 2, 3, 60)] == ["glu", "glu", "experts", "experts"]
    assert (len(deepseek.first), deepseek.pattern) == (3, [])


REFUSED = [
    ("bart-base", {"decoder_ffn_dim": 2048}, "encoder_ffn_dim = 3072 and decoder_ffn_dim = 2048 differ"),
    ("bart-base", {"normalize_before": True}, "normalize_before"),
    ("t5-small", {"feed_forward_proj": "gated-tanh"}, "feed_forward_proj 'gated-tanh'"),
    ("bert-base-uncased", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
    ("bert-base-uncased", {"is_decoder": True}, "is_decoder"),
    ("deepseek-v3", {"scoring_func": "softmax"}, "scoring_func"),
    ("deepseek-v3", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    ("opt-350m", {"_remove_final_layer_norm": True}, "_remove_final_layer_norm"),
    ("bloom-560m", {"apply_residual_connection_post_layernorm": True}, "apply_residual"),
    ("modernbert-base", {"hidden_activation": "mish"}, "hidden_activation 'mish'"),
]


@pytest.mark.parametrize(("name", "keys", "message"), REFUSED)
def test_what_would_compute_something_else_is_refused_by_name(name, keys, message):
    with pytest.raises(UsageError, match=message):
        from_json(PUBLISHED[name][0] | keys)


DAMAGED = [
    ("gemma-2-2b", {"layer_types": ["full_attention"]}, "layer_types must name"),
    ("roberta-base", {"pad_token_id": 600}, "pad_token_id 600 leaves no room"),
    ("t5-small", {"d_model": "many"}, "width: a positive integer"),
    ("deepseek-v3", {"n_shared_experts": "one"}, "n_shared_experts"),
    ("deepseek-v3", {"first_k_dense_replace": "three"}, "first_k_dense_replace = 'three'"),
    ("deepseek-v3", {"num_hidden_layers": 10**9}, "a number up to 2048"),
    ("deepseek-v3", {"rope_scaling": {"type": "yarn", "factor": "x"}}, "factor"),
    ("qwen3-30b-a3b", {"decoder_sparse_step": 0}, "decoder_sparse_step = 0"),
    ("qwen3-30b-a3b", {"use_sliding_window": True, "sliding_window": "wide"}, "window"),
    ("gemma-2-2b", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar = 0"),
    ("gemma-2-2b", {"query_pre_attn_scalar": -4}, "scale"),
    ("modernbert-base", {"global_attn_every_n_layers": 0}, "global_attn_every_n_layers = 0"),
    ("modernbert-base", {"rope_parameters": {"full_attention": 3}}, "rope_parameters"),
    ("t5-small", {"feed_forward_proj": ["relu"]}, "feed_forward_proj"),
    ("pythia-70m", {"rotary_pct": 0.05}, "even number of dims, not 3"),
    ("opt-350m", {"word_embed_proj_dim": "narrow"}, "embedding.width"),
]


@pytest.mark.parametrize(("name", "keys", "message"), DAMAGED)
def test_damaged_configurations_are_refused_by_name(name, keys, message):
    with pytest.raises(IntegrityError, match=message):
        from_json(PUBLISHED[name][0] | keys)


def test_names_of_older_files_are_read(tmp_path):
    """bert-base-uncased: gamma and beta, tied copies, a buffer, tensors of other heads."""
    make_pair("bert", 0, tmp_path)
    expected = dict(read_hf(tmp_path)[2])
    tensors = load_file(tmp_path / "model.safetensors")
    for name in [name for name in tensors if "LayerNorm" in name]:
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        tensors[old] = tensors.pop(name)
    embedding = tensors["bert.embeddings.word_embeddings.weight"]
    tensors |= {"cls.predictions.decoder.weight": embedding.clone(), "bert.pooler.dense.bias": torch.ones(3)}
    tensors["bert.embeddings.position_ids"] = torch.arange(64)[None]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    read = dict(read_hf(tmp_path)[2])
    assert read.keys() == expected.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in expected.items())
    tensors["cls.predictions.decoder.weight"] += 1
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(IntegrityError, match=r"ties cls\.predictions\.decoder\.weight to bert\.embeddings\.word"):
        read_hf(tmp_path)


def test_whether_t5_is_tied_is_said_by_its_tensors(tmp_path):
    make_pair("t5_v1_1", 0, tmp_path)
    assert read_hf(tmp_path)[0].head.tied is False
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"lm_head.weight": tensors["shared.weight"].clone()}, tmp_path / "model.safetensors")
    config, _, stream = read_hf(tmp_path)
    assert config.head.tied is True
    assert "head.weight" not in dict(stream)


def test_missing_unexpected_and_transposed_tensors_of_experts_are_named(tmp_path):
    make_pair("deepseek_v3", 0, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.2.mlp.experts.4.up_proj.weight"]
    tensors["model.layers.2.mlp.experts.6.up_proj.weight"] = torch.ones(11, 20)
    down = tensors["model.layers.2.mlp.experts.0.down_proj.weight"]
    tensors["model.layers.2.mlp.experts.0.down_proj.weight"] = down.T.contiguous()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(IntegrityError) as caught:
        read_hf(tmp_path)
    text = str(caught.value)
    assert "missing: model.layers.2.mlp.experts.4.up_proj.weight" in text
    assert "unexpected: model.layers.2.mlp.experts.6.up_proj.weight" in text
    assert f"experts.0.down_proj.weight: expected shape {list(down.shape)}, found {list(down.T.shape)}" in text


def test_experts_without_end_are_refused_at_once(tmp_path):
    make_pair("mixtral", 0, tmp_path)
    keys = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(keys | {"num_local_experts": 10**9}))
    with pytest.raises(IntegrityError, match="1000000000 experts"):
        read_hf(tmp_path)
