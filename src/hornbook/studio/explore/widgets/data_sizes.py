"""Sizes of data sets: tokens that published models were trained on, next to a data set of yours."""

from typing import NamedTuple

from hornbook.plan.scaling.laws import law_named
from hornbook.settings.fields import Config
from hornbook.studio.explore.explorer import Preset, explorer, slider
from hornbook.studio.explore.views import Answer, Curves, Facts, Line, Table, fact
from hornbook.text.tokenizer.token_dtypes import DTYPES, dtype_for


class TrainedModel(NamedTuple):
    """A model and what its report says."""

    name: str
    year: int
    parameters: float
    tokens: float
    """Read in training, text that was read again among them."""
    source: str


MODELS = (
    TrainedModel("BERT large", 2018, 340e6, 131e9, "1810.04805: 1M steps of 256 rows of 512 tokens"),
    TrainedModel("T5 11B", 2019, 11e9, 1e12, "1910.10683, section 3.7"),
    TrainedModel("GPT-3", 2020, 175e9, 300e9, "2005.14165, table D.1"),
    TrainedModel("Gopher", 2021, 280e9, 300e9, "2112.11446"),
    TrainedModel("Chinchilla", 2022, 70e9, 1.4e12, "2203.15556"),
    TrainedModel("GPT-NeoX 20B", 2022, 20e9, 472e9, "2204.06745: 150,000 steps of 3.15M tokens"),
    TrainedModel("LLaMA 7B", 2023, 6.7e9, 1e12, "2302.13971, table 2"),
    TrainedModel("LLaMA 65B", 2023, 65.2e9, 1.4e12, "2302.13971, table 2"),
    TrainedModel("Pythia 12B", 2023, 12e9, 300e9, "2304.01373"),
    TrainedModel("Llama 2 70B", 2023, 70e9, 2e12, "2307.09288"),
    TrainedModel("TinyLlama", 2024, 1.1e9, 3e12, "2401.02385"),
    TrainedModel("Llama 3.1 405B", 2024, 405e9, 15.6e12, "2407.21783"),
    TrainedModel("OLMo 2 13B", 2024, 13e9, 5e12, "2501.00656"),
    TrainedModel("DeepSeek-V3", 2024, 671e9, 14.8e12, "2412.19437; 37B active"),
    TrainedModel("SmolLM2 1.7B", 2025, 1.7e9, 11e12, "2502.02737"),
)


class DataSizesQuestion(Config):
    """A data set, and the model that shall read it."""

    tokens: float = slider(10e9, 1e6, 1e14, logarithmic=True)
    """Tokens of the data set."""
    parameters: float = slider(1e9, 1e6, 1e12, logarithmic=True)
    """Parameters of the model."""
    vocabulary: int = slider(50_304, 256, 262_144)
    """Different tokens: up to 65,536 a token takes two bytes on disk, otherwise four."""
    text_bytes: float = slider(4.4, 1.0, 8.0)
    """Bytes of text for each token; English with 50,000 tokens has about 4.4."""


@explorer(
    "Sizes of data sets",
    asks="How much text is that, next to what known models were trained on?",
    code=("text.tokenizer.token_dtypes:dtype_for", "plan.scaling.laws:law_named"),
    presets=(
        Preset("GPT-2 124M on 10B tokens", {"parameters": 124e6, "tokens": 10e9, "vocabulary": 50_257}),
        Preset("LLaMA 7B", {"parameters": 6.7e9, "tokens": 1e12, "vocabulary": 32_000}, "arXiv 2302.13971"),
    ),
)
def data_sizes(question: DataSizesQuestion) -> Answer:
    """Models are compared by their parameters, and the text that they read says as much about them. At first models
    read a token or two for each parameter; about twenty are best for a budget of training alone; since 2023 small
    models read hundreds and thousands, because a model that is used often pays for a longer training."""
    size = DTYPES[dtype_for(question.vocabulary)].itemsize
    best = law_named("besiroglu").optimum(6 * question.parameters * question.tokens)
    points = Line(
        name="published models",
        x=[each.parameters for each in MODELS],
        y=[each.tokens for each in MODELS],
        points=True,
        labels=[each.name for each in MODELS],
    )
    ends = [1e6, 1e12]
    lines = [Line(name=f"{ratio:,} per parameter", x=ends, y=[ratio * each for each in ends]) for ratio in (20, 1000)]
    yours = Line(name="yours", x=[question.parameters], y=[question.tokens], points=True, labels=["yours"])
    rows = [
        [each.name, str(each.year), each.parameters, each.tokens, each.tokens / each.parameters, each.source]
        for each in sorted(MODELS, key=lambda each: each.tokens)
    ]
    return Answer(
        yours=Facts(
            title="Your data set",
            facts=[
                fact("tokens per parameter", question.tokens / question.parameters),
                fact("text", question.tokens * question.text_bytes, "bytes"),
                fact("token files of hornbook", question.tokens * size, "bytes"),
                fact("books of 100,000 tokens", question.tokens / 1e5, "count"),
                fact("best for the same operations: parameters", best.parameters, "count"),
                fact("best for the same operations: tokens", best.tokens, "count"),
            ],
        ),
        models=Curves(
            title="Tokens over parameters",
            curves=[points, yours, *lines],
            x="parameters",
            y_unit="count",
            logarithmic="xy",
        ),
        table=Table(
            title="Published models",
            note="Tokens read in training; numbers of the source are those of arXiv.",
            columns={
                "model": None,
                "year": None,
                "parameters": "count",
                "tokens": "count",
                "tokens per parameter": "",
                "source": None,
            },
            rows=rows,
        ),
    )
