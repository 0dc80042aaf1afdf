"""Each rank's part of a sum is that of the library's all-reduce; bfloat16 is rounded once."""

import pytest

from tests.ranks import RankServer


@pytest.mark.parametrize("ranks", [2, 3])
def test_parts_are_those_of_the_sum(run_ranks: RankServer, ranks: int) -> None:
    for *single, half in run_ranks("tests/parallel/traffic/communicating.py:scattered", ranks, [1, 7, 1001]):
        assert max(single) < 1e-6
        assert 1e-6 < half <= 2**-8
