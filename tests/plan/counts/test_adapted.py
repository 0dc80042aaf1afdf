"""What surgery leaves to train, by arithmetic: what the operated model has."""

from typing import Any

import pytest

from hornbook.errors import UsageError
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.surgery.operate import build_operated, trained_parameters
from hornbook.plan.counts.adapted import adapted
from hornbook.plan.counts.share import rows_of
from hornbook.plan.devices.hardware import Device
from hornbook.plan.planned_memory import RankMemory, estimate_memory
from hornbook.run.diagnose.simulate import Simulation, simulate
from hornbook.settings.resolve import resolve

LATENT = {"kind": "latent", "query_rank": 24, "kv_rank": 16, "nope_dim": 8, "rope_dim": 4, "value_dim": 12}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"attention": {"kind": "full", "kv_heads": 2}},
    "gpt2": {"mlp": {"kind": "mlp"}, "attention": {"kind": "full", "bias": True}},
    "latent": {"attention": LATENT},
    "latent without query rank": {"attention": LATENT | {"query_rank": None}},
    "norms of heads": {"attention": {"kind": "full", "kv_heads": 2, "qk_norm": "head"}},
    "norms of all heads": {"attention": {"kind": "full", "kv_heads": 2, "qk_norm": "full"}},
    "other first layer": {"first": [{"mlp": {"kind": "glu", "hidden": 192}}]},
}
SURGERY = ("lora", "dora", "ia3", "prompt")
WORDS = (
    '{kind = "prefix", length = 5}',
    '{kind = "prefix", length = 5, hidden = 12}',
    '{kind = "llama_adapter", below = 1}',
    '{kind = "llama_adapter_v2", below = 2}',
)
VOCAB = 96
CPU = Device(name="a CPU", fp32=1.0, memory=64, bandwidth=50)


def config(part: dict[str, Any]) -> ModelConfig:
    return ModelConfig.model_validate({"layers": 3, "width": 64, "heads": 4} | part)


def steps(*words: Any) -> list[Any]:
    text = ", ".join(f'"{word}"' if isinstance(word, str) else word[0] for word in words)
    return resolve(None, [f"surgery=[{text}]"], environ={}).recipe.surgery


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", SURGERY)
def test_trained_values_are_those_of_the_operated_model(model: str, kind: str) -> None:
    latent = kind == "ia3" and "latent" in model  # it has no keys and values of its own
    word = ('{kind = "ia3", targets = ["*.kv_up", "*.mlp.down"]}',) if latent else kind
    same_as_operated(config(MODELS[model]), word)


@pytest.mark.parametrize("model", ["llama", "gpt2", "norms of heads", "norms of all heads", "other first layer"])
@pytest.mark.parametrize("word", WORDS)
def test_of_attention_beyond_the_row_too(model: str, word: str) -> None:
    same_as_operated(config(MODELS[model]), (word,))


def test_norms_of_latent_attention_are_trained_where_norms_are() -> None:
    latent = {"first": [{"attention": LATENT}, {"attention": LATENT}]}
    same_as_operated(config(latent), ('{kind = "llama_adapter_v2", below = 2}',))


def same_as_operated(chosen: ModelConfig, word: Any) -> None:
    surgery = steps(word)
    assert adapted(chosen, VOCAB, surgery).trained == trained_parameters(chosen, VOCAB, surgery) > 0


def test_rows_grow_by_what_stands_before_documents() -> None:
    found = [
        rows_of(
            resolve(None, [f"surgery=[{word}]", "train.sequence=48", "train.batch_tokens=960"], environ={}).recipe, 2
        ).sequence
        for word in ("", '{kind="prompt", length=5}', '{kind="prefix", length=7}')
    ]
    assert found == [48, 53, 55]


def test_targets_are_names_of_layers() -> None:
    chosen, surgery = config({}), steps(('{kind = "lora", rank = 4, targets = ["*.query", "blocks.1.mlp.down"]}',))
    assert adapted(chosen, VOCAB, surgery).trained == trained_parameters(chosen, VOCAB, surgery)
    assert adapted(chosen, VOCAB, surgery).inner == 4 * 4


def test_codes_take_the_bytes_of_the_buffers_that_hold_them() -> None:
    chosen, surgery = config({}), steps("nf4", "lora")
    model, left = build_operated(chosen, VOCAB, surgery), adapted(chosen, VOCAB, surgery)
    assert left.code_bytes == sum(each.nbytes for name, each in model.named_buffers() if ".code" in name)
    assert left.code_bytes < 0.53 * left.coded


def test_steps_without_arithmetic_and_globs_that_match_nothing_are_named() -> None:
    with pytest.raises(UsageError, match="fake_quant"):
        adapted(config({}), VOCAB, steps("fake_quant"))
    with pytest.raises(UsageError, match="no parameter"):
        adapted(config({}), VOCAB, steps(('{kind = "freeze", names = ["*.nothing"]}',)))
    with pytest.raises(UsageError, match="no linear layer"):
        adapted(config({}), VOCAB, steps(('{kind = "lora", targets = ["*.nothing"]}',)))


OTHERS: dict[str, dict[str, Any]] = {
    "experts": {"mlp": {"kind": "experts", "count": 4, "active": 2, "hidden": 16, "shared_hidden": 8}},
    "further tokens": {"mtp": {"kind": "sequential"}},
    "delta": {"attention": {"kind": "delta"}},
    "t5": {"kind": "encoder_decoder", "position": {"kind": "relative"}, "head": {"kind": "lm", "tied": False}},
    "masked": {"kind": "encoder", "head": {"kind": "masked"}},
    "labels": {"kind": "encoder", "head": {"kind": "classification", "labels": ["a", "b", "c"]}},
}


@pytest.mark.parametrize("model", OTHERS | MODELS)
@pytest.mark.parametrize(
    "word",
    [
        "lora",
        "dora",
        '{kind = "bottleneck", width = 8}',
        '{kind = "lora", rank = 4, targets = ["*"]}',
        '{kind = "freeze", names = ["*norm*", "embedding.*"]}',
        '{kind = "freeze", names = ["*blocks.0.*", "embedding.*"]}',
        '{kind = "freeze", names = ["*blocks.*.weight", "embedding.*"]}, "sparse"',
    ],
)
def test_frozen_parts_and_adapters_of_every_model(model: str, word: str) -> None:
    chosen, delta = config((OTHERS | MODELS)[model]), '{kind = "%s", rank = 4}'
    word = delta % word if model == "delta" and not word.startswith("{") else word
    surgery = steps((word,) if word.startswith("{") else word)
    try:
        trained = trained_parameters(chosen, VOCAB, surgery)
    except UsageError as error:
        reason = "nothing" if "nothing is left" in str(error) else "no linear layer"
        with pytest.raises(UsageError, match=reason):
            adapted(chosen, VOCAB, surgery)
    else:
        assert adapted(chosen, VOCAB, surgery).trained == trained > 0


def kept(words: list[str]) -> tuple[Simulation, RankMemory]:
    """A step as traced, and as planned for such a trace."""
    small = ["model.layers=4", "model.width=256", "model.heads=4", "train.sequence=256", "train.micro_batch=4"]
    small += ["train.batch_tokens=1024", "train.precision=fp32", "train.compile=false"]
    recipe = resolve("tiny", [*small, *words], {}).recipe
    return simulate(recipe, 512, 0), estimate_memory(recipe, 512, CPU, traced=True)[0]


@pytest.mark.parametrize(
    ("names", "share"), [("'embedding.*', 'blocks.[01].*'", 0.6), ("'embedding.*', 'blocks.[012].*'", 0.35)]
)
def test_blocks_below_the_first_trained_one_keep_nothing(names: str, share: float) -> None:
    whole, frozen = kept([]), kept([f'surgery=[{{kind="freeze",names=[{names}]}}]', "model.head.tied=false"])
    for traced, planned in (whole, frozen):
        update = planned.phases["update"]
        assert update.weights == traced.state["weights"]
        assert update.gradients == traced.state["gradients"]
        assert update.optimizer == pytest.approx(traced.state["moments"], rel=1e-3)
        assert traced.kept <= planned.kept <= 1.05 * traced.kept  # the first trained block counts in full
    assert frozen[0].kept < share * whole[0].kept


@pytest.mark.parametrize("average", ["none", "ema"])
def test_an_average_is_of_what_is_trained_and_shared_as_weights_are(average: str) -> None:
    words = ["parallel.data=4", "train.batch_tokens=65536", f"train.average={average}"]
    found = {}
    for surgery in ("[]", '["lora"]'):
        for shard in ("none", "everything"):
            recipe = resolve("tiny", [*words, f"surgery={surgery}", f"parallel.shard={shard}"], {}).recipe
            phase = estimate_memory(recipe, 512, CPU)[0].phases["update"]
            found[surgery, shard] = phase.weights, phase.gradients
    for (surgery, shard), (weights, gradients) in found.items():
        plain = resolve("tiny", [*words, "train.average=none", f"surgery={surgery}", f"parallel.shard={shard}"], {})
        without = estimate_memory(plain.recipe, 512, CPU)[0].phases["update"].weights
        assert weights - without == (gradients if average == "ema" else 0)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_matrices_in_codes_are_not_kept_for_backward(precision: str) -> None:
    """They are made again; a trace knows codes as weights."""
    traced, planned = kept(['surgery=["nf4","lora"]', f"train.precision={precision}"])
    update = planned.phases["update"]
    assert (update.weights, update.gradients) == (traced.state["weights"], traced.state["gradients"])
    assert planned.kept == pytest.approx(traced.kept, rel=0.05)


@pytest.mark.parametrize("surgery", ["lora", "dora", "ia3", "bottleneck"])
@pytest.mark.parametrize("layout", [["parallel.tensor=2", "parallel.sequence=true"], ["parallel.pipeline.stages=2"]])
def test_ranks_hold_their_part_of_what_is_added(layout: list[str], surgery: str) -> None:
    traced, planned = kept([f'surgery=["{surgery}"]', "model.attention.kv_heads=2", *layout])
    update = planned.phases["update"]
    assert (update.weights, update.gradients) == (traced.state["weights"], traced.state["gradients"])
    if surgery in ("lora", "dora"):  # of the others it says too much, on one process too
        assert planned.kept == pytest.approx(traced.kept, rel=0.1)


@pytest.mark.parametrize("recipe", ["tiny-bert", "tiny-classify"])
def test_heads_that_ask_for_values_are_traced(recipe: str) -> None:
    small = ["model.layers=2", "model.width=64", "model.heads=4", "train.sequence=64", "train.micro_batch=2"]
    made = resolve(recipe, [*small, "train.batch_tokens=128", "train.precision=fp32", "train.compile=false"], {}).recipe
    planned = estimate_memory(made, 512, CPU, traced=True)[0]
    assert planned.kept == pytest.approx(simulate(made, 512, 0).kept, rel=1e-3)
