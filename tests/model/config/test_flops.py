"""Operations and bytes by arithmetic equal those that are counted while a model runs."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from hornbook.model.attention import attend, attention
from hornbook.model.attention.mask import AttentionMask
from hornbook.model.build_model import build_model
from hornbook.model.config.flops import NO_RECOMPUTE, StepOperations, operations_per_token, state_bytes, step_operations
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.parameter_count import count_parameters
from hornbook.model.config.part import keys_seen
from hornbook.model.heads.replaced import GENERATED, Chosen
from hornbook.model.transformer import Source
from hornbook.optim.config.optim import AdamW
from hornbook.parallel.config import BlockRecompute, ParallelConfig, Recompute
from hornbook.settings.resolve import resolve
from tests.model.attention.reference import reference_attention

SMALL = ["model.layers=2", "model.width=32", "model.heads=4"]
SHAPES = {
    "llama": ["model.attention.kv_heads=2"],
    "gpt": ["model.mlp=mlp", "model.position=learned", "model.attention.bias=true", "model.head.tied=false"],
    "narrow vectors": ["model.embedding.width=16"],
    "latent": ["model.attention=latent", "model.attention.query_rank=8", "model.attention.kv_rank=12"],
    "encoder": ["model.kind=encoder"],
    "further tokens": ["model.mtp=sequential", "model.mtp.depth=2"],
}


def config_of(words: list[str]) -> ModelConfig:
    return resolve(None, [*SMALL, *words], {}).recipe.model


@pytest.mark.parametrize("words", SHAPES.values(), ids=SHAPES)
def test_products_with_matrices_are_those_that_torch_counts(words: list[str]) -> None:
    """Forward and backward to the states that the head reads; the head is one more product of each."""
    config = config_of(words)
    model = build_model(config, 64, "cpu")
    tokens = torch.randint(0, 64, (2, 8))
    with FlopCounterMode(display=False) as counter:
        hidden, further = model(tokens, torch.arange(8).expand(2, 8), ahead=True)
        torch.stack([hidden, *further.values()]).sum().backward()
    counted = {str(name): flops for name, flops in counter.get_flop_counts()["Global"].items()}
    products = sum(flops for name, flops in counted.items() if name in ("aten.mm", "aten.addmm"))
    (operations,) = operations_per_token(config, 64, 8).values()
    heads = (1 + config.mtp.depth) * config.head.num_matmul_weights(config, 64)
    assert products == 6 * (operations.weights - heads) * tokens.numel()


def test_a_generator_has_products_of_its_own() -> None:
    """But for its draws, which are without gradient: here there are none."""
    config = config_of(["model.kind=encoder", "model.head=replaced", "data.objective=replaced"])
    model, generator = build_model(config, 64, "cpu"), config.head.generator_of(config)
    tokens = torch.randint(0, 64, (2, 8))
    nothing = Chosen(torch.zeros(0, dtype=torch.int64), torch.zeros(2, dtype=torch.int64))
    with FlopCounterMode(display=False) as counter:
        hidden, beside = model(tokens, torch.arange(8).expand(2, 8), chosen=nothing)
        (hidden.sum() + beside[GENERATED].sum()).backward()
    counted = {str(name): flops for name, flops in counter.get_flop_counts()["Global"].items()}
    products = sum(flops for name, flops in counted.items() if name in ("aten.mm", "aten.addmm"))
    (operations,) = operations_per_token(config, 64, 8).values()
    assert generator is not None
    heads = config.head.num_matmul_weights(config, 64) + generator.head.num_matmul_weights(generator, 64)
    assert products == 6 * (operations.weights - heads) * tokens.numel()


def test_source_and_target_tokens_have_their_own_products() -> None:
    config = config_of(["model.kind=encoder_decoder", "model.encoder_layers=3", "model.attention.kv_heads=2"])
    model = build_model(config, 64, "cpu")
    source, target = torch.randint(0, 64, (1, 10)), torch.randint(0, 64, (1, 6))
    with FlopCounterMode(display=False) as counter:
        hidden, _ = model(target, torch.arange(6)[None], source=Source(source, torch.arange(10)[None], None))
        hidden.sum().backward()
    counted = {str(name): flops for name, flops in counter.get_flop_counts()["Global"].items()}
    costs = operations_per_token(config, 64, 16)
    of_target = costs["target token"].weights - config.head.num_matmul_weights(config, 64)
    assert counted["aten.mm"] == 6 * (10 * costs["source token"].weights + 6 * of_target)


FAMILIES = {
    "decoder": ["model.attention.kv_heads=2"],
    "encoder": ["model.kind=encoder"],
    "encoder-decoder": ["model.kind=encoder_decoder"],
}
ROWS, LENGTH = 2, 24


def spread(query: torch.Size, *shapes: torch.Size) -> list[torch.Size]:
    """Shapes of keys and values with a head for each of the query's: torch 2.11 does not count grouped heads."""
    return [torch.Size([shape[0], query[1], *shape[2:]]) for shape in shapes]


def counted_step(words: list[str]) -> tuple[ModelConfig, float]:
    """What torch counts in a forward and a backward pass, loss included; flash attention by torch's own formulas."""
    config = config_of(words)
    model = build_model(config, 64, "cpu")
    assert model.head is not None
    tokens = torch.randint(0, 64, (ROWS, LENGTH))
    positions = torch.arange(LENGTH).expand(ROWS, -1)
    source = Source(tokens, positions) if config.kind == "encoder_decoder" else None
    formulas = {
        torch.ops.aten.addmm_: lambda _, a, b, *__, **___: 2 * a[0] * a[1] * b[1],  # the head adds its gradients up
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(
            q, *spread(q, k, v)
        ),
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda grad, q, k, v, *_, **__: (
            sdpa_backward_flop_count(grad, q, *spread(q, k, v))
        ),
    }
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        hidden, _ = model(tokens, positions, source=source)
        model.head.losses(hidden, tokens, torch.ones(ROWS, LENGTH))["loss"].backward()
    return config, counter.get_total_flops()


def operations(config: ModelConfig, recompute: Recompute = NO_RECOMPUTE) -> StepOperations:
    positions = (ROWS * LENGTH, ROWS * LENGTH if config.kind == "encoder_decoder" else 0)
    return step_operations(config, 64, LENGTH, positions, recompute)


@pytest.mark.parametrize("words", FAMILIES.values(), ids=FAMILIES)
def test_the_palm_convention_is_what_torch_counts(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention written as its formula multiplies all pairs, six products of them, as PaLM counts."""

    def written_out(query, key, value, mask, *, scale=None, softcap=None, bias=None, sinks=None, dropout=None):
        scoring = attend.Scoring(query.shape[-1] ** -0.5 if scale is None else scale, softcap, bias, sinks, dropout)
        return reference_attention(query, key, value, mask, scoring)

    monkeypatch.setattr(attention, "attend", written_out)
    config, counted = counted_step(words)
    assert counted == operations(config).palm


@pytest.mark.parametrize("words", FAMILIES.values(), ids=FAMILIES)
def test_flash_attention_computes_its_scores_once_more(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its backward pass has five products, one of them of the forward pass again: of hardware, and of no convention."""
    monkeypatch.setattr(attend, "FEW_QUERIES", LENGTH)
    config, counted = counted_step(words)
    found = operations(config)
    assert counted == found.palm + (found.palm - found.matrices) / 6


def test_recomputed_blocks_run_forward_twice() -> None:
    """A third of the blocks' operations; the head and the embedding are not computed again."""
    config = config_of(FAMILIES["decoder"])
    found = operations(config, BlockRecompute())
    assert found.recomputed == pytest.approx(found.without_head * 4 / 3 + (found.causal - found.without_head))
    assert operations(config).recomputed == found.causal


def test_conventions_differ_by_what_they_say() -> None:
    config = config_of(FAMILIES["decoder"])
    found, count = operations(config), ROWS * LENGTH
    pairs = 12 * config.layers * config.heads * config.head_dim * LENGTH
    assert found.palm - found.matrices == count * pairs  # 12 L H d s
    assert found.causal - found.matrices == count * pairs * (LENGTH + 1) / (2 * LENGTH)
    assert found.causal - found.without_head == 6 * count * 64 * config.width


@pytest.mark.parametrize("window", [None, 1, 2, 5, 8, 30, 31, 100])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_keys_seen_are_those_of_the_mask(window: int | None, bidirectional: bool) -> None:
    starts, ends = AttentionMask("bidirectional" if bidirectional else "causal", None, window=window).intervals(
        31, 31, 0
    )
    assert keys_seen(31, window, bidirectional=bidirectional) == pytest.approx(
        (ends - starts).double().mean().item(), abs=1e-12
    )


def test_attention_to_the_encoder_costs_what_each_layer_says() -> None:
    shape = ["model.kind=encoder_decoder", "model.layers=4", "model.heads=4", "model.width=48"]
    part = "{kind='full',kv_heads=2,head_dim=8}"
    said = config_of([*shape, f"model.attention={part}"])
    repeated = config_of([*shape, f"model.pattern=[{{attention={part}}}]"])
    assert operations_per_token(said, 101, 32) == operations_per_token(repeated, 101, 32)


def test_gpt3_costs_what_its_paper_says() -> None:
    """Table D.1 of arXiv 2005.14165: 3.14e23 operations in matrices for 300B tokens, by its 6 per parameter."""
    recipe = resolve("gpt3-175b", environ={}).recipe
    assert recipe.model.vocab is not None
    costs = operations_per_token(recipe.model, recipe.model.vocab, recipe.train.sequence)["token"]
    assert costs.matrices * 300e9 == pytest.approx(3.14e23, rel=0.002)
    assert costs.all_pairs == 12 * 96 * 96 * 128 * 2048


def test_a_token_pays_for_its_active_experts_only() -> None:
    words = ["model.mlp=experts", "model.mlp.count=8", "model.mlp.hidden=16", "model.mlp.active="]
    one, three = (operations_per_token(config_of([*words[:3], words[3] + n]), 64, 8)["token"] for n in ("1", "3"))
    assert three.weights - one.weights == 2 * 2 * 3 * 32 * 16
    assert count_parameters(config_of([*words[:3], "model.mlp.active=3"]), 64) > three.weights


def test_delta_attention_does_not_grow_with_the_row() -> None:
    config = config_of(["model.attention=delta"])
    short, long = (operations_per_token(config, 64, sequence)["token"] for sequence in (8, 8000))
    assert short == long
    assert short.attention == 2 * 18 * 32 * 8  # layers x (six per value and key, three times)


@pytest.mark.parametrize(
    ("shard", "replicas", "bytes_each"),
    [
        ("none", 1, (400, 400, 800)),
        ("optimizer", 1, (450, 400, 100)),
        ("gradients", 1, (450, 50, 100)),
        ("everything", 1, (50, 50, 100)),
        ("everything", 2, (100, 100, 200)),
    ],
)
def test_bytes_of_state(shard: str, replicas: int, bytes_each: tuple[int, int, int]) -> None:
    parallel = ParallelConfig.model_validate({"data": 8, "shard": shard, "replicas": replicas})
    found = state_bytes(100, parallel, AdamW())
    assert tuple(found.values()) == bytes_each
    assert list(found) == ["weights", "gradients", "moments"]
