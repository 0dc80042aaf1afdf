"""Which setting a person probably meant."""

import difflib

from hornbook.schema import settings

# Names of other trainers for the same thing; the value is the dotted key here.
SYNONYMS = {
    "learning_rate": "optim.lr",
    "max_lr": "optim.lr",
    "batch_size": "train.batch_tokens",
    "global_batch_size": "train.batch_tokens",
    "micro_batch_size": "train.micro_batch",
    "per_device_train_batch_size": "train.micro_batch",
    "block_size": "train.sequence",
    "context": "train.sequence",
    "context_length": "train.sequence",
    "seq_len": "train.sequence",
    "max_seq_len": "train.sequence",
    "sequence_length": "train.sequence",
    "max_tokens": "train.tokens",
    "num_train_epochs": "train.epochs",
    "dtype": "train.precision",
    "n_layer": "model.layers",
    "num_layers": "model.layers",
    "num_hidden_layers": "model.layers",
    "depth": "model.layers",
    "n_embd": "model.width",
    "d_model": "model.width",
    "dim": "model.width",
    "hidden_size": "model.width",
    "n_head": "model.heads",
    "num_heads": "model.heads",
    "num_attention_heads": "model.heads",
    "num_key_value_heads": "model.attention.kv_heads",
    "n_kv_heads": "model.attention.kv_heads",
    "intermediate_size": "model.mlp.hidden",
    "d_ff": "model.mlp.hidden",
    "rope_theta": "model.position.theta",
    "vocab_size": "text.tokenizer.vocab",
    "scheduler": "optim.schedule.kind",
    "warmup_steps": "optim.schedule.warmup",
    "warmup_ratio": "optim.schedule.warmup",
    "min_lr": "optim.schedule.floor",
    "grad_clip": "optim.clip",
    "max_grad_norm": "optim.clip",
    "gradient_clipping": "optim.clip",
    "save_every": "checkpoint.every",
    "save_steps": "checkpoint.every",
    "eval_steps": "eval.every",
    "eval_interval": "eval.every",
    "log_interval": "log.every",
    "logging_steps": "log.every",
    "gradient_checkpointing": "parallel.recompute",
}


def suggest(key: str) -> list[str]:
    """Up to three dotted keys that `key` may have been meant to be, best first."""
    key = key.replace("-", "_")
    last = key.rpartition(".")[2]
    found = [SYNONYMS[last]] if last in SYNONYMS else []
    names = list(settings())
    found += [name for name in names if name.rpartition(".")[2] == last and "." not in key]
    found += difflib.get_close_matches(key, names, n=3, cutoff=0.7)
    section = key.rpartition(".")[0]
    siblings = [name for name in names if name.rpartition(".")[0] == section]
    close = difflib.get_close_matches(last, [name.rpartition(".")[2] for name in siblings], n=2, cutoff=0.5)
    found += [f"{section}.{name}" if section else name for name in close]
    return list(dict.fromkeys(found))[:3]
