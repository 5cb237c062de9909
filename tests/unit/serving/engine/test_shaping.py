"""Penalties and bias reach every drafted position: hand-worked greedy words on the table pair, for each K."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import MakePair, Serve

W0, W1 = 3, 4


@pytest.mark.parametrize("k", [0, 1, 4, 8])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"frequency_penalty": 0.5}, "w0 w0 w1 w0 w2 w1 w0 w3"),
        ({"presence_penalty": 1.0}, "w0 w1 w0 w0 w0 w0 w0 w0"),
        ({"logit_bias": {W0: -100.0}}, "w1 w1 w1 w1 w1 w1 w1 w1"),
        ({"logit_bias": {W1: 5.0}}, "w1 w1 w1 w1 w1 w1 w1 w1"),
        ({"repetition_penalty": 3.0}, "w1 w2 w0 w0 w0 w0 w0 w0"),
    ],
)
def test_greedy_words(
    make_pair: MakePair, run_engine: Serve, k: int, settings: dict[str, Any], words: str
) -> None:
    """The logits are log-probabilities: -0.69 -1.61 -1.90 -2.30 -3.00. A repetition penalty of 3 makes w0
    -2.08 at once (it stands in the prompt), then w1 -4.83, then w2 -5.69.
    """
    served = run_engine(make_pair("table"), num_speculative_tokens=k)
    assert served.ask("w0", 8, **settings).wait().text == words
    assert not served.samples[0].sampling.reproducible


def test_a_penalised_law_is_kept_when_sampling(make_pair: MakePair, run_engine: Serve) -> None:
    """A bias that leaves two words: neither draft nor target may say another one, and both come."""
    served = run_engine(make_pair("table"), num_speculative_tokens=4)
    barred = {5: -1000.0, 6: -1000.0, 7: -1000.0, 0: -1000.0, 1: -1000.0, 2: -1000.0}
    answer = served.ask("w0", 400, temperature=1.0, seed=1, logit_bias=barred).wait()
    share = answer.ids.count(W0) / 400
    # 0.5 / 0.7 = 0.714; four standard deviations of 400 draws are 0.09 (false alarm 6e-5).
    assert set(answer.ids) == {W0, W1}
    assert share == pytest.approx(0.714, abs=0.09)
    assert answer.statistics.accepted > 0
