"""The modelling file of a model that no class of transformers represents: which class, and the text of the file."""

from pathlib import Path

from hornbook.model.config.model_config import ModelConfig
from hornbook.model.hf.differences import flatten
from hornbook.model.hf.tables.label_names import CODECS
from hornbook.model.hf.tables.vocabulary_names import Json

FILE = "modeling_hornbook.py"
HEAD = '''"""A model that hornbook trained, for transformers 4.51 and later: torch and transformers are all it needs.

Load it with `trust_remote_code=True`. Parameters have hornbook's names, and the key `hornbook` of config.json says what
the model is. There is no cache of keys and values: each new token computes the whole text again.
"""
'''
PARTS = ("layers", "blocks", "models")
"""Files of this folder in the order in which they are joined."""
CLASSES = {
    "lm": ("HornbookForCausalLM", "AutoModelForCausalLM"),
    "masked": ("HornbookForMaskedLM", "AutoModelForMaskedLM"),
    "replaced": ("HornbookForPreTraining", "AutoModelForPreTraining"),
    "classification": ("HornbookForSequenceClassification", "AutoModelForSequenceClassification"),
    "regression": ("HornbookForSequenceClassification", "AutoModelForSequenceClassification"),
    "token_classification": ("HornbookForTokenClassification", "AutoModelForTokenClassification"),
    "span": ("HornbookForQuestionAnswering", "AutoModelForQuestionAnswering"),
}
"""Kind of head -> class of the file, and the class of transformers that chooses it."""
LABELS = {
    "classification": "label_of_text",
    "regression": "label_of_text",
    "token_classification": "labels_of_tokens",
    "span": "span",
}
"""Kind of head -> what writes its labels."""
KNOWN = {
    "attention.kind": ("full", "latent", "delta"),
    "mlp.kind": ("mlp", "glu", "experts"),
    "norm.kind": ("layer", "rms", "rms_offset", "batch", "none"),
    "mtp.kind": ("none",),
    "head.generator.kind": ("none", None),
    "head.kind": (*CLASSES,),
}
"""Keys of a configuration, and the values that the file computes: parts from outside are not among them."""


def remote_class(config: ModelConfig) -> tuple[str, str] | None:
    """(Class of the modelling file, class of transformers that chooses it) of a model; None where it has none."""
    layers = (flatten(config.layer(number)) for number in range(config.layers))
    if any(flat.get(key) not in known for flat in layers for key, known in KNOWN.items()):
        return None
    if config.kind == "encoder_decoder":
        return "HornbookForSeq2SeqLM", "AutoModelForSeq2SeqLM"
    return CLASSES[config.head.kind]


def remote_keys(config: ModelConfig) -> Json:
    """The keys of config.json by which transformers finds the class, and what programs ask of any model."""
    name, auto = remote_class(config) or ("HornbookForCausalLM", None)
    module = FILE.removesuffix(".py")
    found = {"AutoConfig": "HornbookConfig", "AutoModel": "HornbookModel", auto: name}
    return {
        "architectures": [name],
        **({"auto_map": {key: f"{module}.{value}" for key, value in found.items()}} if auto else {}),
        **(CODECS[LABELS[config.head.kind]].write(config) if config.head.kind in LABELS else {}),
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "max_position_embeddings": config.position.length,
        "is_encoder_decoder": config.kind == "encoder_decoder",
        "tie_word_embeddings": False,
        "use_cache": False,
    }


def source() -> str:
    """The text of the file: the parts one after the other, without what they import of one another."""
    imports, bodies = {}, []
    for name in PARTS:
        _, _, text = (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8").partition('"""\n\n')
        lines = text.split("\n")
        given = [line for line in lines if line.startswith(("import ", "from "))]
        imports |= dict.fromkeys(line for line in given if not line.startswith("from hornbook"))
        bodies.append("\n".join(line for line in lines if line not in given).strip("\n"))
    return "\n".join([HEAD, *imports, "", "\n\n\n".join(bodies), ""])
