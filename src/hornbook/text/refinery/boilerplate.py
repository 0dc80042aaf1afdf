"""Lines of pages that no author wrote: notices about cookies, subscriptions, sharing, navigation. Seven languages."""

import re

from hornbook.text.document import Document
from hornbook.text.refinery.step import Edit

_NETWORK = r"(?:facebook|twitter|x|linkedin|whatsapp|telegram)\b"
_WITHIN = {  # kind -> (what a text must hold in small letters, what a line must then hold)
    "cookies": [
        ("cookie", r"\b(?:we|this (?:web)?site) uses? cookies\b"),
        ("cookie", r"\b(?:accept|manage|reject) (?:all )?cookies\b"),
        ("cookie", r"\bverwende[nt] .{0,30}cookies\b"),
        ("cookie", r"\balle cookies (?:akzeptieren|ablehnen)\b"),
        ("cookie", r"\b(?:utilise|utilisons) des cookies\b"),
        ("cookie", r"\baccepter (?:tous )?les cookies\b"),
        ("cookie", r"\b(?:utilizamos|utiliza) cookies\b"),
        ("cookie", r"\baceptar (?:todas )?las cookies\b"),
        ("cookie", r"\butilizza(?:mo)? (?:i )?cookie"),
        ("cookie", "\u0438\u0441\u043f\u043e\u043b\u044c\u0437\u0443\u0435[\u0442\u043c].{0,30}cookie"),
        ("cookie", "\u7f51\u7ad9\u4f7f\u7528.{0,6}cookie"),
    ],
    "subscribe": [
        ("newsletter", r"\b(?:subscribe|sign up) (?:to|for) (?:our|the) newsletter\b"),
        ("newsletter", r"\bnewsletter abonnieren\b|\binscrivez-vous \u00e0 (?:notre|la) newsletter\b"),
        ("newsletter", r"\biscriviti alla newsletter\b"),
        ("abonnez-vous", r"\babonnez-vous\b"),
        ("suscr\u00edbete", r"\bsuscr\u00edbete\b"),
        (
            "\u043f\u043e\u0434\u043f\u0438\u0448\u0438\u0442\u0435\u0441\u044c",
            "\\b\u043f\u043e\u0434\u043f\u0438\u0448\u0438\u0442\u0435\u0441\u044c \u043d\u0430\\b",
        ),
        ("\u8ba2\u9605", "^.{0,8}\u8ba2\u9605.{0,8}(?:\u901a\u8baf|\u90ae\u4ef6).{0,8}$"),
    ],
    "share": [
        ("share", rf"\bshare (?:this )?(?:on|via) {_NETWORK}"),
        ("follow us", r"\bfollow us on\b"),
        ("teilen", rf"\b(?:auf|bei) {_NETWORK} teilen\b"),
        ("folgen sie uns", r"\bfolgen sie uns\b"),
        ("partager", rf"\bpartager sur {_NETWORK}"),
        ("suivez-nous", r"\bsuivez-nous\b"),
        ("compartir", rf"\bcompartir en {_NETWORK}"),
        ("s\u00edguenos", r"\bs\u00edguenos en\b"),
        ("condividi", rf"\bcondividi su {_NETWORK}"),
        (
            "\u043f\u043e\u0434\u0435\u043b\u0438\u0442\u044c\u0441\u044f \u0432",
            "^.?\u043f\u043e\u0434\u0435\u043b\u0438\u0442\u044c\u0441\u044f \u0432\\b",
        ),
        ("\u5206\u4eab\u5230", "^.{0,4}\u5206\u4eab\u5230.{0,12}$"),
    ],
}  # fmt: skip
_BUTTONS = (
    "skip to content|skip to main content|back to top|read more|load more|click here|print this page|"
    "weiterlesen|nach oben|mehr erfahren|lire la suite|haut de page|leer m\u00e1s|volver arriba|leggi tutto|torna su|"
    "\u0447\u0438\u0442\u0430\u0442\u044c \u0434\u0430\u043b\u0435\u0435|\u043d\u0430\u0432\u0435\u0440\u0445|"
    "\u9605\u8bfb\u66f4\u591a|\u8fd4\u56de\u9876\u90e8"
)
_HOME = "home|startseite|accueil|inicio|\u0433\u043b\u0430\u0432\u043d\u0430\u044f|\u9996\u9875"
_BETWEEN = "[|>\u00bb\u203a\u2022]"
_NAVIGATION = re.compile(
    rf"(?:{_BUTTONS})[.!\u2026>\u00bb ]{{0,4}}|(?:{_HOME})(?: ?{_BETWEEN} ?[^|>\u00bb\u203a\u2022]{{1,30}}){{1,9}}",
    re.IGNORECASE,
)
_LONGEST = 320

_RULES = [
    (kind, {mark for mark, _ in rules}, re.compile("|".join(rule for _, rule in rules), re.IGNORECASE))
    for kind, rules in _WITHIN.items()
]


class Boilerplate(Edit):
    """Removes such lines, and counts them by kind."""

    counters = (*_WITHIN, "navigation")

    def edit(self, document: Document) -> tuple[str, tuple[int, ...]]:
        """The lines that stay, as they were."""
        small = document.text.lower()
        rules = [(kind, rule) for kind, marks, rule in _RULES if any(mark in small for mark in marks)]
        rules.append(("navigation", _NAVIGATION))
        counts = dict.fromkeys(self.counters, 0)
        kept = []
        for line in document.text.split("\n"):
            kind = self._kind(line.strip(), rules)
            if kind is None:
                kept.append(line)
            else:
                counts[kind] += 1
        return "\n".join(kept) if any(counts.values()) else document.text, tuple(counts.values())

    def _kind(self, line: str, rules: list[tuple[str, re.Pattern[str]]]) -> str | None:
        if not line or len(line) > _LONGEST or line.count(" ") >= self.config.max_words:
            return None
        for kind, rule in rules:
            if rule.fullmatch(line) if kind == "navigation" else rule.search(line):
                return kind
        return None
