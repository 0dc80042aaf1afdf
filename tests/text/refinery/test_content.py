"""Harmful words, languages, source code and boilerplate lines, each on texts where the answer is planted."""

import re
from pathlib import Path

import numpy as np
import pytest

from hornbook.errors import UsageError
from hornbook.files.extras import install_command
from hornbook.text.config.content import (
    BoilerplateConfig,
    CodeConfig,
    HarmfulConfig,
    LanguageConfig,
    PersonalConfig,
    RepairConfig,
)
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.step import build
from hornbook.text.refinery.steps.code import licence
from hornbook.text.refinery.steps.language import script_of
from tests.text.refinery.running import columns_of, edited, judge, prepare


def reasons_of(config, texts: list[str]) -> list[str]:
    step = build([config]).decisions[0]
    found = step.decide(columns_of(config, texts))  # type: ignore[union-attr]
    return [(*step.reasons, "")[int(number) - 1] for number in found]


@pytest.fixture
def lists(tmp_path: Path) -> dict[str, list[str]]:
    """Artificial words: no list of real ones is part of this repository."""
    terms = {
        "hate.en": "florbish\nzug wug\n\n",
        "hate.de": "STRASSENGRUMM\n",
        "violence.zh": "\u55b7\u55b7\n",
        "sexual.ru": "\u0431\u0440\u044f\u043a\u043b\n",
    }
    for name, text in terms.items():
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    names = {"hate": ["hate.en", "hate.de"], "violence": ["violence.zh"], "sexual": ["sexual.ru"]}
    return {category: [str(tmp_path / f"{name}.txt") for name in each] for category, each in names.items()}


def test_harmful_terms_are_whole_words_in_any_case(lists: dict[str, list[str]]):
    texts = [
        "a FLORBISH day, zug  wug",
        "florbishness, zug and wug",
        "die Stra\u00dfengrumm",
        "\u4ed6\u55b7\u55b7\u8bf4",
        "\u0411\u0420\u042f\u041a\u041b \u0442\u0443\u0442",
        "",
    ]
    columns = columns_of(HarmfulConfig(lists=lists), texts)  # type: ignore[arg-type]
    assert columns["harmful.hate"].tolist() == [2, 0, 1, 0, 0, 0]
    assert columns["harmful.hate_words"].tolist() == [3, 0, 1, 0, 0, 0]
    assert columns["harmful.violence"].tolist() == [0, 0, 0, 1, 0, 0]
    assert columns["harmful.sexual"].tolist() == [0, 0, 0, 0, 1, 0]
    assert columns["harmful.words"].tolist() == [5, 4, 2, 4, 2, 0]


def test_harmful_planted_truth(lists: dict[str, list[str]]):
    clean = [
        "the day was long and nothing of note took place " * 3,
        "\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c\u6211\u4eec\u53bb\u516c\u56ed\u6563\u6b65" * 3,
        "\u0441\u0435\u0433\u043e\u0434\u043d\u044f \u0431\u044b\u043b "
        "\u0434\u043e\u043b\u0433\u0438\u0439 \u0434\u0435\u043d\u044c " * 5,
    ]
    planted = [clean[0] + "florbish", clean[1] + "\u55b7\u55b7", clean[2] + "\u0431\u0440\u044f\u043a\u043b"]
    found = reasons_of(HarmfulConfig(lists=lists, max_share=0.01), clean + planted)  # type: ignore[arg-type]
    assert found == ["", "", "", "harmful: hate", "harmful: violence", "harmful: sexual"]
    assert reasons_of(HarmfulConfig(lists=lists, max_share=0.5), planted) == [""] * 3  # type: ignore[arg-type]
    assert reasons_of(HarmfulConfig(lists=lists, min_hits=2), planted) == [""] * 3  # type: ignore[arg-type]


def test_a_harmful_term_within_an_exception_does_not_count(tmp_path: Path):
    """In scripts with blanks and without; an exception covers what lies within it, and no more."""
    terms, exceptions = tmp_path / "terms.txt", tmp_path / "exceptions.txt"
    terms.write_text("wug\nwug of old\n\u6ce5\u65cf\n", encoding="utf-8")
    exceptions.write_text("blue wug of\n\u9ec4\u6ce5\u65cf\u8c31\n", encoding="utf-8")
    texts = [
        "a Blue wug of mine, a red wug of mine",
        "blue wug of old",
        "wug of",
        "\u9ec4\u6ce5\u65cf\u8c31\u6709\u6ce5\u65cf",
        "\u9ec4\u6ce5\u65cf",
    ]
    config = HarmfulConfig(lists={"hate": [str(terms)]}, exceptions=[str(exceptions)])
    columns = columns_of(config, texts)
    assert columns["harmful.hate"].tolist() == [1, 1, 1, 1, 1]
    assert columns["harmful.hate_words"].tolist() == [1, 3, 1, 2, 2]
    without = columns_of(HarmfulConfig(lists={"hate": [str(terms)]}), texts)
    assert without["harmful.hate"].tolist() == [2, 1, 1, 2, 1]
    assert config.reads() == [str(terms), str(exceptions)]
    with pytest.raises(UsageError, match="cannot be read as a list of terms"):
        build([HarmfulConfig(lists={"hate": [str(terms)]}, exceptions=[str(tmp_path / "none.txt")])])


def test_harmful_lists_are_for_documents_of_their_languages(tmp_path: Path):
    """The lists of a language, those for all, and documents whose language is not known."""
    names = {"en": "florbish", "de": "gift", "any": "wug"}
    paths = {name: tmp_path / f"{name}.txt" for name in names}
    for name, term in names.items():
        paths[name].write_text(term + "\n")
    config = HarmfulConfig(
        lists={"hate": [str(each) for each in paths.values()]},
        languages={str(paths["en"]): ["en"], str(paths["de"]): ["de", "nl"]},
        max_share=0.4,
    )
    texts = ["florbish day", "gift horse", "wug day", "a gift and more"]
    step = build([LanguageConfig(detector="script"), config]).decisions[1]
    measured = step.measurers[0].measure([Document(text, "", "") for text in texts])
    columns = {f"harmful.{name}": column for name, column in measured.items()}
    found = {}
    for language in ("en", "de", "nl", "fr", ""):
        columns["language.language"] = np.array([language] * len(texts), object)
        found[language] = step.decide(columns).tolist()  # type: ignore[union-attr]
    assert found == {
        "en": [1, 0, 1, 0],
        "de": [0, 1, 1, 0],
        "nl": [0, 1, 1, 0],
        "fr": [0, 0, 1, 0],
        "": [1, 1, 1, 0],
    }


def test_harmful_lists_for_languages_need_a_step_that_measures_them(tmp_path: Path):
    path = tmp_path / "list.txt"
    path.write_text("florbish\n")
    config = HarmfulConfig(lists={"hate": [str(path)]}, languages={str(path): ["en"]})
    with pytest.raises(UsageError, match=r'lists for en, but no step measures languages: add { kind = "language" }'):
        build([config])
    assert len(build([LanguageConfig(detector="script"), config]).decisions) == 2
    with pytest.raises(ValueError, match=r"languages of other.txt, which is not among `lists`"):
        HarmfulConfig(lists={"hate": [str(path)]}, languages={"other.txt": ["en"]})


def test_harmful_lists_follow_the_script_of_documents_to_the_end(tmp_path: Path):
    path = tmp_path / "list.txt"
    path.write_text("wug\n")
    config = HarmfulConfig(lists={"hate": [str(path)]}, languages={str(path): ["cyrillic"]})
    texts = ["a wug is here", "\u043e\u043d wug \u0438 \u043c\u043d\u043e\u0433\u043e \u0441\u043b\u043e\u0432"]
    reasons, _ = judge([LanguageConfig(detector="script"), config], texts)
    assert reasons == ["kept", "harmful: hate"]


def test_lists_that_are_none(tmp_path: Path):
    with pytest.raises(UsageError, match="cannot be read as a list of terms"):
        build([HarmfulConfig(lists={"hate": [str(tmp_path / "none.txt")]})])
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(UsageError, match="holds no term"):
        build([HarmfulConfig(lists={"hate": [str(tmp_path / "empty.txt")]})])


def test_scripts():
    texts = [
        "hello there",
        "\u043f\u0440\u0438\u0432\u0435\u0442 all",
        "\u4f60\u597d",
        "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c",
        "\u0645\u0631\u062d\u0628\u0627",
        "12 34",
    ]
    assert [script_of(text)[0] for text in texts] == ["latin", "cyrillic", "han", "kana", "arabic", ""]
    config = LanguageConfig(detector="script", keep=["latin"], min_confidence=0.6)
    assert reasons_of(config, texts) == ["", "language", "language", "language", "language", "language"]
    assert reasons_of(LanguageConfig(detector="script"), texts) == [""] * 6


def test_without_lingua_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "lingua", None)
    with pytest.raises(UsageError, match=re.escape(install_command("lang"))):
        build([LanguageConfig(keep=["en"])])


def test_lingua_tells_languages():
    pytest.importorskip("lingua")
    texts = [
        "The house stands near the river.",
        "Das Haus steht nahe am Fluss.",
        "La maison est pr\u00e8s de la rivi\u00e8re.",
    ]
    config = LanguageConfig(keep=["en", "fr"], among=["en", "de", "fr"])
    assert columns_of(config, texts)["language.language"].tolist() == ["en", "de", "fr"]
    assert reasons_of(config, texts) == ["", "language", ""]
    with pytest.raises(UsageError, match="lingua does not know xx"):
        build([LanguageConfig(among=["xx"])])


NOTICES = {
    "# SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note\n": "GPL-2.0-only WITH Linux-syscall-note",
    "// Licensed under the Apache License,\n//  Version 2.0 (the License)": "Apache-2.0",
    "/* Permission is hereby granted, free of charge,\n * to any person obtaining a copy */": "MIT",
    " * Redistribution and use in source and binary forms are permitted\n * Neither the name": "BSD-3-Clause",
    " * Redistribution and use in source and binary forms are permitted": "BSD-2-Clause",
    "# GNU General Public License as published; either version 3\n# or (at your option) "
    "any later version": "GPL-3.0-or-later",
    "# GNU General Public License\n# version 2 only": "GPL-2.0-only",
    "import os\n": "",
}


def test_licences_of_headers():
    assert {text: licence(text) for text in NOTICES} == NOTICES
    assert licence(" " * 5000 + "SPDX-License-Identifier: MIT") == ""
    assert reasons_of(CodeConfig(licences=["mit", ""]), ["x = 1\n", "# SPDX-License-Identifier: GPL-2.0\nx = 1\n"]) == [
        "",
        "licence",
    ]


def test_code_that_nobody_wrote():
    good = "def add(a, b):\n    return a + b\n"
    texts = [
        good,
        "var a=1;" * 200,
        f"# Auto-generated by tool\n{good}",
        "{}();[]\n" * 20,
        good * 30 + "# do not edit: generated\n",
        "",
    ]
    assert reasons_of(CodeConfig(), texts) == ["", "long lines", "generated", "few letters", "", "few letters"]
    assert reasons_of(CodeConfig(generated=True), texts)[2] == ""
    assert reasons_of(CodeConfig(max_line=10), [good]) == ["long lines"]


BOILERPLATE = {
    "en": ["We use cookies to improve your experience.", "Share this on Facebook", "Subscribe to our newsletter!",
        "Read more \u00bb", "Home > Shop > Shoes"],
    "de": ["Diese Seite verwendet Cookies.", "Auf Facebook teilen", "Newsletter abonnieren", "Weiterlesen \u2026",
        "Startseite | Shop | Schuhe"],
    "fr": ["Nous utilisons des cookies.", "Partager sur Facebook", "Abonnez-vous !", "Lire la suite",
        "Accueil > Boutique"],
    "es": ["Utilizamos cookies propias.", "Compartir en Facebook", "Suscr\u00edbete ya", "Leer m\u00e1s",
        "Inicio \u203a Tienda"],
    "zh": ["\u672c\u7f51\u7ad9\u4f7f\u7528 cookie", "\u5206\u4eab\u5230\u5fae\u535a", "\u9605\u8bfb\u66f4\u591a",
        "\u9996\u9875 > \u65b0\u95fb"],
}  # fmt: skip
PROSE = [
    "A cookie is a small file that a server asks a browser to keep.",
    "Set the cookie with http.cookies before the header is sent.",
    "Home is where the heart is, and they share a flat.",
    "Die Startseite wurde gestern ge\u00e4ndert.",
    "Il faut lire la suite du roman avant d'en parler.",
    "\u4ed6\u559c\u6b22\u8bfb\u4e66\uff0c\u4e5f\u559c\u6b22\u5206\u4eab\u3002",
]


@pytest.mark.parametrize("language", BOILERPLATE)
def test_boilerplate_goes_and_prose_stays(language: str):
    lines = [line for pair in zip(BOILERPLATE[language], PROSE, strict=False) for line in pair]
    kept = [line for line in lines if line in PROSE]
    assert edited(BoilerplateConfig(), "\n".join(lines)) == "\n".join(kept)


def test_boilerplate_counts_and_long_lines():
    step = build([BoilerplateConfig()]).edits[0]
    text = "We use cookies here.\n\n  keep  \nRead more\nRead more\nCopyright 2020 A. All rights reserved."
    assert step.edit(Document(text, "1", "s")) == ("\n  keep  ", (1, 0, 0, 1, 2))
    long = "We use cookies " + "and more " * 25
    assert edited(BoilerplateConfig(), long) == long
    assert edited(BoilerplateConfig(max_words=60), long) == ""
    assert step.counters == ("cookies", "subscribe", "share", "rights", "navigation")


def test_steps_of_content_in_a_run(tmp_path: Path, lists: dict[str, list[str]]):
    texts = [
        "Write to a@b.example today, sch\u00c3\u00b6n\nRead more\nand some more text",
        "# SPDX-License-Identifier: MIT\nvalue = 1 and more words",
        "\u043f\u0440\u0438\u0432\u0435\u0442 \u0432\u0441\u0435\u043c",
        "florbish",
    ]
    steps = [
        RepairConfig(),
        PersonalConfig(),
        BoilerplateConfig(),
        HarmfulConfig(lists=lists),  # type: ignore[arg-type]
        LanguageConfig(detector="script", keep=["latin"]),
        CodeConfig(),
    ]
    kept, signals = prepare(tmp_path, steps, texts)
    assert kept == ["Write to <EMAIL> today, sch\u00f6n\nand some more text", texts[1]]
    assert signals["reason"].to_pylist() == ["kept", "kept", "language", "harmful: hate"]
    assert signals["code.licence"].to_pylist()[1] == "MIT"
    assert signals["personal.email"].to_pylist() == [1, 0, 0, 0]
    assert signals["language.script"].to_pylist() == ["latin", "latin", "cyrillic", "latin"]
