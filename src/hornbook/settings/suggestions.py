"""Which setting a person probably meant."""

import difflib

from hornbook.settings.schema import settings

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


_ALIKE = 0.72  # least likeness of a suggestion
_CLOSE = 0.08  # how far below the best one a second suggestion may be


def suggest(key: str) -> list[str]:
    """Up to three dotted keys that `key` may have been meant to be, best first."""
    key = key.replace("-", "_")
    last = key.rpartition(".")[2]
    if last in SYNONYMS:
        return [SYNONYMS[last]]
    scores = {name: _likeness(key, name) for name in settings()}
    enough = max(_ALIKE, max(scores.values()) - _CLOSE)
    best = sorted((name for name, score in scores.items() if score >= enough), key=lambda name: -scores[name])
    return [_named(name, key) for name in best[:3]]


def _named(name: str, key: str) -> str:
    """The setting's key with the names the user chose in place of `*`, where both have as many parts."""
    parts, given = name.split("."), key.split(".")
    if len(parts) != len(given):
        return name
    return ".".join(theirs if part == "*" else part for part, theirs in zip(parts, given, strict=True))


def _likeness(key: str, name: str) -> float:
    """How alike two dotted keys are, from 0 to 1; the last part counts most, and alone where `key` has no other."""
    (head, _, last), (section, _, leaf) = key.rpartition("."), name.rpartition(".")
    likeness = difflib.SequenceMatcher(None, last, leaf).ratio()
    if not head:
        return likeness
    return 0.6 * likeness + 0.4 * difflib.SequenceMatcher(None, head, section).ratio()
