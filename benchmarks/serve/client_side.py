"""Runs in a client's Python: what the programs installed there make of the models of `benchmarks.serve.clients`.

`client_side.py FOLDER` reads served.json there and writes rows.json. It imports nothing of hornbook. A client is a
function of a case that gives (arrays of logits or None, texts or None), for each prompt in order; texts are token ids
or strings. ImportError: the client is not installed here; Unsuited: it has nothing for such a model.
"""

# pyright: reportMissingImports=false

import importlib.metadata
import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Case = dict[str, Any]
Answer = tuple[Iterable[Any] | None, Iterable[Any] | None]


class Unsuited(Exception):
    """Not a model for this client: there is no row."""


class Client(NamedTuple):
    """A way to use a package."""

    package: str
    ask: Callable[[Case], Answer]
    use: str = ""
    hidden: bool = False
    """Its arrays are compared with the last hidden states, not with logits."""


def only(case: Case, *kinds: str) -> None:
    if case["kind"] not in kinds or "Classification" in case["auto"]:
        raise Unsuited


def cut(ids: Iterable[int], case: Case) -> list[int]:
    """New tokens up to the first that ends a text."""
    ids, ends = list(map(int, ids)), case["ends"]
    return ids[: next((place for place, token in enumerate(ids) if token in ends), len(ids))]


def chosen(case: Case, logits: Sequence[Any]) -> list[list[int]]:
    """What an encoder says at its mask, or of a text."""
    found = []
    for prompt, scores in zip(case["prompts"], logits, strict=True):
        place = 0 if len(scores) == 1 else prompt["ids"].index(case["mask"])
        found.append([int(scores[place].argmax())])
    return found


@cache
def tokenizer(folder: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@cache
def model(folder: str, auto: str) -> Any:
    import transformers

    return getattr(transformers, f"AutoModelFor{auto}").from_pretrained(folder).eval()


def encoded(case: Case, prompt: Case) -> Any:
    """The prompt as transformers' tokenizer gives it to a model."""
    import torch

    read = tokenizer(case["hf"])
    if not prompt["chat"]:
        return dict(read(prompt["text"], return_tensors="pt"))
    asked = [{"role": "user", "content": prompt["text"]}]
    ids = read.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    return {name: torch.as_tensor(each) for name, each in ids.items()}


def of_torch(case: Case, network: Any) -> Answer:
    """Logits and `generate` of a class of transformers, or of one with its interface."""
    import torch

    logits, texts = [], []
    for prompt in case["prompts"]:
        given = encoded(case, prompt)
        start = {"decoder_input_ids": torch.tensor([prompt["start"]])} if case["kind"] == "encoder_decoder" else {}
        with torch.no_grad():
            scores = network(**given, **start).logits.float().numpy()
        logits.append(scores if "Classification" in case["auto"] else scores[0])
        if case["kind"] != "encoder":
            made = network.generate(**given, max_new_tokens=case["new"], do_sample=False)[0]
            texts.append(cut(made[1 if start else len(given["input_ids"][0]) :], case))
    return logits, texts or chosen(case, logits)


def transformers_generate(case: Case) -> Answer:
    return of_torch(case, model(case["hf"], case["auto"]))


def transformers_batch(case: Case) -> Answer:
    """All texts at once, filled up to one length."""
    import torch

    texts, network = (
        [prompt["text"] for prompt in case["prompts"] if not prompt["chat"]],
        model(case["hf"], case["auto"]),
    )
    given = tokenizer(case["hf"])(texts, return_tensors="pt", padding=True)
    if case["kind"] != "encoder":
        made = network.generate(**given, max_new_tokens=case["new"], do_sample=False)
        begin = 1 if case["kind"] == "encoder_decoder" else given["input_ids"].shape[1]
        return None, [cut(row[begin:], case) for row in made]
    with torch.no_grad():
        logits = network(**given).logits
    if "Classification" in case["auto"]:
        return [row[None].numpy() for row in logits], chosen(case, [row[None] for row in logits])
    rows = [row[seen > 0].numpy() for row, seen in zip(logits, given["attention_mask"], strict=True)]
    return rows, chosen(case, rows)


def transformers_pipeline(case: Case) -> Answer:
    import transformers

    names: dict[str, Any] = {
        "CausalLM": "text-generation",
        "MaskedLM": "fill-mask",
        "SequenceClassification": "text-classification",
    }
    if case["auto"] not in names:
        raise Unsuited
    network: Any = transformers.pipeline(names[case["auto"]], model=case["hf"])
    texts: list[Any] = []
    for prompt in case["prompts"]:
        if case["kind"] == "encoder":
            best = network(prompt["text"])[0]
            texts.append([best["token"]] if "token" in best else best["label"])
        elif prompt["chat"]:
            asked = [{"role": "user", "content": prompt["text"]}]
            made = network(asked, max_new_tokens=case["new"], do_sample=False)
            texts.append(made[0]["generated_text"][-1]["content"])
        else:
            how = {"max_new_tokens": case["new"], "do_sample": False, "return_full_text": False}
            texts.append(network(prompt["text"], **how)[0]["generated_text"])
    return None, texts


def peft(case: Case) -> Answer:
    """A new adapter changes nothing."""
    import copy

    from peft import LoraConfig, get_peft_model

    network = copy.deepcopy(model(case["hf"], case["auto"]))
    return of_torch(case, get_peft_model(network, LoraConfig(r=2, target_modules="all-linear")).eval())


def sentence_transformers(case: Case) -> Answer:
    from sentence_transformers import SentenceTransformer

    only(case, "encoder")
    vectors = SentenceTransformer(case["hf"], device="cpu").encode([prompt["text"] for prompt in case["prompts"]])
    return [row[None] for row in vectors], None


def ctranslate2(case: Case) -> Answer:
    import ctranslate2 as library

    only(case, "decoder", "encoder", "encoder_decoder")
    with tempfile.TemporaryDirectory() as scratch:
        library.converters.TransformersConverter(case["hf"]).convert(scratch, force=True)
        read = tokenizer(case["hf"])
        prompts = [read.convert_ids_to_tokens(prompt["ids"]) for prompt in case["prompts"]]
        if case["kind"] == "encoder":
            states = (library.Encoder(scratch).forward_batch([each]).last_hidden_state for each in prompts)
            return [np.array(each)[0] for each in states], None
        if case["kind"] == "encoder_decoder":
            made = (
                library.Translator(scratch).translate_batch(
                    [each], beam_size=1, min_decoding_length=0, max_decoding_length=case["new"]
                )
                for each in prompts
            )
            return None, [cut(read.convert_tokens_to_ids(each[0].hypotheses[0]), case) for each in made]
        network = library.Generator(scratch)
        logits = [np.array(network.forward_batch([each]))[0] for each in prompts]
        how = {"max_length": case["new"], "sampling_topk": 1, "include_prompt_in_result": False}
        made = (network.generate_batch([each], **how)[0].sequences_ids[0] for each in prompts)
        return logits, [cut(each, case) for each in made]


def greedy(case: Case, forward: Callable[[list[int]], Any]) -> Answer:
    """Of a function of token ids alone."""
    logits, texts = [forward(prompt["ids"]) for prompt in case["prompts"]], []
    if case["kind"] == "encoder":
        return logits, chosen(case, logits)
    for prompt in case["prompts"]:
        new: list[int] = []
        while len(new) < case["new"] and (token := int(forward(prompt["ids"] + new)[-1].argmax())) not in case["ends"]:
            new.append(token)
        texts.append(new)
    return logits, texts


def given_inputs(ids: list[int], names: Iterable[str]) -> dict[str, Any]:
    given = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}
    return {name: given.get(name, np.zeros((1, len(ids)), np.int64)) for name in names}


def per_text(case: Case, scores: Any) -> Any:
    return scores if "Classification" in case["auto"] else scores[0]


def onnxruntime(case: Case) -> Answer:
    import onnxruntime as library

    session = library.InferenceSession(onnx_file(case), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return greedy(case, lambda ids: per_text(case, session.run(["logits"], given_inputs(ids, names))[0]))


def openvino(case: Case) -> Answer:
    import openvino as library

    network = library.Core().compile_model(onnx_file(case), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    names = [each.any_name for each in network.inputs]
    return greedy(case, lambda ids: per_text(case, network(given_inputs(ids, names))[0].copy()))


def onnx_file(case: Case) -> str:
    if "onnx" not in case:
        raise Unsuited
    return f"{case['onnx']}/onnx/model.onnx"


def optimum_onnx(case: Case) -> Answer:
    from optimum import onnxruntime as library

    onnx_file(case)
    options = {"use_cache": False, "use_io_binding": False} if case["kind"] == "decoder" else {}
    return of_torch(case, getattr(library, f"ORTModelFor{case['auto']}").from_pretrained(case["onnx"], **options))


def optimum_intel(case: Case) -> Answer:
    from optimum.intel import openvino as library

    kind = getattr(library, f"OVModelFor{case['auto']}")
    return of_torch(case, kind.from_pretrained(case["hf"], export=True, ov_config={"INFERENCE_PRECISION_HINT": "f32"}))


def llama_cpp(case: Case) -> Answer:
    from llama_cpp import Llama

    if "gguf" not in case:
        raise Unsuited
    network = Llama(f"{case['gguf']}/model.gguf", logits_all=True, n_ctx=256, verbose=False)

    def forward(ids: list[int]) -> Any:
        network.reset()
        network.eval(ids)
        return network.scores[: len(ids)].copy()

    return greedy(case, forward)


def mlx_lm(case: Case) -> Answer:
    import mlx.core as mx
    from mlx_lm import load

    only(case, "decoder")
    network = load(case["hf"])[0]
    return greedy(case, lambda ids: np.array(network(mx.array([ids]))[0].astype(mx.float32)))


def over_http(case: Case, complete: Callable[[str], str], chat: Callable[[str], str]) -> Answer:
    return None, [(chat if prompt["chat"] else complete)(prompt["text"]) for prompt in case["prompts"]]


def url(case: Case) -> str:
    if "url" not in case:
        raise Unsuited
    return case["url"]


def openai(case: Case) -> Answer:
    from openai import OpenAI

    api = OpenAI(base_url=url(case), api_key="none")
    how: dict[str, Any] = {"model": "model", "max_tokens": case["new"], "temperature": 0}

    def chat(text: str) -> str:
        asked: Any = [{"role": "user", "content": text}]
        return api.chat.completions.create(messages=asked, **how).choices[0].message.content or ""

    return over_http(case, lambda text: api.completions.create(prompt=text, **how).choices[0].text, chat)


def litellm(case: Case) -> Answer:
    import litellm as library

    how: dict[str, Any] = {"api_base": url(case), "api_key": "none", "max_tokens": case["new"], "temperature": 0}

    def complete(text: str) -> str:
        return library.text_completion(model="text-completion-openai/model", prompt=text, **how).choices[0].text

    def chat(text: str) -> str:
        asked = [{"role": "user", "content": text}]
        return library.completion(model="openai/model", messages=asked, **how).choices[0].message.content

    return over_http(case, complete, chat)


def langchain_openai(case: Case) -> Answer:
    from langchain_openai import ChatOpenAI, OpenAI

    how: dict[str, Any] = {"base_url": url(case), "api_key": "none", "max_tokens": case["new"], "temperature": 0}
    texts, chats = OpenAI(model="model", **how), ChatOpenAI(model="model", **how)
    return over_http(case, texts.invoke, lambda text: str(chats.invoke(text).content))


def lm_eval(case: Case) -> Answer:
    """Completions; its tokens have no delimiter at their beginning, so the server is sent texts."""
    from lm_eval.api.instance import Instance
    from lm_eval.api.registry import get_model

    given = f"model=model,base_url={url(case)}/completions,tokenizer_backend=huggingface,tokenizer={case['hf']}"
    own = get_model("local-completions").create_from_arg_string(f"{given},tokenized_requests=False")
    how = {"until": [], "max_gen_toks": case["new"], "do_sample": False}
    texts = [prompt["text"] for prompt in case["prompts"] if not prompt["chat"]]
    return None, own.generate_until([Instance("generate_until", {}, (text, dict(how)), 0) for text in texts])


CLIENTS = (
    Client("transformers", transformers_generate),
    Client("transformers", transformers_batch, "padded batch"),
    Client("transformers", transformers_pipeline, "pipeline"),
    Client("peft", peft),
    Client("sentence-transformers", sentence_transformers, hidden=True),
    Client("ctranslate2", ctranslate2),
    Client("onnxruntime", onnxruntime),
    Client("openvino", openvino),
    Client("optimum-onnx", optimum_onnx),
    Client("optimum-intel", optimum_intel),
    Client("llama-cpp-python", llama_cpp),
    Client("mlx-lm", mlx_lm),
    Client("openai", openai),
    Client("litellm", litellm),
    Client("langchain-openai", langchain_openai),
    Client("lm-eval", lm_eval),
)


def judge(client: Client, case: Case, arrays: Any, version: str) -> dict[str, Any] | None:
    """The row of one client and case; None where there is nothing to ask."""
    row: dict[str, Any] = {"client": " ".join(filter(None, (client.package, client.use))), "version": version}
    row |= {"model": case["name"], "difference": None, "equal": 0, "texts": 0, "error": ""}
    try:
        logits, texts = client.ask(case)
        if logits is not None:
            row["difference"] = difference(client, case, list(logits), arrays)
        for text, prompt in zip(texts or (), case["prompts"], strict=False):
            row["texts"] += 1
            row["equal"] += text == prompt["answer_text" if isinstance(text, str) else "answer"]
    except Unsuited:
        return None
    except Exception as error:  # noqa: BLE001 - whatever a client raises is its answer
        traceback.print_exc()
        return row | {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    return row


def difference(client: Client, case: Case, found: list[Any], arrays: Any) -> float:
    """The largest difference as a share of the largest number; infinite where shapes differ."""
    worst = 0.0
    for number, theirs in enumerate(map(np.asarray, found)):
        hidden = client.hidden or (case["kind"] == "encoder" and client.package == "ctranslate2")
        ours = arrays[f"{'hidden' if hidden else 'logits'}{number}"]
        ours = ours.mean(0, keepdims=True) if client.hidden else ours
        if ours.shape != theirs.shape:
            return float("inf")
        each = float(np.abs(ours - theirs).max() / np.abs(ours).max())
        worst = max(worst, each if each >= 0 else float("inf"))  # NaN compares with nothing
    return worst


def main(folder: Path) -> None:
    """Ask every client that is installed about every case."""
    installed = {}
    for client in CLIENTS:
        try:
            installed[client] = importlib.metadata.version(client.package)
        except importlib.metadata.PackageNotFoundError:
            continue
    rows = []
    for case in json.loads((folder / "served.json").read_text()):
        arrays = np.load(Path(case["hf"]) / "reference.npz")
        for client, version in installed.items():
            if (row := judge(client, case, arrays, version)) is not None:
                rows.append(row)
                print(*row.values(), flush=True)
    (folder / "rows.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
