"""The harness of distributed tests: results come back to the bit, failures with reasons, and nothing is left behind."""

import os
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.processes import ServerError, state_of, wait_until
from tests.ranks import RankError, RankServer

CASES = "tests/parallel/cases.py"


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
    with pytest.raises(
        RankError, match=r"on 3 ranks\nrank 1 failed:\n(.*\n)+.*in fail\n(.*\n)+.*the rank has"
    ) as caught:
        run_ranks(f"{CASES}:fail", 3, 1, "raise", grace=60.0)
    assert "rank 0 failed" in str(caught.value)
    with pytest.raises(RankError, match=r"on 2 ranks\nrank 1 died of SIGKILL"):
        run_ranks(f"{CASES}:fail", 2, 1, "die")
    assert run_ranks(f"{CASES}:say", 1)[0]["rank"] == 0


def test_the_limit_kills_all_and_shows_where_they_were(run_ranks: RankServer) -> None:
    with pytest.raises(RankError, match=r"rank 0 was still running .*\n(.*\n)*.*in barrier") as caught:
        run_ranks(f"{CASES}:fail", 2, 1, "hang", limit=4.0)
    assert "rank 1 was still running" in str(caught.value)
    assert "in fail" in str(caught.value)


def test_ranks_die_with_the_server(tmp_path: Path) -> None:
    server = RankServer()
    try:
        with pytest.raises(ServerError, match="said nothing"):
            server(f"{CASES}:orphan", 2, str(tmp_path))
    finally:
        server.close()
    pids = [int((tmp_path / f"{rank}").read_text()) for rank in range(2)]
    wait_until(lambda: all(state_of(pid) in ("", "Z") for pid in pids))
