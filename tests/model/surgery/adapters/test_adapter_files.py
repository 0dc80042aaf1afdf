"""Adapter folders: read back, loaded by peft, written by peft, and refused where they do not fit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hornbook.errors import IntegrityError, UsageError
from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config.head_config import (
    ClassificationHead,
    DenseTransform,
    MaskedHead,
    RegressionHead,
    TokenClassificationHead,
)
from hornbook.model.config.position_config import LearnedPositionsConfig
from hornbook.model.config.surgery_config import (
    BottleneckConfig,
    Dora,
    Ia3Config,
    LlamaAdapterV2,
    Lora,
    Nf4,
    PrefixConfig,
    PromptConfig,
    SurgeryStep,
)
from hornbook.model.heads.label_answers import text_place
from hornbook.model.hf.hf import read_hf, write_hf
from hornbook.model.init.init import initialize
from hornbook.model.storage.load import load_model
from hornbook.model.surgery.adapters.adapter_files import AdapterSpec, is_adapter, tensors_digest, write_adapter
from hornbook.model.surgery.adapters.prefix import without_network
from hornbook.model.surgery.added_values import added_parameters
from hornbook.model.surgery.folders import read_merged
from hornbook.model.surgery.operate import build_operated, fill
from hornbook.model.transformer import Transformer
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.config.optim import AdamW
from tests.model.likenesses import bert_like
from tests.model.surgery.conftest import CONFIGS, VOCAB, Operated, ids, logits, spoil

# peft asks transformers by an old name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
SOME = ["*.query", "*.value", "*.mlp.down"]
EPS = 1e-3
BERT_LIKE = bert_like(length=64)
"""Adam's first step is lr * g / (|g| + eps): with a tiny eps it has the sign of rounding where g is nearly zero."""
STEPS = [
    Lora(rank=4),
    Lora(rank=4, scaling="root_rank"),
    Lora(rank=3, targets=SOME),
    Lora(rank=2, targets=["blocks.1.*"]),
    Dora(rank=4),
]


IA3 = {"llama": Ia3Config(), "gpt2": Ia3Config(targets=["*.query", "*.key", "*.value", "*.mlp.down"])}
"""GPT-2's query, key and value are one matrix, which peft has factors of as a whole."""


OTHERS = [
    BottleneckConfig(width=4),
    Ia3Config(),
    IA3["gpt2"],
    PromptConfig(length=3),
    PrefixConfig(length=3),
    PrefixConfig(length=3, hidden=6),
    LlamaAdapterV2(length=4, below=1),
]


def written(folder: Path, base: Path, model: Transformer, *steps: SurgeryStep) -> Path:
    config, vocab, stream = read_hf(base)
    spec = AdapterSpec(config, vocab, steps, str(base), tensors_digest(stream))
    write_adapter(folder, spec, added_parameters(model))
    return folder


def loaded_by_peft(folder: Path, base: Path, **options: Any) -> Any:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager").eval()
    return peft.PeftModel.from_pretrained(model, str(folder), **options)


def assert_close_to(found: Tensor, expected: Tensor) -> None:
    """Within 1e-5 of the largest."""
    torch.testing.assert_close(found, expected, atol=1e-5 * float(expected.detach().abs().max()), rtol=0)


@pytest.mark.parametrize("step", [Ia3Config(), Lora(rank=2, targets=["*.mlp.down"])])
@torch.no_grad()
def test_peft_adapts_no_module_whose_name_ends_alike(tmp_path: Path, step: Any) -> None:
    """BERT's `output.dense` and `attention.output.dense`; peft warns of tensors that it misses."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    config = BERT_LIKE.model_copy(update={"head": MaskedHead()})
    base = build_model(config, VOCAB, "cpu")
    initialize(base, config, 1)
    write_hf(tmp_path / "base", base, config, VOCAB, None)
    model = spoil(fill(build_operated(config, VOCAB, (step,)), read_hf(tmp_path / "base")[2], None), size=0.05)
    folder = written(tmp_path / "adapter", tmp_path / "base", model, step)
    plain = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "base", attn_implementation="eager").eval()
    theirs = peft.PeftModel.from_pretrained(plain, str(folder))
    assert_close_to(logits(model, ids()), theirs(input_ids=ids()).logits)
    assert not [name for name, _ in theirs.named_parameters() if "attention.output" in name and "default" in name]


@pytest.mark.parametrize("base", CONFIGS)
@pytest.mark.parametrize("step", [*STEPS, *OTHERS])
@torch.no_grad()
def test_an_adapter_comes_back_to_the_bit(
    tmp_path: Path, bases: dict[str, Path], operated: Operated, base: str, step: Any
) -> None:
    model = spoil(operated(base, step))
    folder = written(tmp_path / "adapter", bases[base], model, step)
    assert sorted(path.name for path in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert is_adapter(folder)
    again = load_model(folder).model
    for name, parameter in model.named_parameters():
        assert torch.equal(again.get_parameter(name), parameter), name
    assert torch.equal(logits(again, ids()), logits(model, ids()))


@torch.no_grad()
def test_qlora_comes_back_with_its_codes(tmp_path: Path, bases: dict[str, Path], operated: Operated) -> None:
    steps = (Nf4(block=32), Lora(rank=4))
    model = spoil(operated("llama", *steps))
    again = load_model(written(tmp_path / "adapter", bases["llama"], model, *steps)).model
    assert torch.equal(logits(again, ids()), logits(model, ids()))


@pytest.mark.parametrize("base", CONFIGS)
@pytest.mark.parametrize("step", [*STEPS, PromptConfig(length=3), PrefixConfig(length=3)])
@torch.no_grad()
def test_peft_computes_the_same(
    tmp_path: Path, bases: dict[str, Path], operated: Operated, base: str, step: Any
) -> None:
    model = spoil(operated(base, step), size=0.05)
    theirs = loaded_by_peft(written(tmp_path / "adapter", bases[base], model, step), bases[base])
    found = theirs(input_ids=ids()).logits
    assert_close_to(logits(model, ids()), found[:, 3:] if isinstance(step, PromptConfig) else found)


@pytest.mark.parametrize("base", CONFIGS)
@torch.no_grad()
def test_peft_computes_with_what_the_network_of_a_prefix_made(
    tmp_path: Path, bases: dict[str, Path], operated: Operated, base: str
) -> None:
    step = PrefixConfig(length=3, hidden=6)
    model = spoil(operated(base, step), size=0.5)
    steps, added = without_network((step,), added_parameters(model))
    config, vocab, stream = read_hf(bases[base])
    write_adapter(tmp_path / "out", AdapterSpec(config, vocab, steps, str(bases[base]), tensors_digest(stream)), added)
    found = loaded_by_peft(tmp_path / "out", bases[base])(input_ids=ids()).logits
    assert_close_to(logits(model, ids()), found)
    assert not torch.allclose(found, logits(operated(base), ids()), atol=0.05)


@pytest.mark.parametrize("base", CONFIGS)
@torch.no_grad()
def test_factors_are_pefts_and_merge_into_the_weights(
    tmp_path: Path, bases: dict[str, Path], operated: Operated, base: str
) -> None:
    """Biases too; at first they change no bit."""
    step = IA3[base]
    assert torch.equal(logits(operated(base, step), ids()), logits(operated(base), ids()))
    model = spoil(operated(base, step), size=0.3)
    folder = written(tmp_path / "adapter", bases[base], model, step)
    found = logits(model, ids())
    assert not torch.allclose(found, logits(operated(base), ids()), atol=1e-2)
    assert_close_to(found, loaded_by_peft(folder, bases[base])(input_ids=ids()).logits)
    config, vocab, stream, _ = read_merged(folder)
    assert_close_to(logits(fill(build_model(config, vocab, "meta"), stream, None), ids()), found)


def test_factors_of_an_input_that_others_read_are_refused(operated: Operated) -> None:
    with pytest.raises(UsageError, match=r"inputs: others read the input of blocks\.0\.attention\.key too"):
        operated("llama", Ia3Config(inputs=["*.key"]))
    with pytest.raises(UsageError, match="matches no layer of the targets"):
        operated("llama", Ia3Config(inputs=["*.out"]))


@pytest.mark.parametrize("base", CONFIGS)
@pytest.mark.parametrize("step", [Lora(rank=4), Dora(rank=4), Lora(rank=4, targets=["*.out", "*.mlp.*"])])
def test_one_training_step_is_pefts(
    tmp_path: Path, bases: dict[str, Path], operated: Operated, base: str, step: Lora
) -> None:
    """The same loss, then AdamW on both sides: the adapters agree where they are separate matrices on both sides."""
    model, tokens = spoil(operated(base, step), size=0.05), ids()
    first = written(tmp_path / "first", bases[base], model, step)
    theirs = loaded_by_peft(first, bases[base], is_trainable=True)
    theirs.train()  # its dropout is 0
    expected = theirs(input_ids=tokens, labels=tokens).loss
    expected.backward()
    trainable = [p for p in theirs.parameters() if p.requires_grad]
    torch.optim.AdamW(trainable, lr=1e-2, eps=EPS, weight_decay=0.1).step()
    theirs.save_pretrained(tmp_path / "theirs")
    hidden, _ = model(tokens)
    assert model.head is not None
    loss = model.head.losses(hidden[:, :-1], tokens[:, 1:], torch.ones(2, 47))["loss"] / (2 * 47)
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    loss.backward()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    roles = dict.fromkeys(trained, "matrix")  # as theirs, which lets every parameter decay
    assert set(parameter_roles(model)) >= set(roles)
    build_optimizer(trained, roles, AdamW(lr=1e-2, beta2=0.999, eps=EPS, weight_decay=0.1)).step()
    ours = load_file(written(tmp_path / "ours", bases[base], model, step) / "adapter_model.safetensors")
    found = load_file(tmp_path / "theirs" / "adapter_model.safetensors")
    assert ours.keys() == found.keys()
    for name, tensor in found.items():
        same = ours[name] != 0  # their zeros beside the diagonal of a fused B begin to learn
        assert_close_to(ours[name][same], tensor[same])
        assert bool(same.all()) or ("c_attn" in name and "lora_B" in name), name


@pytest.mark.parametrize("base", CONFIGS)
@pytest.mark.parametrize("options", [{}, {"use_rslora": True}, {"use_dora": True}])
@torch.no_grad()
def test_what_peft_wrote_is_read(tmp_path: Path, bases: dict[str, Path], base: str, options: Any) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    modules = ["c_attn", "c_fc"] if base == "gpt2" else ["q_proj", "down_proj"]
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=modules, fan_in_fan_out=base == "gpt2", **options)
    plain = transformers.AutoModelForCausalLM.from_pretrained(bases[base], attn_implementation="eager")
    theirs = spoil(peft.get_peft_model(plain, config)).eval()
    theirs.save_pretrained(tmp_path / "adapter")
    model = load_model(tmp_path / "adapter").model
    assert_close_to(logits(model, ids()), theirs(input_ids=ids()).logits)


def test_an_adapter_of_another_base_is_refused(tmp_path: Path, bases: dict[str, Path], operated: Operated) -> None:
    folder = written(tmp_path / "adapter", bases["llama"], operated("llama", Lora()), Lora())
    point(folder, bases["gpt2"])
    with pytest.raises((IntegrityError, UsageError), match=r"does not fit its base|matches no linear layer"):
        load_model(folder)
    other = tmp_path / "other"
    other.mkdir()
    for path in bases["llama"].iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    tensors = load_file(other / "model.safetensors")
    tensors["model.norm.weight"][0] += 1
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    point(folder, other)
    with pytest.raises(IntegrityError, match=r"trained on a base with digest \w{32}, found \w{32} in .*other"):
        load_model(folder)
    point(folder, tmp_path / "nowhere")
    with pytest.raises(IntegrityError, match=r"base_model_name_or_path is .*nowhere.*write the path of the base"):
        load_model(folder)


def point(folder: Path, base: Path) -> None:
    keys = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(keys | {"base_model_name_or_path": str(base)}))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t: t.pop("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"), r"missing: .*q_proj"),
        (lambda t: t.update(extra=torch.zeros(1)), r"unexpected: extra"),
        (
            lambda t: t.update({"base_model.model.model.layers.1.mlp.up_proj.lora_B.weight": torch.zeros(3, 8)}),
            r"up_proj.lora_B.weight: expected shape \[128, 8\], found \[3, 8\]",
        ),
    ],
)
def test_tensors_that_do_not_fit(
    tmp_path: Path, bases: dict[str, Path], operated: Operated, change: Any, text: str
) -> None:
    folder = written(tmp_path / "adapter", bases["llama"], operated("llama", Lora()), Lora())
    tensors = load_file(folder / "adapter_model.safetensors")
    own = {"hornbook": json.dumps({"base_digest": "", "surgery": [Lora().model_dump()]})}
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors", metadata=own)
    with pytest.raises(IntegrityError, match=text):
        load_model(folder)


def test_dora_on_a_part_of_a_fused_matrix_is_refused(
    tmp_path: Path, bases: dict[str, Path], operated: Operated
) -> None:
    step = Dora(targets=["*.query"])
    with pytest.raises(UsageError, match=r"c_attn.weight is one matrix in transformers: take .*key.weight"):
        written(tmp_path / "adapter", bases["gpt2"], operated("gpt2", step), step)


ROBERTA_POSITIONS = LearnedPositionsConfig(length=62, offset=2)
HEADS = {
    "gpt2": ("AutoModelForSequenceClassification", ClassificationHead(labels=["a", "b", "c"], bias=False)),
    "llama": ("AutoModelForTokenClassification", TokenClassificationHead(labels=["a", "b", "c"])),
    "bert": ("AutoModelForSequenceClassification", RegressionHead(transform=DenseTransform())),
    "roberta": (
        "AutoModelForSequenceClassification",
        ClassificationHead(labels=["a", "b"], transform=DenseTransform()),
    ),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_for_labels_is_trained_whole_as_pefts_modules_to_save(tmp_path: Path, name: str) -> None:
    """Trained beside LoRA, kept with it, loaded by peft, and read back when peft has written it."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    auto, head = HEADS[name]
    encoder = BERT_LIKE if name == "bert" else BERT_LIKE.model_copy(update={"position": ROBERTA_POSITIONS})
    config = CONFIGS.get(name, encoder).model_copy(update={"head": head})
    base, folder, step = tmp_path / "base", tmp_path / "adapter", Lora(rank=4, targets=["*.out", "*.mlp.*"])
    whole = build_model(config, 96, "cpu")
    initialize(whole, config, 1)
    write_hf(base, spoil(whole), config, 96, None)
    model = spoil(fill(build_operated(config, 96, [step]), read_hf(base)[2], None), size=0.05)
    assert {each for each, p in model.named_parameters() if p.requires_grad and ".adapter." not in each} == {
        each for each, _ in model.named_parameters() if each.startswith("head.")
    }
    written(folder, base, model, step)
    wanted = logits(model, ids())
    assert torch.equal(logits(load_model(folder).model, ids()), wanted)
    theirs = getattr(transformers, auto).from_pretrained(base, attn_implementation="eager").eval()
    theirs.config.pad_token_id = -1
    theirs = peft.PeftModel.from_pretrained(theirs, str(folder))
    with torch.no_grad():
        found = theirs(input_ids=ids()).logits
        assert_close_to(wanted if found.dim() == 3 else wanted[:, text_place(config.kind)], found)
    theirs.save_pretrained(tmp_path / "theirs")
    back = load_model(tmp_path / "theirs").model
    assert_close_to(logits(back, ids()), wanted.detach())
    for each, parameter in model.head.named_parameters():
        assert torch.equal(back.get_parameter(f"head.{each}"), parameter)
    merged = dict(read_merged(folder)[2])
    write_hf(tmp_path / "merged", merged, config, 96, None)
    assert_close_to(logits(load_model(tmp_path / "merged").model, ids()), wanted.detach())


def test_an_adapter_with_a_head_is_refused_for_a_base_without(tmp_path: Path, bases: dict[str, Path], operated) -> None:
    folder = written(tmp_path / "adapter", bases["llama"], operated("llama", Lora(rank=4)), Lora(rank=4))
    save_file(
        load_file(folder / "adapter_model.safetensors"), folder / "adapter_model.safetensors"
    )  # without our notes
    keys = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(keys | {"modules_to_save": ["score"]}))
    with pytest.raises(UsageError, match=r"modules_to_save is \['score'\]; expected is none, for its base has no head"):
        load_model(folder)
