"""Numbers of an adaptation, by hand."""

import math

import numpy as np
import pytest

from hornbook.errors import UsageError
from hornbook.run.diagnose.domain_transfer import Adaptation, Chain, Chains, SeedMean, Stage, domain_losses
from hornbook.studio.frontier import Dot, frontier


def test_an_interval_is_students() -> None:
    found = SeedMean.of([1.0, 2.0, 3.0])
    assert (found.mean, found.half) == (2.0, pytest.approx(4.303 / math.sqrt(3)))
    assert SeedMean.of([1.5]) == SeedMean(1.5, None)
    assert SeedMean.of([0.0, 1.0] * 10).half == pytest.approx(
        2.093 * math.sqrt(20 * 0.25 / 19) / math.sqrt(20), rel=6e-3
    )


def test_losses_of_a_domain_are_per_token() -> None:
    sources = {
        "a": {"loss": 2.0, "tokens": 30},
        "b": {"loss": 4.0, "tokens": 10},
        "replay-a": {"loss": 7.0, "tokens": 5},
    }
    assert domain_losses(sources) == {"domain": 2.5, "general": 7.0}
    del sources["replay-a"]
    with pytest.raises(UsageError, match="the general data have no validation text"):
        domain_losses(sources)


def test_forgetting_and_transfer() -> None:
    before = {"domain": [5.0, 5.0], "general": [3.0, 3.0]}
    bits = {"law@later": [(2.0, 1.5), (2.0, 1.7)], "replay-web": [(1.0, 1.1), (1.0, 1.1)]}
    stage = Stage(0.05, {"domain": [4.0, 4.2], "general": [3.1, 3.3]}, before, bits)
    found = Adaptation([stage], vocab=1000).as_dict()
    assert found["forward_transfer"] == pytest.approx(math.log(1000) - 5)
    (only,) = found["stages"]
    assert only["adaptation"]["mean"] == pytest.approx(0.9)
    assert only["forgetting"]["mean"] == pytest.approx(0.2) == -only["backward_transfer"]["mean"]
    assert only["forgetting"]["half"] == pytest.approx(12.706 * 0.1)
    assert only["bits_per_byte"]["law@later"]["change"] == {"mean": pytest.approx(-0.4), "half": pytest.approx(1.2706)}
    text = Adaptation([stage], vocab=1000).markdown()
    assert "| law@later | 2.0000 | 1.6000 +- 1.2706 (-0.4000 +- 1.2706) |" in text
    assert "| replay-web | 1.0000 | 1.1000 +- 0.0000 (+0.1000 +- 0.0000) |" in text
    assert "| 5 % replay | 4.1000 +- 1.2706 | 3.2000 +- 1.2706 | 0.9000 +- 1.2706 | 0.2000 +- 1.2706 |" in text


def test_a_chain_of_domains_has_transfer_in_both_directions() -> None:
    one = [[3.0, 6.0, 5.0, 4.0], [3.2, 4.0, 4.8, 4.1], [3.3, 4.5, 2.0, 3.7], [3.5, 4.3, 2.2, 1.0]]
    chain = Chain(0.05, ["web", "law", "medicine", "code"], np.array([one, np.add(one, 0.5)]))
    found = chain.as_dict()
    assert found["matrix"] == (np.array(one) + 0.25).tolist()
    means = {name: value["mean"] for name, value in found["adaptation"].items()}
    assert means == pytest.approx({"law": 2.0, "medicine": 2.8, "code": 2.7})
    means = {name: value["mean"] for name, value in found["forgetting"].items()}
    assert means == pytest.approx({"web": 0.5, "law": 0.3, "medicine": 0.2})
    assert found["backward_transfer"]["mean"] == pytest.approx(-(0.3 + 0.2) / 2)
    assert found["forward_transfer"]["mean"] == pytest.approx(((5.0 - 4.8) + (4.0 - 3.7)) / 2)
    assert found["forward_transfer"]["half"] == pytest.approx(0, abs=1e-12)
    text = Chains([chain]).markdown()
    assert "| medicine | 3.5500 +- 3.1765 | 4.7500 +- 3.1765 | 2.2500 +- 3.1765 | 3.9500 +- 3.1765 |" in text
    assert "| forgetting | 0.5000 +- 0.0000 | 0.3000 +- 0.0000 | 0.2000 +- 0.0000 |  |" in text


def test_the_frontier_has_a_dot_for_each_setting_inside_its_frame() -> None:
    picture = frontier(
        "title", "x", "y", [Dot("before", 3.0, 5.0), Dot("0 %", 4.0, 2.0, 0.1, 0.1), Dot("5 %", 3.1, 2.1)]
    )
    assert picture.count("<circle") == 3
    for name in ("before", "0 %", "5 %"):
        assert f">{name}</text>" in picture
    assert 'cx="nan"' not in picture
