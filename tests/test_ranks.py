"""The harness of distributed tests: results come back to the bit, failures with reasons, and nothing is left behind."""

import os
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.ranks import RankError, RankServer

CASES = "tests/parallel/cases.py"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def await_end(pids: list[int], seconds: float = 5.0) -> list[int]:
    """The processes that are still there after so long."""
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def test_every_rank_answers_in_its_place_with_every_bit(run_ranks: RankServer, tmp_path: Path) -> None:
    words = [0.1 + 0.2, 5e-324, -0.0, float("inf"), "x", None, {"a": [1]}]
    results = run_ranks(f"{CASES}:say", 3, *words)
    assert [result["rank"] for result in results] == [0, 1, 2]
    assert [repr(result["words"]) for result in results] == [repr(words)] * 3
    assert len({result["pid"] for result in results} | {os.getpid()}) == 4
    assert {result["threads"] for result in results} == {1}
    run_ranks(f"{CASES}:save_ranks", 2, str(tmp_path))
    assert [int(load_file(tmp_path / f"{rank}.safetensors")["rank"]) for rank in range(2)] == [0, 1]


def test_the_rank_that_failed_is_named_first_with_its_traceback(run_ranks: RankServer) -> None:
    begun = time.monotonic()
    with pytest.raises(
        RankError, match=r"on 3 ranks\nrank 1 failed:\n(.*\n)+.*in fail\n(.*\n)+.*the rank has"
    ) as caught:
        run_ranks(f"{CASES}:fail", 3, 1, "raise")
    assert "rank 0 failed" in str(caught.value)
    with pytest.raises(RankError, match=r"on 2 ranks\nrank 1 died of SIGKILL"):
        run_ranks(f"{CASES}:fail", 2, 1, "die")
    assert time.monotonic() - begun < 15
    assert run_ranks(f"{CASES}:say", 1)[0]["rank"] == 0


def test_the_limit_kills_all_and_shows_where_they_were(run_ranks: RankServer) -> None:
    with pytest.raises(RankError, match=r"rank 0 was still running .*\n(.*\n)*.*in barrier") as caught:
        run_ranks(f"{CASES}:fail", 2, 1, "hang", limit=1.5)
    assert "rank 1 was still running" in str(caught.value)
    assert "in fail" in str(caught.value)


def test_ranks_die_with_the_server(tmp_path: Path) -> None:
    server = RankServer()
    try:
        with pytest.raises(RankError, match="said nothing"):
            server(f"{CASES}:orphan", 2, str(tmp_path))
    finally:
        server.close()
    pids = [int((tmp_path / f"{rank}").read_text()) for rank in range(2)]
    assert await_end(pids) == []
