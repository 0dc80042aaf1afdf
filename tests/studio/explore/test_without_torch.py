"""Explorers ask nothing of torch: all but two answer with the modules that the public pages have in the browser."""

import json
import subprocess
import sys

from scripts.public_pages.build import FROM_PYODIDE, FROM_PYPI, ROOT

PROGRAM = """
import sys
from importlib.metadata import packages_distributions

class Refusal:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in refused:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])

refused = {"resource", *packages_distributions()} - {"hornbook", *sys.argv[1].split()}
sys.meta_path.insert(0, Refusal())
from scripts.public_pages.replies import missing_modules
print(missing_modules())
"""
"""Refuses what is installed and not named, and one module that the browser's Python lacks."""
ELSEWHERE = {"cleaning": "pyarrow", "tokenizers": "tokenizers"}


def test_explorers_answer_with_the_modules_of_the_public_pages() -> None:
    modules = " ".join(each.replace("-", "_") for each in (*FROM_PYPI, *FROM_PYODIDE))
    words = [sys.executable, "-c", PROGRAM, modules]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert not done.returncode, done.stderr
    assert json.loads(done.stdout) == ELSEWHERE
