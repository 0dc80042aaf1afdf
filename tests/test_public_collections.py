"""The benchmark of public collections counts what is read, refused, misread, and what crashes."""

import zipfile
from pathlib import Path

from benchmarks.reliability import public


def test_a_charset_that_is_not_the_named_one_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "encoding").mkdir()
    cases = b"".join(
        b"#data\n<meta charset=koi8-r>\n#encoding\n%s\n\n" % name for name in (b"KOI8-R", b"windows-1252", b"utf-8")
    )
    (tmp_path / "encoding" / "a.dat").write_bytes(cases)
    tally = public.measure(public.html5lib(tmp_path))
    assert tally.verdicts == {public.READ: 1, public.WRONG_TEXT: 2}
    assert tally.notable == ["wrong text: a.dat 1, windows-1252", "wrong text: a.dat 2, utf-8"]


def test_json_is_judged_by_the_names_of_the_suite(tmp_path: Path) -> None:
    (tmp_path / "test_parsing").mkdir()
    values = {"y_a": b"1", "y_b": b"1,", "n_a": b"1", "n_b": b"[", "i_a": b"1", "i_b": b"\xff"}
    for name, value in values.items():
        (tmp_path / "test_parsing" / f"{name}.json").write_bytes(value)
    tally = public.measure(public.json_suite(tmp_path))
    assert tally.verdicts == {public.READ: 2, public.RIGHTLY: 2, public.WRONGLY: 1, public.WRONG_TEXT: 1}


def test_members_of_zips_are_compared_with_the_unpacked_files(tmp_path: Path) -> None:
    for name, text in (("same", "a"), ("other", "b")):
        home = tmp_path / "test" / "success" / name
        home.mkdir(parents=True)
        (home / "a.txt").write_text("a")
        with zipfile.ZipFile(home.with_suffix(".zip"), "w") as archive:
            archive.writestr("a.txt", text)
    (tmp_path / "test" / "success" / "damaged.zip").write_bytes(b"PK")
    tally = public.measure(public.yauzl(tmp_path))
    assert tally.verdicts == {public.READ: 1, public.WRONG_TEXT: 1, public.WRONGLY: 1}


def test_what_is_raised_is_a_crash() -> None:
    tally = public.measure(iter([("a", lambda: 1 // 0, lambda _: public.READ)]))
    assert tally.verdicts == {public.CRASHED: 1}
    assert tally.notable[0].startswith("crashed: a: ZeroDivisionError")
