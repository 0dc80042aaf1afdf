"""Every architecture that can be read and written."""

from hornbook.model.hf.tables.encoder_decoders import BART, T5
from hornbook.model.hf.tables.encoders import BERT, MODERNBERT, ROBERTA
from hornbook.model.hf.tables.experts import DEEPSEEK_V3, MIXTRAL, OLMOE, QWEN3_MOE
from hornbook.model.hf.tables.gpt import BLOOM, GPT2, GPT_J, GPT_NEOX, OPT
from hornbook.model.hf.tables.labels import LABELLED
from hornbook.model.hf.tables.llama import GEMMA2, LLAMA, OLMO2, QWEN2, QWEN3

NATIVE = "HornbookForCausalLM"
"""`architectures` of a model that no table represents: the same files under our own names."""

ARCHITECTURES = (
    *(GPT2, GPT_NEOX, GPT_J, OPT, BLOOM),
    *(LLAMA, QWEN2, QWEN3, GEMMA2, OLMO2),
    *(MIXTRAL, OLMOE, QWEN3_MOE, DEEPSEEK_V3),
    *(BERT, ROBERTA, MODERNBERT),
    *(T5, BART),
    *LABELLED,
)
