"""Tokens to the ranks of their experts and back: what one process computes, whoever holds the experts."""

from tests.ranks import RankServer

CASES = "tests/parallel/axes/expert/cases.py:"
LIMITS = {"float64": 1e-13, "float32": 2e-6, "bfloat16": 2e-2}
SERVED = [
    {"experts": 16, "tokens": [9, 5, 7, 11]},
    {"experts": 6, "tokens": [9, 0, 1, 11]},
    {"experts": 6, "tokens": [0, 0, 0, 0]},
    {"experts": 9, "tokens": [4, 9, 3, 6], "choose": "last"},
    {"experts": 7, "tokens": [9, 5, 0, 11], "choose": "few"},
    {"experts": 7, "tokens": [9, 5, 0, 11], "choose": "few", "gathers": True},
    {"experts": 6, "tokens": [9, 0, 1, 11], "dtype": "float32"},
    {"experts": 6, "tokens": [9, 5, 1, 11], "choose": "last", "dtype": "float32"},
    {"experts": 6, "tokens": [9, 5, 1, 11], "dtype": "float32", "activation": "gelu"},
    {"experts": 6, "tokens": [9, 0, 1, 11], "choose": "few", "dtype": "bfloat16"},
]


def test_what_comes_back_is_what_one_process_computes(run_ranks: RankServer) -> None:
    """Loads of any size, experts that do not divide, ranks and experts without a token, choices that find no room."""
    for rank in run_ranks(CASES + "serve", 4, SERVED):
        for case, differences in zip(SERVED, rank, strict=True):
            assert max(differences.values()) < LIMITS[str(case.get("dtype", "float64"))], (case, differences)


def test_rows_come_back_to_their_places(run_ranks: RankServer) -> None:
    for by_all_to_all, by_gathering, sent in run_ranks(CASES + "carry", 3):
        assert by_all_to_all == by_gathering == sent


def test_ranks_in_different_layers_are_told_apart(run_ranks: RankServer) -> None:
    assert run_ranks(CASES + "out_of_step", 2) == ["ranks are in different layers of experts: [0, 1]"] * 2


def test_a_back_end_without_all_to_all_gathers(run_ranks: RankServer) -> None:
    assert run_ranks(CASES + "without_all_to_all", 2) == [True, True]


def test_a_dry_run_gives_every_rank_as_many_tokens(run_ranks: RankServer) -> None:
    """On tensors without values: what is computed has the shapes that training has."""
    width, hidden, active, tokens = 8, 12, 3, 10
    matrices = [[2, hidden, width], [2, hidden, width], [2, width, hidden]]
    expected = [[tokens, width], [tokens, width], [tokens, active], *matrices]
    assert run_ranks(CASES + "foresee", 1, 4, 6, tokens) == [expected]
