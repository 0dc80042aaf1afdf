"""The usual public corpora: where they are, how large, under which licence, and which settings read them.

Sizes and licences are what `cites` says: read there, not measured, and corpora grow. docs/sources.md shows the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hornbook.errors import UsageError


@dataclass(frozen=True, slots=True)
class Corpus:
    """One corpus. In `urls`, `settings/show` and `checksums` a name in braces is one of `variables`."""

    name: str
    what: str
    size: str
    licence: str
    cites: str
    """Where size and licence stand."""
    urls: tuple[str, ...] = ()
    """Files, or patterns with `*` for addresses that can be listed (hf://, s3://, file://)."""
    listing: str = ""
    """A file that names one file a line, relative to `base`; `.gz` is unpacked."""
    base: str = ""
    checksums: str = ""
    """A file of lines `digest name`."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Name -> default."""
    source: Mapping[str, str] = field(default_factory=dict)
    """Settings of `text.sources.NAME` besides `paths`."""
    options: Mapping[str, bool] = field(default_factory=dict)
    """For the file system: s3 that the downloader pays for."""
    note: str = ""
    """What must be known before or done after."""


_ALL = (
    Corpus(
        name="common-crawl",
        what="web pages as text (WET), or with kind=warc as they were sent",
        size="one crawl: 2.64 billion pages, 394 TiB unpacked (December 2024); tens of thousands of files",
        licence="Common Crawl's terms of use; every page keeps its own",
        cites="https://commoncrawl.org/blog/december-2024-crawl-archive-now-available",
        listing="https://data.commoncrawl.org/crawl-data/{crawl}/{kind}.paths.gz",
        base="https://data.commoncrawl.org/",
        variables={"crawl": "CC-MAIN-2024-51", "kind": "wet"},
        note="kind=warc needs the extra web",
    ),
    Corpus(
        name="fineweb",
        what="filtered and deduplicated English web pages of 96 crawls; here a sample of ten billion tokens",
        size="15 trillion tokens, 44 TB on disk in all",
        licence="ODC-By-1.0",
        cites="https://huggingface.co/datasets/HuggingFaceFW/fineweb, https://huggingface.co/spaces/HuggingFaceFW/blogpost-fineweb-v1",
        urls=("hf://datasets/HuggingFaceFW/fineweb/{part}/*.parquet",),
        variables={"part": "sample/10BT"},
        source={"licence": "ODC-By-1.0"},
    ),
    Corpus(
        name="openwebtext",
        what="pages that Reddit links to, the open replica of WebText",
        size="38 GB of text, 8,013,769 documents",
        licence="CC0 for the compilation, by its authors; every page keeps its own",
        cites="https://skylion007.github.io/OpenWebTextCorpus",
        urls=("hf://datasets/Skylion007/openwebtext/**/*.parquet",),
    ),
    Corpus(
        name="wikipedia",
        what="all articles of one language",
        size="English: 24 GB packed (October 2024), 7.0 million articles (July 2025)",
        licence="CC-BY-SA-4.0",
        cites="https://en.wikipedia.org/wiki/Wikipedia:Size_of_Wikipedia",
        urls=("https://dumps.wikimedia.org/{language}wiki/{date}/{language}wiki-{date}-pages-articles.xml.bz2",),
        checksums="https://dumps.wikimedia.org/{language}wiki/{date}/{language}wiki-{date}-sha1sums.txt",
        variables={"language": "en", "date": "latest"},
        source={"licence": "CC-BY-SA-4.0"},
    ),
    Corpus(
        name="gutenberg",
        what="books as plain text",
        size="one file of the order of 10 GB (unsure)",
        licence="public domain in the USA, a few books excepted; see each book's header",
        cites="https://www.gutenberg.org/policy/robot_access.html",
        urls=("https://www.gutenberg.org/cache/epub/feeds/txt-files.tar.zip",),
        source={"layout": "gutenberg", "licence": "public domain in the USA"},
        note="a tar in a zip: unzip it, then name the .tar",
    ),
    Corpus(
        name="arxiv",
        what="LaTeX sources of papers, one month",
        size="all months with their PDFs: 5.6 TB (March 2023)",
        licence="each paper's own, mostly arXiv's, which allows no redistribution",
        cites="https://info.arxiv.org/help/bulk_data_s3.html",
        urls=("s3://arxiv/src/arXiv_src_{month}_*.tar",),
        variables={"month": "2401"},
        source={"layout": "arxiv"},
        options={"requester_pays": True},
        note="needs the extra cloud and an account with Amazon, which the transfer is charged to",
    ),
    Corpus(
        name="pubmed",
        what="articles of PubMed Central under open licences, as text",
        size="of the order of 150 GB (unsure)",
        licence="each article's own: CC-BY, CC-BY-SA or CC0",
        cites="https://huggingface.co/datasets/common-pile/pubmed_filtered, https://arxiv.org/abs/2506.05209",
        urls=("hf://datasets/common-pile/pubmed_filtered/**/*.json*.gz",),
        source={"licence_field": "metadata.license", "url_field": "metadata.url", "date_field": "created"},
        note="PubMed Central itself gives out single articles since August 2026: s3://pmc-oa-opendata",
    ),
    Corpus(
        name="the-stack",
        what="source code of GitHub under permissive licences, near duplicates removed, one language",
        size="1.5 TB (version 1.0; 3.1 TB with near duplicates)",
        licence="each file's own",
        cites="https://arxiv.org/abs/2211.15533, https://huggingface.co/datasets/bigcode/the-stack-dedup",
        urls=("hf://datasets/bigcode/the-stack-dedup/data/{language}/*.parquet",),
        variables={"language": "python"},
        source={"text_field": "content", "id_field": "hexsha", "licence_field": "max_stars_repo_licenses"},
        note="its terms must be accepted on its page first; huggingface_hub then needs your token (HF_TOKEN)",
    ),
    Corpus(
        name="stackexchange",
        what="questions and answers of one site",
        size="all sites: tens of GB packed (unsure)",
        licence="CC-BY-SA, which version each post says",
        cites="https://archive.org/details/stackexchange",
        urls=("https://archive.org/download/stackexchange/{site}.7z",),
        variables={"site": "math.stackexchange.com"},
        note="a 7z archive: unpack it with 7z or bsdtar into a folder named after the site, then name its Posts.xml",
    ),
)
CORPORA: dict[str, Corpus] = {corpus.name: corpus for corpus in _ALL}


def corpus_of(name: str) -> Corpus:
    """A corpus of the table, or one of a single address. Raises UsageError."""
    if "://" in name:
        return Corpus(name=_stem(name), what=name, size="", licence="", cites="", urls=(name,))
    if name not in CORPORA:
        raise UsageError(f"there is no corpus {name!r}: name one of {', '.join(CORPORA)}, or an address")
    return CORPORA[name]


def _stem(url: str) -> str:
    stem = url.rstrip("/").rpartition("/")[2].partition(".")[0].partition("*")[0]
    return "".join(char if char.isalnum() or char in "-_" else "-" for char in stem).strip("-") or "fetched"


def filled(corpus: Corpus, given: Mapping[str, str]) -> dict[str, str]:
    """The variables of a corpus, those given in place of the defaults. Raises UsageError."""
    for name, value in given.items():
        if name not in corpus.variables:
            known = ", ".join(corpus.variables) or "none"
            raise UsageError(f"{corpus.name} has no variable {name!r}: it has {known}")
        if not value or any(part in ("", ".", "..") for part in value.split("/")) or set(value) & set("?#*%\\ "):
            raise UsageError(f"{name}={value}: write a name as it stands in the address")
    return {**corpus.variables, **given}


def source_section(corpus: Corpus, paths: list[str]) -> dict[str, object]:
    """What a recipe says under `text.sources.NAME` to read what was fetched."""
    return {"paths": paths, **corpus.source}
