"""Public pages: the explorers as static files, whose answers the visitor's own browser computes (Pyodide).

`make pages` writes `build/pages`, for any server of static files. Page and Python are those of `hornbook watch`;
this folder adds who answers: `public.js` hands questions to `worker.js`, and that to `replies.py`, in the browser.
"""

import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import urllib.error
import urllib.request
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hornbook.studio.explore.explorer import explorer_names, load_explorer
from hornbook.studio.explore.page_answer import describe, list_explorers

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
PACKAGE, CONSTRAINTS = ROOT / "src" / "hornbook", ROOT / "constraints.txt"
VERSION = "314.0.7"
SHA256 = "66b7949e5a0cba2250b586d7e368bf12fb482800748d182c4618254b685ffaa0"
"""Of the archive in the npm registry."""
DISTRIBUTION = f"https://cdn.jsdelivr.net/pyodide/v{VERSION}/full/"
"""Where Pyodide publishes the wheels of `FROM_PYODIDE`; pyodide-lock.json has their checksums."""
PARTS = ROOT / "build" / f"pyodide-{VERSION}"
"""What is downloaded, once."""
RUNTIME = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
NOTICES = ("README.md", "package.json")
"""Pyodide's licence (MPL-2.0) and the address of its source."""
PLATFORM = ["--platform=pyemscripten_2026_0_wasm32", "--python-version=314", "--implementation=cp", "--abi=cp314"]
FROM_PYPI = (
    *("annotated-types", "jaxtyping", "pydantic", "pydantic-core", "tomli-w", "typing-extensions"),
    *("typing-inspection", "xxhash"),
)
FROM_PYODIDE = ("numpy",)
NEEDS = (
    "This explorer needs `{module}`, which these pages do not have. On a machine with hornbook, "
    "`hornbook explore {name} --browser` shows it."
)
NEEDS_TORCH = re.compile(r"^(from|import) torch\b", re.MULTILINE)


def download(parts: Path = PARTS) -> None:
    """Fetch Pyodide and the wheels, unless they are there. A wheel that cannot be had is named and left out."""
    if not (parts / RUNTIME[0]).exists():
        parts.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "pack", "--silent", f"pyodide@{VERSION}"], cwd=parts, check=True, stdout=sys.stderr)
        archive = parts / f"pyodide-{VERSION}.tgz"
        _compare(archive.read_bytes(), SHA256, archive.name)
        with tarfile.open(archive) as packed:
            for name in (*NOTICES, *reversed(RUNTIME)):
                (parts / name).write_bytes(packed.extractfile(f"package/{name}").read())
        archive.unlink()
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *PLATFORM]
    versions = CONSTRAINTS.read_text()
    if not (parts / CONSTRAINTS.name).exists() or (parts / CONSTRAINTS.name).read_text() != versions:
        for wheel in parts.glob("*.whl"):
            wheel.unlink()
        subprocess.run([*pip, "-c", str(CONSTRAINTS), *FROM_PYPI], cwd=parts, check=True)
        (parts / CONSTRAINTS.name).write_text(versions)
    known = json.loads((parts / "pyodide-lock.json").read_text())["packages"]
    for name in FROM_PYODIDE:
        wheel = parts / known[name]["file_name"]
        try:
            if not wheel.exists():
                with urllib.request.urlopen(DISTRIBUTION + wheel.name) as answer:
                    data = answer.read()
                _compare(data, known[name]["sha256"], wheel.name)
                wheel.write_bytes(data)
        except urllib.error.URLError as error:
            print(f"{DISTRIBUTION}{wheel.name}: {error.reason}; explorers that need {name} say so", file=sys.stderr)


def _compare(data: bytes, expected: str, name: str) -> None:
    found = hashlib.sha256(data).hexdigest()
    if found != expected:
        raise SystemExit(f"{name} has the checksum {found}, not {expected}: it is not the file that was reviewed")


def build(folder: Path, parts: Path = PARTS) -> None:
    """Write the pages from what was downloaded."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(PACKAGE / "studio" / "live" / "page", folder / "page")
    (folder / "page" / "index.html").unlink()
    (folder / "pyodide").mkdir()
    for name in (*RUNTIME, *NOTICES):
        shutil.copy(parts / name, folder / "pyodide")
    for name in ("public.js", "public.css", "worker.js"):
        shutil.copy(HERE / name, folder)
    (folder / "python.zip").write_bytes(python_archive(parts))
    words = ["node", str(HERE / "missing.mjs"), str(folder)]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    for path, value in _fixed_answers(json.loads(done.stdout)).items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(json.dumps(value))
    (folder / "index.html").write_text(_index(folder))


def _fixed_answers(missing: Mapping[str, str]) -> dict[str, Any]:
    """Path -> the JSON that no question changes; missing: explorer -> module that the browser lacks."""
    needs = {name: NEEDS.format(name=name, module=module) for name, module in missing.items()}
    listed = [{**each, "needs": needs.get(each["name"])} for each in list_explorers()]
    found: dict[str, Any] = {"api/explore.json": {"explorers": listed}}
    for name in explorer_names():
        about = describe(load_explorer(name))
        found[f"api/explore/{name}.json"] = {**about, "needs": needs.get(name), "loads": False, "measures": False}
    return found


def python_archive(parts: Path) -> bytes:
    """One archive of the wheels and of hornbook's modules and tables that do without torch."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for wheel in sorted(parts.glob("*.whl")):
            with zipfile.ZipFile(wheel) as source:
                for name in source.namelist():
                    if "/tests/" not in name:
                        archive.writestr(name, source.read(name))
        for path in sorted(PACKAGE.rglob("*")):
            is_ours = path.suffix in (".py", ".toml", ".txt", ".gz") and "page" not in path.parts
            if is_ours and not (path.suffix == ".py" and NEEDS_TORCH.search(path.read_text())):
                archive.writestr(str(path.relative_to(PACKAGE.parent)), path.read_bytes())
        archive.writestr("replies.py", (HERE / "replies.py").read_bytes())
    return packed.getvalue()


def _index(folder: Path) -> str:
    """The page of `hornbook watch`, with relative addresses, a policy, and a line on who computes."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    counted = ("pyodide/pyodide.asm.wasm", "pyodide/python_stdlib.zip", "python.zip")
    num_bytes = sum((folder / name).stat().st_size for name in counted)
    text = (PACKAGE / "studio" / "live" / "page" / "index.html").read_text()
    policy = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'"
    computed = f"Computed in your browser by hornbook's own code, version {version}."
    changes = {
        "<title>": f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<title>',
        '<script type="module"': '<link rel="stylesheet" href="public.css">\n<script type="module"',
        '"/page/main.js"': '"public.js"',
        '"/page/': '"page/',
        '<div id="root">': f'<p id="computed" data-bytes="{num_bytes}">{computed} <span role="status"></span></p>\n'
        '<div id="root">',
        "hornbook runs show RUN says": "hornbook explore says",
    }
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def main() -> None:
    """Download and build into the folder that is named, or build/pages."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "pages"
    download()
    build(folder)
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {num_bytes / 1e6:.1f} MB; look at it: python -m http.server -d {folder}")


if __name__ == "__main__":
    main()
