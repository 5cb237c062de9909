"""Rounds under the policy: what it is told, and that it can fail no request."""

from __future__ import annotations

from typing import Any

import pytest
from redraft_models.loading import ModelPair

from .conftest import MakePair, Serve
from .oracle import TIE, greedy, random_prompts

PROMPT = [5, 9, 17]


@pytest.fixture(scope="module")
def pair(make_pair: MakePair) -> ModelPair:
    return make_pair("random", max_model_len=512)


@pytest.fixture(scope="module")
def wanted(pair: ModelPair) -> list[tuple[list[int], list[int]]]:
    found = []
    for prompt in random_prompts(10, 61, seed=9):
        answer, gap = greedy(pair.target.module, prompt, 60)
        if gap >= TIE:
            found.append((prompt, answer))
    assert len(found) >= 6
    return found


@pytest.mark.parametrize("proposers", [("draft", "ngram", "prediction"), ("draft",), ("ngram",), ()])
def test_answers_are_the_targets_own(
    pair: ModelPair,
    wanted: list[tuple[list[int], list[int]]],
    run_engine: Serve,
    proposers: tuple[str, ...],
) -> None:
    """Automatic, with every mix of proposers, predictions right and wrong among them, rows side by side."""
    served = run_engine(pair, proposers=proposers, max_num_seqs=4)
    asked = []
    for turn, (prompt, answer) in enumerate(wanted * 2):
        prediction = (answer, answer[10:], [1, 2, 3] * 9, ())[turn % 4]
        asked.append(served.ask(prompt, 60, ignore_eos=True, prediction_ids=tuple(prediction)))
    assert [one.wait().ids for one in asked] == [answer for _, answer in wanted * 2]


def test_a_right_prediction_is_taken(
    pair: ModelPair, wanted: list[tuple[list[int], list[int]]], run_engine: Serve
) -> None:
    prompt, answer = wanted[0]
    served = run_engine(pair, proposers=("prediction",), num_speculative_tokens=8)
    told = served.ask(prompt, 60, ignore_eos=True, prediction_ids=tuple(answer)).wait().statistics
    assert (told.prediction_accepted, told.prediction_rejected) == (60, 0)
    assert told.proposers["prediction"] >= 6
    assert told.rounds < 12
    (draft,) = served.engine.statistics().drafts
    assert (draft.rounds, draft.tested) == (0, 0), "what a client predicted is no draft's"
    assert set(served.samples[0].outcome) == {"plain"}


@pytest.mark.parametrize("broken", ["plan", "observe", "keep_drafting", "survival"])
def test_a_policy_that_breaks_fails_nobody(
    pair: ModelPair,
    wanted: list[tuple[list[int], list[int]]],
    run_engine: Serve,
    monkeypatch: pytest.MonkeyPatch,
    broken: str,
) -> None:
    served = run_engine(pair, max_num_seqs=2)

    def fault(*_: Any) -> Any:
        raise ZeroDivisionError("no rounds")

    monkeypatch.setattr(served.engine.policy, broken, fault)
    prompt, answer = wanted[0]
    asked = [served.ask(prompt, 60, ignore_eos=True) for _ in range(3)]
    assert [one.wait().ids for one in asked] == [answer] * 3


def test_a_domains_setting_changes_while_it_serves(pair: ModelPair, run_engine: Serve) -> None:
    served = run_engine(pair, num_speculative_tokens=3, max_num_seqs=2)
    served.engine.configure("law", 0)
    off = served.ask(PROMPT, 24, ignore_eos=True, domain="law").wait()
    on = served.ask(PROMPT, 24, ignore_eos=True).wait()
    asked = served.ask(PROMPT, 24, ignore_eos=True, domain="law", num_speculative_tokens=2).wait()
    assert (off.statistics.proposed, off.ids) == (0, on.ids)
    assert on.statistics.proposed > 0
    assert 0 < asked.statistics.proposed <= 2 * asked.statistics.rounds
    served.engine.configure("law", None)
    assert served.ask(PROMPT, 24, ignore_eos=True, domain="law").wait().statistics.proposed > 0
    assert {one.domain for one in served.engine.statistics().drafts} == {"law", "default"}


def test_a_row_that_fell_behind_speculates_again(pair: ModelPair, run_engine: Serve) -> None:
    """Switched on in the middle of an answer, chunk by chunk between rounds."""
    served = run_engine(pair, num_speculative_tokens=0, prefill_chunk=16, prefix_cache_mb=0)
    answer = served.ask(PROMPT * 20, 400, ignore_eos=True)
    while len(answer.ids) < 60:
        pass
    served.engine.configure("default", 3)
    assert answer.wait().ids == greedy(pair.target.module, PROMPT * 20, 400)[0]
    assert answer.statistics.proposed > 0
    assert served.engine.statistics().drafts[0].tested > 0


def test_every_round_is_told_to_the_policy(
    pair: ModelPair, run_engine: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = run_engine(pair, max_num_seqs=2)
    told: list[Any] = []
    observe = served.engine.policy.observe
    monkeypatch.setattr(served.engine.policy, "observe", lambda *args: (told.append(args), observe(*args))[1])
    answers = [served.ask(PROMPT, 40, ignore_eos=True).wait() for _ in range(2)]
    assert len(told) == sum(answer.statistics.rounds for answer in answers)
    for views, plan, times, outcomes in told:
        assert len(views) == len(plan.rows) == len(outcomes) == times.rows == 1
        assert outcomes[0].accepted <= outcomes[0].tested <= outcomes[0].proposed <= plan.rows[0].k
        assert times.width == 1 + outcomes[0].proposed
        assert times.verify > 0
        assert times.rest > 0
        assert (times.draft_steps > 0) == (plan.rows[0].proposer == "draft" and plan.rows[0].k > 0)
    assert sum(outcomes[0].emitted for *_, outcomes in told) >= 80
