"""A hornbook model for transformers: what is written beside weights that no class of transformers represents.

`source` joins this file, `blocks` and `layers` to modeling_hornbook.py, which needs torch and transformers alone and is
loaded with `trust_remote_code=True`. There is no cache of keys and values: each token computes the whole text again.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers import modeling_outputs as outputs

from hornbook.model.hf.remote.blocks import RemoteBlock
from hornbook.model.hf.remote.layers import ACTIVATIONS, Distances, Part, RemotePositions, Seen, apply, make_norm

Configuration: Any = PretrainedConfig
Pretrained: Any = PreTrainedModel
Generates: Any = GenerationMixin


class HornbookConfig(Configuration):
    model_type = "hornbook"

    def __init__(self, hornbook: Part | None = None, **others: Any) -> None:
        self.hornbook = hornbook or {}
        super().__init__(**({"tie_word_embeddings": False} | others))


class RemoteInput(nn.Module):
    def __init__(self, cfg: Part, width: int) -> None:
        super().__init__()
        part = cfg["embedding"]
        self.scale, self.last = part["scale"], part["projected"] == "last"
        self.project = nn.Linear(part["width"], cfg["width"], part["bias"]) if part["width"] else None
        self.types = nn.Embedding(part["types"], width) if part["types"] else None
        self.norm = make_norm(cfg["norm"], width) if part["norm"] else None

    def forward(self, x: Tensor, added: Tensor | None, types: Tensor | None) -> Tensor:
        x = apply(None if self.last else self.project, x * self.scale)
        if self.types is not None:
            x = x + (self.types.weight[0] if types is None else self.types(types))
        x = apply(self.norm, x if added is None else x + added.to(x.dtype))
        return apply(self.project if self.last else None, x)


def add_stack(module: Any, cfg: Part, cross: bool = False) -> None:
    """The parts that an encoder and a decoder have."""
    part, position = cfg["embedding"], cfg["position"]
    width = (part["projected"] == "last" and part["width"]) or cfg["width"]
    module.cfg = cfg
    module.positions = RemotePositions(position, width) if position["kind"] in ("learned", "sinusoidal") else None
    module.bias = Distances(cfg) if position["kind"] in ("alibi", "relative") else None
    module.entrance, blocks = RemoteInput(cfg, width), {}
    for number in range(cfg["layers"]):
        special, behind = {}, number - len(cfg["first"])
        if behind < 0:
            special = cfg["first"][number]
        elif cfg["pattern"]:
            special = cfg["pattern"][behind % len(cfg["pattern"])]
        own = {key: value for key, value in special.items() if value is not None}
        before = own.pop("attention_norm", cfg["norm"])
        blocks[str(number)] = RemoteBlock(cfg | own, before, cross)
    module.blocks = nn.ModuleDict(blocks)
    module.norm = None if cfg["block"]["kind"] == "post" else make_norm(cfg["norm"], cfg["width"])


def run_stack(module: Any, vectors: Tensor, mask: Tensor, types: Tensor | None = None, memory: Any = None) -> Tensor:
    seen = Seen(mask, module.cfg["kind"] == "encoder", module.bias, memory)
    added = None if module.positions is None else module.positions(seen.places)
    x = module.entrance(vectors, added, types)
    for block in module.blocks.values():
        x = block(x, seen)
    return apply(module.norm, x)


class Encoder(nn.Module):
    main_input_name = "input_ids"

    def __init__(self, cfg: Part, embedding: nn.Module) -> None:
        super().__init__()
        self.shared = [embedding]  # a list hides it from the tree
        layers = cfg["encoder_layers"] or cfg["layers"]
        add_stack(self, cfg | {"kind": "encoder", "layers": layers})

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> Any:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return outputs.BaseModelOutput(last_hidden_state=run_stack(self, self.shared[0](input_ids), mask))


class RemoteTransform(nn.Module):
    def __init__(self, width: int, wide: int, activation: str, bias: bool, norm: nn.Module | None) -> None:
        super().__init__()
        self.dense, self.norm, self.activate = nn.Linear(width, wide, bias), norm, ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        return apply(self.norm, self.activate(self.dense(x)))


class RemoteHead(nn.Module):
    def __init__(self, cfg: Part, vocab: int, embedding: Any) -> None:
        super().__init__()
        head, width = cfg["head"], cfg["width"]
        kind, read, norm = head["kind"], cfg["embedding"]["width"] or width, cfg["norm"]
        words = kind in ("lm", "masked")
        self.scale, self.softcap = head.get("scale", 1.0), head.get("softcap")
        self.tied, self.before = [embedding] if words and head["tied"] else [], None
        transform: Part = head.get("transform") or {"kind": "none"}
        if kind == "lm" and cfg["embedding"]["width"]:
            self.before = nn.Linear(width, read, bias=False)
        elif kind == "masked":
            self.before = RemoteTransform(width, read, head["activation"], head["dense_bias"], make_norm(norm, read))
        elif kind == "replaced":
            self.before = RemoteTransform(width, width, head["activation"], True, None)
        elif transform["kind"] == "dense":
            last = make_norm(norm, width) if transform["norm"] else None
            self.before = RemoteTransform(width, width, transform["activation"], transform["bias"], last)
        count = {"classification": len(head.get("labels") or ()), "regression": head.get("outputs"), "span": 2}
        rows = vocab if words else count.get(kind) or len(head.get("labels") or ()) or 1
        if not self.tied:
            self.weight = nn.Parameter(torch.empty(rows, read if words else width))
        self.bias = nn.Parameter(torch.empty(rows)) if head.get("bias", kind == "replaced") else None

    def forward(self, x: Tensor) -> Tensor:
        x = apply(self.before, x * self.scale if self.scale != 1 else x)
        logits = F.linear(x, self.tied[0].weight if self.tied else self.weight, self.bias).float()
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)


class HornbookModel(Pretrained):
    """Hidden states; with a head in the classes below."""

    config_class = HornbookConfig
    base_model_prefix = ""
    _keys_to_ignore_on_load_unexpected: ClassVar = [r"head\."]
    has_head = False

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        cfg = config.hornbook["model"]
        self.embedding = nn.Embedding(config.vocab_size, cfg["embedding"]["width"] or cfg["width"])
        both = cfg["kind"] == "encoder_decoder"
        self.encoder = Encoder(cfg, self.embedding) if both else None
        add_stack(self, cfg, cross=both)
        if self.has_head:
            self.head = RemoteHead(cfg, config.vocab_size, self.embedding)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def set_input_embeddings(self, value: Any) -> None:
        raise NotImplementedError("the embedding of a hornbook model is fixed: add tokens with `hornbook import`")

    def states(self, ids: Tensor, mask: Tensor | None, types: Tensor | None = None, memory: Any = None) -> Tensor:
        mask = torch.ones_like(ids) if mask is None else mask
        return run_stack(self, self.embedding(ids), mask, types, memory)

    def forward(
        self, input_ids: Tensor, attention_mask: Any = None, *, token_type_ids: Any = None, labels: Any = None, **_: Any
    ) -> Any:
        states = self.states(input_ids, attention_mask, token_type_ids)
        if not self.has_head:
            return outputs.BaseModelOutput(last_hidden_state=states)
        return self.answer(self.head(states), {"ids": input_ids, "mask": attention_mask, "labels": labels})

    def answer(self, logits: Tensor, given: Part) -> Any:
        """Loss of heads with an output for each token."""
        return outputs.TokenClassifierOutput(loss=loss_of(logits, given["labels"]), logits=logits)


def loss_of(logits: Tensor, labels: Tensor | None) -> Any:
    return None if labels is None else F.cross_entropy(logits.flatten(0, -2), labels.flatten())


class HornbookForMaskedLM(HornbookModel):
    has_head = True


class HornbookForTokenClassification(HornbookModel):
    has_head = True


class HornbookForPreTraining(HornbookModel):
    """Logits of each token's being replaced [batch, time]."""

    has_head = True

    def answer(self, logits: Tensor, given: Part) -> Any:
        return super().answer(logits[..., 0], given | {"labels": None})


class HornbookForQuestionAnswering(HornbookModel):
    has_head = True

    def answer(self, logits: Tensor, given: Part) -> Any:
        del given
        return outputs.QuestionAnsweringModelOutput(start_logits=logits[..., 0], end_logits=logits[..., 1])


class HornbookForSequenceClassification(HornbookModel):
    """The label of a text is that of its first token in an encoder, of its last in a decoder."""

    has_head = True

    def answer(self, logits: Tensor, given: Part) -> Any:
        ids, mask, pad = given["ids"], given["mask"], self.config.pad_token_id
        mask = (torch.ones_like(ids) if pad is None else ids != pad) if mask is None else mask
        place = torch.arange(ids.shape[1], device=ids.device) * mask
        place = 0 if self.cfg["kind"] == "encoder" else place.argmax(-1)
        logits = logits[torch.arange(len(ids), device=ids.device), place]
        single = self.config.problem_type == "single_label_classification"
        return outputs.SequenceClassifierOutput(
            loss=loss_of(logits, given["labels"]) if single else None, logits=logits
        )


class HornbookForCausalLM(HornbookModel, Generates):
    has_head = True

    def answer(self, logits: Tensor, given: Part) -> Any:
        labels = given["labels"]
        loss = None if labels is None else loss_of(logits[:, :-1], labels[:, 1:])
        return outputs.CausalLMOutput(loss=loss, logits=logits)

    def prepare_inputs_for_generation(self, input_ids: Tensor, attention_mask: Any = None, **_: Any) -> Part:
        return {"input_ids": input_ids, "attention_mask": attention_mask}


class HornbookForSeq2SeqLM(HornbookModel, Generates):
    has_head = True

    def get_encoder(self, *_: Any, **__: Any) -> Any:
        return self.encoder

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        *,
        decoder_input_ids: Any = None,
        encoder_outputs: Any = None,
        labels: Any = None,
        **_: Any,
    ) -> Any:
        encoder: Any = self.encoder
        found = encoder(input_ids, attention_mask) if encoder_outputs is None else encoder_outputs
        mask = torch.ones(found[0].shape[:2], device=found[0].device) if attention_mask is None else attention_mask
        if decoder_input_ids is None:
            decoder_input_ids = F.pad(labels[:, :-1], (1, 0), value=self.config.decoder_start_token_id)
            decoder_input_ids = decoder_input_ids.masked_fill(decoder_input_ids == -100, self.config.pad_token_id)
        logits = self.head(self.states(decoder_input_ids, None, None, (found[0], mask)))
        loss = loss_of(logits, labels)
        return outputs.Seq2SeqLMOutput(loss=loss, logits=logits, encoder_last_hidden_state=found[0])

    def prepare_inputs_for_generation(self, decoder_input_ids: Tensor, **given: Any) -> Part:
        names = ("attention_mask", "encoder_outputs")
        return {"decoder_input_ids": decoder_input_ids} | {name: given.get(name) for name in names}
