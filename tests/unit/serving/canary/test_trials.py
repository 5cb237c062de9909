"""One worker's trials, and two workers' evidence on a real Redis."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from redraft_ops.valkey import free_port
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import connect
from redraft_queue.trials import TrialStore
from redraft_serving.canary.cards import trial_tags
from redraft_serving.canary.settings import CanarySettings
from redraft_serving.canary.trial import Trial
from redraft_serving.canary.trials import Trials
from redraft_serving.engine.interface import CHALLENGER, CHAMPION, PREVIOUS, Arm, RequestStatistics

SETTINGS = CanarySettings(share=0.5, min_requests=10, min_tested_tokens=10)
CANARY = Trial("support", "canary", champion=3, other=7)
WATCH = Trial("support", "watch", champion=7, other="base", window=2)
QUEUE = QueueSettings(socket_timeout_seconds=0.5)


def ended(
    version: int | str | None, tested: int = 80, accepted: int = 40, **fields: object
) -> RequestStatistics:
    values: dict[str, object] = {
        "draft_tested": tested,
        "draft_accepted": accepted,
        "emitted": 100,
        "decode_seconds": 0.0,
        "draft_versions": () if version is None else ((version, 9),),
    }
    return RequestStatistics(**{**values, **fields})  # type: ignore[arg-type]


@pytest.fixture
def trials(redis_url: str) -> Callable[[], Trials]:
    return lambda: Trials(SETTINGS, TrialStore(connect(redis_url, QUEUE)))


def requests(trials: Trials, arm: Arm = CHAMPION) -> int:
    card = trials.card("support")
    assert card is not None
    return int(card["arms"][arm]["requests"])


def test_names_of_trials() -> None:
    assert (CANARY.id, CANARY.arm) == ("canary-7-3", CHALLENGER)
    assert (WATCH.id, WATCH.arm) == ("watch-7-base-2", PREVIOUS)
    assert WATCH.version_of(CHAMPION) == 7
    assert WATCH.version_of(CHALLENGER) is None


def test_requests_are_the_champions_unless_a_trial_runs() -> None:
    trials = Trials(SETTINGS)
    names = [f"request-{i}" for i in range(200)]
    assert {trials.arm_of("support", name) for name in names} == {CHAMPION}
    trials.begin(CANARY)
    arms = [trials.arm_of("support", name) for name in names]
    assert 60 < arms.count(CHALLENGER) < 140
    assert arms == [trials.arm_of("support", name) for name in names], "a retry stays on its arm"
    assert {trials.arm_of("faq", name) for name in names} == {CHAMPION}
    other = Trials(SETTINGS)
    other.begin(CANARY)
    assert arms == [other.arm_of("support", name) for name in names], "workers agree"
    trials.end("support")
    assert {trials.arm_of("support", name) for name in names} == {CHAMPION}
    assert trials.card("support") is None


def test_all_choices_of_a_request_are_one_cluster() -> None:
    trials = Trials(SETTINGS)
    trials.begin(CANARY)
    trials.finished("support", CHAMPION, [ended(3), ended(3, 20, 20)])
    card = trials.card("support")
    assert card is not None
    assert card["arms"]["champion"] == {
        "version": 3,
        "requests": 1,
        "tested": 100,
        "accepted": 60,
        "emitted": 200,
        "acceptance_rate": 0.6,
        "seconds_per_token": 0.0,
    }
    assert card["arms"]["challenger"]["acceptance_rate"] is None
    assert (card["version"], card["against"], card["outcome"]) == (7, 3, "continue")


@pytest.mark.parametrize(
    ("arm", "statistics"),
    [
        (CHAMPION, []),
        (CHAMPION, [ended(2)]),
        (CHALLENGER, [ended(3)]),
        (CHAMPION, [ended(3, draft_versions=((2, 4), (3, 5)))]),
        (CHAMPION, [ended(3), ended(7)]),
        (CHAMPION, [ended(3, emitted=0)]),
        (CHAMPION, [ended(3, decode_seconds=60.0)]),
        (PREVIOUS, [ended(3)]),
    ],
    ids=["nothing", "an older version", "arm not loaded", "swapped", "two", "no token", "before", "no arm"],
)
def test_what_says_nothing_about_the_two_versions_is_left_out(
    arm: Arm, statistics: list[RequestStatistics]
) -> None:
    trials = Trials(SETTINGS)
    trials.finished("support", arm, statistics)
    trials.begin(CANARY)
    trials.finished("support", arm, statistics)
    assert requests(trials) == requests(trials, CHALLENGER) == 0


def test_plain_rounds_without_a_version_count_for_their_arm() -> None:
    trials = Trials(SETTINGS)
    trials.begin(CANARY)
    trials.finished("support", CHALLENGER, [ended(None, 0, 0)])
    assert requests(trials, CHALLENGER) == 1


def test_evidence_is_the_total_over_workers_dead_ones_too(trials: Callable[[], Trials]) -> None:
    first, second = trials(), trials()
    for worker in (first, second):
        worker.begin(CANARY)
        for _ in range(20):
            worker.finished("support", CHAMPION, [ended(3)])
            worker.finished("support", CHALLENGER, [ended(7, 80, 4)])
        assert worker.flush()
        assert worker.flush(), "writing twice adds nothing"
    del first
    restarted = trials()
    restarted.begin(CANARY)
    restarted.finished("support", CHAMPION, [ended(3)])
    restarted.flush()
    verdict, sums = restarted.judge(CANARY)
    assert (sums[CHAMPION].requests, sums[CHALLENGER].requests) == (41, 40)
    assert verdict.outcome == "reject"
    assert requests(restarted, CHALLENGER) == 40
    tags = trial_tags(CANARY, sums, verdict)
    assert tags["canary_requests"] == 40
    assert tags["canary_acceptance_rate"] == 0.05
    assert tags["canary_against_acceptance_rate"] == 0.5
    assert float(str(tags["canary_acceptance_difference_high"])) < 0


def test_a_trial_that_is_taken_up_again_adds_to_what_it_had(trials: Callable[[], Trials]) -> None:
    """A watch that makes room for a canary and comes back: its window goes on."""
    worker = trials()
    for trial, version in ((WATCH, 7), (CANARY, 3), (WATCH, 7)):
        worker.begin(trial)
        worker.begin(trial)
        worker.finished("support", CHAMPION, [ended(version)])
    worker.flush()
    assert worker.judge(WATCH)[1][CHAMPION].requests == 2
    assert worker.judge(CANARY)[1][CHAMPION].requests == 1


def test_redis_emptied_gets_the_evidence_of_the_living_again(
    trials: Callable[[], Trials], redis_url: str
) -> None:
    worker = trials()
    worker.begin(CANARY)
    worker.finished("support", CHAMPION, [ended(3)])
    worker.flush()
    connect(redis_url, QUEUE).flushall()
    worker.flush()
    assert worker.judge(CANARY)[1][CHAMPION].requests == 1


def test_a_watch_compares_the_champion_with_the_version_before(trials: Callable[[], Trials]) -> None:
    worker = trials()
    worker.begin(WATCH)
    for _ in range(30):
        worker.finished("support", CHAMPION, [ended(7, 80, 8)])
        worker.finished("support", PREVIOUS, [ended("base")])
    worker.flush()
    verdict, sums = worker.judge(WATCH)
    assert verdict.outcome == "rollback"
    tags = trial_tags(WATCH, sums, verdict)
    assert (tags["watch_acceptance_rate"], tags["watch_against"]) == (0.1, "base")


def test_an_old_canary_is_undecided_whoever_measured_it(trials: Callable[[], Trials]) -> None:
    now = int(time.time() * 1000)
    worker = trials()
    assert worker.judge(Trial("support", "canary", 3, 7, started_ms=now))[0].outcome == "continue"
    assert worker.judge(Trial("support", "canary", 3, 7, started_ms=now - 10**9))[0].outcome == "undecided"


def test_redis_away_fails_nobody(caplog: pytest.LogCaptureFixture) -> None:
    client = connect(f"redis://127.0.0.1:{free_port()}/0", QUEUE)
    worker = Trials(SETTINGS, TrialStore(client))
    worker.begin(CANARY)
    worker.finished("support", CHAMPION, [ended(3)])
    assert not worker.flush()
    assert not worker.flush()
    assert requests(worker) == 1
    assert len([record for record in caplog.records if "without a decision" in record.message]) == 1
    worker.end("support")
