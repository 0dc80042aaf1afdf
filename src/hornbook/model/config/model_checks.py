"""Settings of a model that do not go together, in a recipe or in a checkpoint's config.json."""

from collections.abc import Iterator

from hornbook.model.config.head_config import MaskedHead
from hornbook.model.config.model_config import LayerConfig, ModelConfig
from hornbook.model.config.parameter_count import count_parameters, stacks_of
from hornbook.model.config.part import Problems, method

_MOST_PARAMETERS = 2**48
_NOT_ACROSS = 'the layers of an encoder-decoder need "full", which attends from one stack to the other, not "{kind}"'
_CAUSAL_BATCH = (
    "batch norm mixes later positions into earlier ones, so a causal model would see what it is to predict: "
    'use "layer" or "rms"; only model.kind "encoder" takes "batch"'
)


def model_problems(model: ModelConfig) -> Iterator[tuple[str, str]]:
    """(dotted key in a recipe, what is wrong and the remedy) of everything that no single field can see."""
    deepest = max(stack.num_blocks for stack in stacks_of(model))
    # The pattern repeats: a file that claims any number of layers is judged as fast.
    layers = [model.layer(i) for i in range(min(deepest, len(model.first) + max(len(model.pattern), 1)))]
    for layer in {layer.model_dump_json(): layer for layer in layers}.values():
        for part in (layer.attention, layer.mlp):
            yield from _below_model(method(part, "problems")(layer))
    yield from _check_depth(model)
    yield from _check_norms(model)
    few = len(model.first) + max(len(model.pattern), 1)
    shallow = model.model_copy(update={"layers": few, "encoder_layers": None})
    if (count := count_parameters(shallow, 1)) > _MOST_PARAMETERS:
        yield "model", f"{few} of its layers have {count:.2e} parameters, more than any machine holds: a size is wrong"
    yield from _below_model(model.head.problems(model))
    yield from _below_model(model.mtp.problems(model))
    for number, given in enumerate(model.first):
        yield from _check_layer(model, f"model.first.{number}", given)
    for number, given in enumerate(model.pattern):
        yield from _check_layer(model, f"model.pattern.{number}", given)
    if model.kind == "encoder_decoder" and model.attention.kind != "full":
        yield "model.attention", _NOT_ACROSS.format(kind=model.attention.kind)
    if model.kind == "encoder_decoder" and model.block.kind == "parallel":
        yield "model.block", 'a parallel block has no place for attention to the encoder: use "pre" or "post"'
    if model.embedding.projected == "last" and model.embedding.width is None:
        yield "embedding.projected", "nothing is projected: leave it out, or set model.embedding.width"
    if model.embedding.bias and model.embedding.width is None:
        yield (
            "model.embedding.bias",
            "is that of a projection, and there is none: leave it out, or set model.embedding.width",
        )
    if model.position.kind == "sinusoidal" and model.width % 2:
        text = f"sines and cosines of model.position come in pairs: {model.width} must be even"
        yield "model.width", f"{text}, or take other positions"


def _below_model(problems: Problems) -> Problems:
    return ((f"model.{key}", text) for key, text in problems)


def _check_layer(model: ModelConfig, key: str, given: LayerConfig) -> Iterator[tuple[str, str]]:
    """What `first` or `pattern` says of one layer."""
    if model.kind == "encoder_decoder" and given.attention is not None and given.attention.kind != "full":
        yield f"{key}.attention", _NOT_ACROSS.format(kind=given.attention.kind)
    if given.position is not None and given.position.kind == "none" and model.position.kind != "rope":
        text = f'positions of the kind "{model.position.kind}" hold for all layers, only rotary ones are a layer\'s own'
        yield f"{key}.position", f"{text}: leave it out, or change model.position"
    if given.attention_norm is None:
        return
    if model.block.kind == "parallel":
        text = "a parallel block has one norm for both branches, or one each, of the kind model.norm"
        yield f"{key}.attention_norm", f"{text}: leave it out, or change model.block"
    elif model.kind != "encoder" and given.attention_norm.kind == "batch":
        yield f"{key}.attention_norm", _CAUSAL_BATCH


def _check_depth(model: ModelConfig) -> Iterator[tuple[str, str]]:
    if model.kind != "encoder_decoder" and model.encoder_layers is not None:
        yield "model.encoder_layers", f'a model of kind "{model.kind}" has one stack: use model.layers'
    for stack, key in zip(stacks_of(model), ("model.layers", "model.encoder_layers"), strict=False):
        rest = stack.layers - len(model.first)
        if rest < 0:
            yield "model.first", f"it describes {len(model.first)} layers, but {key} is {stack.layers}"
        elif model.pattern and rest % len(model.pattern):
            text = f"its {len(model.pattern)} layers do not tile the {rest} behind model.first"
            yield "model.pattern", f"{text}: change {key}, or name the layers that are left over in model.first"
        else:
            continue
        return  # the other stack's problem is the same one


def _check_norms(model: ModelConfig) -> Iterator[tuple[str, str]]:
    head = model.head if model.head.generator_of(model) is None else MaskedHead()  # that of the generator
    norm, masked = model.norm.kind, head.kind == "masked"
    if norm == "batch" and model.kind != "encoder":
        yield "model.norm", _CAUSAL_BATCH
    elif norm == "batch" and masked:
        text = 'the norm of the head "masked" sees only what is masked, so its means would differ from those elsewhere'
        yield "model.norm", f'{text}: use "layer", or model.head.kind "lm"'
    if norm == "none" and (masked or model.block.kind == "parallel"):
        text = 'the head "masked" ends in a norm' if masked else 'a block of the kind "parallel" begins with a norm'
        yield "model.norm", f'{text}: use "layer" or "rms", or another {"model.head" if masked else "model.block"}'
