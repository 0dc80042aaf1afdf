"""The explorers' answers in the browser: what `hornbook.studio.live.explore_routes` answers, without a server."""

import json
from urllib.parse import parse_qsl, urlsplit

from hornbook.errors import HornbookError
from hornbook.studio.explore.explorer import explorer_names, load_explorer
from hornbook.studio.explore.page_answer import answered, answered_further, replied


def reply(path: str, body: str) -> str:
    """JSON of an explorer's `answer` or `further`, or of the error; body: values as JSON, or ""."""
    address = urlsplit(path)
    *_, name, action = address.path.split("/")
    try:
        values = json.loads(body) if body else dict(parse_qsl(address.query, keep_blank_values=True))
        return json.dumps(replied(name, action, values))
    except HornbookError as error:
        return json.dumps({"error": str(error)})
    except Exception as error:  # noqa: BLE001 - the page shows it, and the next question is answered
        return json.dumps({"error": f"it ended with an error: {error!r}"})


def missing_modules() -> str:
    """JSON of explorer -> module that it needs and that is not here; of those that answer, nothing."""
    found = {}
    for name in explorer_names():
        try:
            explorer = load_explorer(name)
            answered(explorer, {})
            answered_further(explorer, {})
        except ModuleNotFoundError as error:
            found[name] = error.name
    return json.dumps(found)
