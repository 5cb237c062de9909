"""What people read in MLflow's UI: each state of a version is told in words, and odd tags do no harm."""

import pytest
from redraft_models.registry_live import live_numbers
from redraft_models.registry_markdown import MOST_CHARACTERS
from redraft_models.registry_summary import model_description
from redraft_models.registry_text import standing, version_description
from redraft_models.registry_versions import VersionInfo

REASON = "The candidate's acceptance of 0.5000 does not exceed the champion's 0.6000."


def version(number: int = 3, **tags: object) -> VersionInfo:
    values = {key: str(value) for key, value in tags.items()}
    return VersionInfo("faq", number, "run", "READY", 1_700_000_000_000, "runs:/run/version", values)


def test_a_version_explains_itself_in_markdown() -> None:
    text = version_description(
        version(
            validation_status="rejected",
            decision_reason=REASON,
            acceptance_rate=0.5,
            champion_acceptance_rate=0.6,
            gain=-0.1,
            gain_ci_low=-0.12,
            gain_ci_high=-0.08,
            heldout_requests=40,
            heldout_tokens=4000,
            train_requests=300,
            train_tokens=9000,
            stream_first_id="1-0",
            stream_last_id="9-0",
            parent_version=2,
            champion_before="base",
        )
    )
    assert text.startswith(f"Not promoted. {REASON}")
    assert "- gain (interval): -0.1000 (-0.1200 to -0.0800)" in text
    assert "- held out: 40 requests, 4000 tokens" in text
    assert "- samples: 300 requests, 9000 tokens" in text
    assert "- stream entries: `1-0` to `9-0`" in text
    assert "- measured against: [version 2](#/models/redraft-faq/versions/2)" in text
    assert "- champion before it: the base draft (no adapter)" in text


@pytest.mark.parametrize(
    ("tags", "expected", "words"),
    [
        ({"validation_status": "pending"}, "candidate", "not settled yet"),
        ({"validation_status": "approved", "canary": "running"}, "on trial", "a share of the traffic"),
        ({"validation_status": "approved", "canary": "passed"}, "promoted", "Promoted"),
        ({"validation_status": "approved", "adopted_from": "redraft-a/1"}, "adopted", "Adopted"),
        ({"validation_status": "rejected"}, "rejected", "Not promoted"),
        ({"validation_status": "rejected", "canary": "failed"}, "failed its canary", "when served"),
        ({"validation_status": "rejected", "canary": "undecided"}, "canary undecided", "without a decision"),
        ({"validation_status": "rejected", "canary": "overtaken"}, "overtaken", "the champion changed"),
        (
            {"validation_status": "approved", "rollback_reason": "acceptance fell by 0.08"},
            "rolled back",
            "acceptance fell by 0.08",
        ),
        ({}, "candidate", "Candidate"),
    ],
)
def test_every_state_has_its_word_and_its_sentence(tags: dict[str, str], expected: str, words: str) -> None:
    assert standing(tags) == expected
    assert words in version_description(version(**tags))


def test_live_numbers_are_shown_beside_the_other_versions_and_are_metrics_of_the_run() -> None:
    info = version(
        canary="failed",
        canary_started_ms=1_700_000_000_000,
        canary_requests=812,
        canary_against=2,
        canary_against_requests=7390,
        canary_acceptance_rate=0.512345678,
        canary_against_acceptance_rate=0.55,
        canary_acceptance_difference=-0.0377,
        canary_acceptance_difference_low=-0.05,
        canary_acceptance_difference_high=-0.02,
        canary_slowdown=0.021,
        canary_slowdown_low=-0.01,
        canary_slowdown_high=0.05,
        canary_verdict="worse",
        watch_acceptance_rate="nan",
    )
    text = version_description(info)
    assert "**Canary, on live traffic: failed**\n\n| &emsp; | this version&emsp; | [version 2](#/m" in text
    assert "| requests&emsp; | 812&emsp; | 7390&emsp; |  |" in text
    assert "| acceptance&emsp; | 0.5123&emsp; | 0.5500&emsp; | -0.0377 (-0.0500 to -0.0200) |" in text
    assert "| verdict&emsp; | worse&emsp; | &emsp; |  |" in text
    assert "started" not in text
    assert "| seconds per emitted token&emsp; | &emsp; | &emsp; | +2.1% (-1.0% to +5.0%) |" in text
    assert live_numbers(info.tags) == {
        "canary/requests": 812.0,
        "canary/against_requests": 7390.0,
        "canary/acceptance_rate": 0.512345678,
        "canary/against_acceptance_rate": 0.55,
        "canary/acceptance_difference": -0.0377,
        "canary/acceptance_difference_low": -0.05,
        "canary/acceptance_difference_high": -0.02,
        "canary/slowdown": 0.021,
        "canary/slowdown_low": -0.01,
        "canary/slowdown_high": 0.05,
    }


def test_a_canary_that_has_only_begun_is_named() -> None:
    text = version_description(version(validation_status="approved", canary="running"))
    assert "**Canary, on live traffic: running**" in text


def test_the_gates_words_stay_when_the_canary_decides_otherwise() -> None:
    text = version_description(
        version(
            validation_status="rejected", canary="failed", decision_reason="Slower.", gate_reason="Better."
        )
    )
    assert "Slower." in text
    assert "> Earlier, when it was approved: Better." in text


def test_texts_stand_missing_odd_and_endless_tags() -> None:
    assert "n/a" in version_description(version(acceptance_rate="n/a"))
    assert "a\\|b c" in version_description(version(canary_verdict="a|b\nc"))
    endless = {f"canary_{index:03}": "x" * 400 for index in range(100)}
    text = version_description(version(decision_reason="y" * 100_000, **endless))
    assert len(text) == MOST_CHARACTERS


def test_a_versions_text_tells_of_its_head() -> None:
    text = version_description(version(head_size=8192, head_coverage=0.998912))
    assert "- head: 8192 ids, 0.9989 of the held-out tokens" in text
    assert "head" not in version_description(version(gain=0.1)), "versions from before heads"


def test_the_models_text_says_who_serves_and_lists_the_newest() -> None:
    champion = version(
        7, validation_status="approved", acceptance_rate=0.61, promoted_at="2026-05-03T10:20:30"
    )
    trial = version(9, validation_status="approved", canary="running", gain=0.02, gain_ci_low=0.01)
    newest = [trial, version(8, validation_status="rejected"), champion]
    text = model_description("faq", {"champion": champion, "challenger": trial}, newest)
    link = "[version 7](#/models/redraft-faq/versions/7)"
    assert f"**champion**, served now: {link}, measured acceptance 0.6100, promoted 2026-05-03 10:20" in text
    assert "**previous**, where `redraft rollback` leads: the base draft (no adapter)" in text
    assert "serves a share of the traffic" in text
    assert "all runs" not in text
    assert "(#/experiments/7/runs)" in model_description("faq", {}, [], experiment_id="7")
    assert "**The last 3**" in text
    assert "on trial, **challenger** |" in text
    assert "promoted, **champion** |" in text
    assert len(model_description("d" * 64, {"champion": champion}, newest * 4)) <= MOST_CHARACTERS


def test_an_empty_model_serves_the_base_draft() -> None:
    text = model_description("faq", {}, [])
    assert "served now: the base draft (no adapter)" in text
    assert "none; no candidate is waiting" in text
    assert "| version |" not in text
