"""Random tiny models of transformers, one function per architecture: odd sizes, every option that ours has too.

Each takes a `random.Random` and returns the name of the class and the arguments of its configuration.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

VOCAB = 61
Shape = tuple[str, dict[str, Any]]


def _sizes(draw: Random) -> dict[str, Any]:
    """Of models of the LLaMA kind."""
    heads = draw.choice([2, 4])
    return {
        "vocab_size": VOCAB,
        "hidden_size": heads * draw.choice([6, 8, 10]),
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": draw.choice([1, 2]),
        "intermediate_size": draw.choice([20, 27]),
        "max_position_embeddings": 64,
        "tie_word_embeddings": draw.random() < 0.5,
        "rms_norm_eps": draw.choice([1e-6, 1e-3]),
    }


def _rope(draw: Random, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": draw.choice([10_000.0, 500.0]), **more}}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


def _scaled(draw: Random) -> dict[str, Any]:
    """Rotary positions of any scaling that is read."""
    return _rope(draw, **draw.choice([{}, {"rope_type": "linear", "factor": 2.0}, YARN | {"beta_fast": 4.0}]))


def gpt2(draw: Random) -> Shape:
    heads = draw.choice([2, 3])
    return "GPT2LMHeadModel", {
        "vocab_size": VOCAB,
        "n_embd": heads * draw.choice([6, 7]),
        "n_head": heads,
        "n_layer": 2,
        "n_positions": 64,
        "n_inner": draw.choice([None, 23]),
        "activation_function": draw.choice(["gelu_new", "gelu", "relu"]),
        "layer_norm_epsilon": draw.choice([1e-5, 1e-3]),
    }


def gpt_neox(draw: Random) -> Shape:
    heads = draw.choice([2, 3])
    return "GPTNeoXForCausalLM", {
        "vocab_size": VOCAB,
        "hidden_size": heads * 16,
        "num_attention_heads": heads,
        "num_hidden_layers": 2,
        "intermediate_size": draw.choice([40, 27]),
        "max_position_embeddings": 64,
        "use_parallel_residual": draw.random() < 0.7,
        "attention_bias": draw.random() < 0.7,
        "tie_word_embeddings": draw.random() < 0.3,
        **_rope(draw, partial_rotary_factor=draw.choice([0.25, 0.5])),
    }


def gpt_j(draw: Random) -> Shape:
    heads = draw.choice([2, 3])
    return "GPTJForCausalLM", {
        "vocab_size": VOCAB,
        "n_embd": heads * 12,
        "n_head": heads,
        "n_layer": 2,
        "n_positions": 64,
        "rotary_dim": draw.choice([4, 6]),
        "n_inner": draw.choice([None, 31]),
    }


def opt(draw: Random) -> Shape:
    heads = draw.choice([2, 3])
    width = heads * draw.choice([6, 8])
    return "OPTForCausalLM", {
        "vocab_size": VOCAB,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_hidden_layers": 2,
        "ffn_dim": 29,
        "max_position_embeddings": 64,
        "word_embed_proj_dim": width,
        "enable_bias": draw.random() < 0.7,
    }


def opt_350m(draw: Random) -> Shape:
    """Post-norm, with vectors narrower than the model."""
    name, sizes = opt(draw)
    return name, sizes | {"do_layer_norm_before": False, "word_embed_proj_dim": draw.choice([8, 10])}


def bloom(draw: Random) -> Shape:
    heads = draw.choice([2, 3, 5])
    return "BloomForCausalLM", {"vocab_size": VOCAB, "hidden_size": heads * 6, "n_head": heads, "n_layer": 2}


def llama(draw: Random) -> Shape:
    return "LlamaForCausalLM", {
        **_sizes(draw),
        "attention_bias": draw.random() < 0.3,
        "mlp_bias": draw.random() < 0.3,
        "head_dim": draw.choice([None, 14]),
        **_scaled(draw),
    }


def llama3(draw: Random) -> Shape:
    """With the scaling of LLaMA 3."""
    name, sizes = llama(draw)
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return name, sizes | _rope(draw, **scaling, original_max_position_embeddings=draw.choice([16, 24]))


def qwen2(draw: Random) -> Shape:
    window = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": draw.choice([0, 1])}
    return "Qwen2ForCausalLM", {**_sizes(draw), **_rope(draw), **(window if draw.random() < 0.5 else {})}


def qwen3(draw: Random) -> Shape:
    more = {"head_dim": draw.choice([6, 14]), "attention_bias": draw.random() < 0.5}
    return "Qwen3ForCausalLM", {**_sizes(draw), **_rope(draw), **more}


def gemma2(draw: Random) -> Shape:
    return "Gemma2ForCausalLM", {
        **_sizes(draw),
        **_rope(draw),
        "head_dim": draw.choice([6, 14]),
        "sliding_window": draw.choice([3, 6]),
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": draw.choice([9, 24]),
        "attn_logit_softcapping": draw.choice([2.0, None]),
        "final_logit_softcapping": draw.choice([3.0, None]),
        "num_hidden_layers": 3,
    }


def olmo2(draw: Random) -> Shape:
    return "Olmo2ForCausalLM", {**_sizes(draw), **_rope(draw), "attention_bias": draw.random() < 0.3}


def mixtral(draw: Random) -> Shape:
    experts = {"num_local_experts": draw.choice([3, 5]), "num_experts_per_tok": draw.choice([1, 2])}
    window = {"sliding_window": draw.choice([None, 6])}
    return "MixtralForCausalLM", {**_sizes(draw), **_rope(draw), **experts, **window}


def olmoe(draw: Random) -> Shape:
    experts = {"num_experts": draw.choice([3, 5]), "num_experts_per_tok": draw.choice([1, 2])}
    more = {"clip_qkv": draw.choice([None, 0.7]), "norm_topk_prob": draw.random() < 0.5}
    return "OlmoeForCausalLM", {**_sizes(draw), **_rope(draw), **experts, **more}


def qwen3_moe(draw: Random) -> Shape:
    return "Qwen3MoeForCausalLM", {
        **_sizes(draw),
        **_rope(draw),
        "num_experts": draw.choice([3, 5]),
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 11,
        "head_dim": draw.choice([6, 14]),
        "norm_topk_prob": draw.random() < 0.5,
        "num_hidden_layers": 3,
        "mlp_only_layers": draw.choice([[], [0], [1]]),
    }


def deepseek_v3(draw: Random) -> Shape:
    heads = draw.choice([2, 3])
    return "DeepseekV3ForCausalLM", {
        "vocab_size": VOCAB,
        "hidden_size": heads * 10,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "num_hidden_layers": 3,
        "first_k_dense_replace": draw.choice([0, 1]),
        "max_position_embeddings": 64,
        "intermediate_size": 26,
        "moe_intermediate_size": 11,
        "n_shared_experts": draw.choice([1, 2]),
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "n_group": 3,
        "topk_group": 2,
        "q_lora_rank": draw.choice([None, 9]),
        "kv_lora_rank": 7,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 6,
        "v_head_dim": 5,
        "routed_scaling_factor": draw.choice([1.0, 2.5]),
        "norm_topk_prob": draw.random() < 0.7,
        **_rope(draw, **draw.choice([{}, YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}])),
    }


def bert(draw: Random) -> Shape:
    heads = draw.choice([2, 3])
    return "BertForMaskedLM", {
        "vocab_size": VOCAB,
        "hidden_size": heads * draw.choice([6, 7]),
        "num_attention_heads": heads,
        "num_hidden_layers": 2,
        "intermediate_size": 29,
        "max_position_embeddings": 64,
        "type_vocab_size": draw.choice([2, 3]),
        "hidden_act": draw.choice(["gelu", "gelu_new", "relu"]),
        "layer_norm_eps": draw.choice([1e-12, 1e-5]),
    }


def megatron_bert(draw: Random) -> Shape:
    return "MegatronBertForMaskedLM", bert(draw)[1]


def roberta_pre(draw: Random) -> Shape:
    return "RobertaPreLayerNormForMaskedLM", bert(draw)[1] | {"pad_token_id": draw.choice([0, 3])}


def electra(draw: Random) -> Shape:
    _, sizes = bert(draw)
    return "ElectraForPreTraining", sizes | {"embedding_size": draw.choice([sizes["hidden_size"], 10])}


def electra_generator(draw: Random) -> Shape:
    return "ElectraForMaskedLM", electra(draw)[1] | {"embedding_size": 10}


def roberta(draw: Random) -> Shape:
    _, sizes = bert(draw)
    return "RobertaForMaskedLM", sizes | {"pad_token_id": draw.choice([1, 3]), "type_vocab_size": 1}


def modernbert(draw: Random) -> Shape:
    heads = draw.choice([2, 3])
    return "ModernBertForMaskedLM", {
        "vocab_size": VOCAB,
        "hidden_size": heads * draw.choice([6, 8]),
        "num_attention_heads": heads,
        "num_hidden_layers": 4,
        "intermediate_size": 29,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "local_attention": draw.choice([4, 6]),
        "attention_bias": draw.random() < 0.3,
        "mlp_bias": draw.random() < 0.3,
        "norm_bias": draw.random() < 0.3,
        "decoder_bias": draw.random() < 0.7,
        "classifier_bias": draw.random() < 0.3,
    }


def _t5(draw: Random) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB,
        "d_model": draw.choice([15, 18]),
        "d_kv": draw.choice([5, 6]),
        "num_heads": 3,
        "d_ff": draw.choice([22, 31]),
        "num_layers": draw.choice([1, 2]),
        "num_decoder_layers": draw.choice([1, 2]),
        "relative_attention_num_buckets": draw.choice([8, 32]),
        "relative_attention_max_distance": 20,
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
    }


def t5(draw: Random) -> Shape:
    """v1.0: tied, scaled, not gated."""
    return "T5ForConditionalGeneration", {**_t5(draw), "feed_forward_proj": "relu"}


def t5_v1_1(draw: Random) -> Shape:
    """Untied, not scaled, gated."""
    return "T5ForConditionalGeneration", {**_t5(draw), "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


def bart(draw: Random) -> Shape:
    heads = draw.choice([2, 3])
    return "BartForConditionalGeneration", {
        "vocab_size": VOCAB,
        "d_model": heads * 7,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_layers": draw.choice([1, 2]),
        "decoder_layers": 2,
        "encoder_ffn_dim": 27,
        "decoder_ffn_dim": 27,
        "max_position_embeddings": 64,
        "scale_embedding": draw.random() < 0.5,
        "activation_function": draw.choice(["gelu", "relu"]),
    }


def mbart(draw: Random) -> Shape:
    return "MBartForConditionalGeneration", bart(draw)[1]


DECODERS = (
    *(gpt2, gpt_neox, gpt_j, opt, opt_350m, bloom, llama, llama3, qwen2, qwen3, gemma2, olmo2),
    *(mixtral, olmoe, qwen3_moe, deepseek_v3),
)
ENCODERS = (bert, megatron_bert, roberta_pre, electra, electra_generator, roberta, modernbert)
ENCODER_DECODERS = (t5, t5_v1_1, bart, mbart)
DRAWS = {each.__name__: each for each in (*DECODERS, *ENCODERS, *ENCODER_DECODERS)}


def _labelled(draw: Random, base: Callable[[Random], Shape], task: str) -> Shape:
    """The same with a head for labels; of texts any of three kinds of label."""
    name, sizes = base(draw)
    family = name.removesuffix("LMHeadModel").split("For")[0]
    labels = draw.choice([2, 3, 5])
    problem = draw.choice([None, "single_label_classification", "multi_label_classification", "regression"])
    if task == "QuestionAnswering":
        labels, problem = 2, None
    elif task == "TokenClassification":
        problem = None
    names = {"id2label": {i: f"label {i}" for i in range(labels)}, "label2id": {f"label {i}": i for i in range(labels)}}
    if problem == "regression":
        names = {"num_labels": labels}
    pad = {} if "pad_token_id" in sizes else {"pad_token_id": 0}
    classifier = {"classifier_activation": draw.choice(["gelu", "silu"])} if base is modernbert else {}
    return f"{family}For{task}", {**sizes, **names, **pad, **classifier, "problem_type": problem}


TASKS = ("SequenceClassification", "TokenClassification", "QuestionAnswering")
LABEL_DRAWS = {
    f"{base.__name__}_{task}": partial(_labelled, base=base, task=task)
    for base in (bert, megatron_bert, roberta_pre, roberta, modernbert, gpt2, llama, qwen2, qwen3)
    for task in TASKS
}
