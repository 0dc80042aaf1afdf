"""Each family's answer to a prompt."""

import pytest
import tokenizers
import torch

from hornbook.errors import UsageError
from hornbook.model.build_model import build_model
from hornbook.model.config.head_config import MaskedHead
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.generate.generate import generate
from hornbook.model.generate.prompts import encode_prompt, encode_spelled, fill_masks
from hornbook.model.init.init import initialize
from hornbook.model.transformer import Source, Transformer
from hornbook.text.tokenizer.tokenizer import Tokenizer

SPECIAL = ["<pad>", "</s>", "<mask>", "<extra_id_0>", "<extra_id_1>"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Bytes, and the special tokens of several objectives."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {name: number for number, name in enumerate([*SPECIAL, *letters])}
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    model.add_special_tokens([tokenizers.AddedToken(name, special=True) for name in SPECIAL])
    folder = tmp_path_factory.mktemp("tokenizer")
    model.save(str(folder / "tokenizer.json"))
    return Tokenizer.load(folder)


def make(tokenizer: Tokenizer, **settings: object) -> Transformer:
    config = ModelConfig(layers=2, width=16, heads=2, **settings)
    model = build_model(config, tokenizer.vocab_size, "cpu")
    initialize(model, config, seed=1)
    return model.eval()


def test_spelled_tokens_become_ids_and_the_rest_is_text(tokenizer: Tokenizer) -> None:
    a, b = (tokenizer.encode(letter) for letter in "ab")
    rest = [*a, 2, *b, 4, *tokenizer.encode("<pad>")]
    assert encode_spelled(tokenizer, "a<mask>b <extra_id_1><pad>") == [1, *rest]
    assert encode_spelled(tokenizer, "a<mask>b <extra_id_1><pad>", source=True) == [*rest, 1]
    assert encode_spelled(tokenizer, "a [MASK]b <mask>") == [1, *a, 2, *b, 2]
    assert encode_spelled(tokenizer, "a \n <mask>") == [1, *a, 2]  # as by `lstrip` of transformers
    assert encode_spelled(tokenizer, "a  <extra_id_0>") == [1, *a, *tokenizer.encode(" "), 3]


def test_an_encoder_fills_each_mask_with_what_its_head_finds_likeliest(tokenizer: Tokenizer) -> None:
    model = make(tokenizer, kind="encoder", head=MaskedHead())
    tokens = encode_spelled(tokenizer, "to <mask> a <mask>")
    found = fill_masks(model, tokens, tokenizer.special.mask, tokenizer.vocab_size, count=3)
    assert [each.position for each in found] == [place for place, token in enumerate(tokens) if token == 2]
    with torch.no_grad():
        logits = model.head.logits(model(torch.tensor([tokens]))[0])[0]
    for each in found:
        shares = logits[each.position].softmax(-1)
        assert each.tokens == shares.topk(3).indices.tolist()
        assert each.probabilities == pytest.approx(shares.topk(3).values.tolist())
    both = zip(found[0].tokens, found[0].probabilities, strict=True)
    said = [f"{tokenizer.decode([token]).strip()} {share:.0%}" for token, share in both]
    assert found[0].describe(tokenizer) == ", ".join(said)
    with pytest.raises(UsageError, match=r"fills masks: write \[MASK\] where"):
        fill_masks(model, encode_spelled(tokenizer, "none here"), tokenizer.special.mask, tokenizer.vocab_size)


def test_an_encoder_decoder_answers_to_its_source(tokenizer: Tokenizer) -> None:
    model = make(tokenizer, kind="encoder_decoder")
    prompt = encode_prompt(model, tokenizer, "to <extra_id_0>")
    assert prompt.tokens == [tokenizer.special.pad]
    said = [*generate(model, prompt.tokens, max_tokens=6, greedy=True, memory=prompt.memory)]
    tokens, source = [0], torch.tensor([encode_spelled(tokenizer, "to <extra_id_0>", source=True)])
    with torch.no_grad():
        for _ in range(6):
            hidden, _ = model(torch.tensor([tokens]), source=Source(source))
            tokens.append(int(model.head.logits(hidden[0, -1]).argmax()))
    assert said == tokens[1:]


def test_a_decoder_goes_on_from_the_text(tokenizer: Tokenizer) -> None:
    assert encode_prompt(make(tokenizer), tokenizer, "a").tokens == [1, *tokenizer.encode("a")]
