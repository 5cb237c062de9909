"""promote, forget, prune, and rounds asked for: real Valkey, real MLflow, the commands as processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
import redis
from redraft_models.registry import Registry, VersionInfo
from redraft_ops.forgetting import copies, copies_in, seen_by
from redraft_queue import keys
from redraft_queue.forget import IdRange
from redraft_queue.records import user_hash

Redraft = Callable[..., subprocess.CompletedProcess[str]]
Prepared = Callable[[int, int], str]


def version(number: int, first: int, last: int, **tags: str) -> VersionInfo:
    ranged = {"stream_first_id": f"{first}-0", "stream_last_id": f"{last}-0"} if last else {}
    return VersionInfo("law", number, "r", "READY", 0, "", {**ranged, **tags})


VERSIONS = [version(1, 1, 9), version(2, 10, 19), version(3, 0, 0), version(4, 20, 29)]


def test_who_had_seen_a_deleted_sample() -> None:
    seen = seen_by("law", VERSIONS, [IdRange("12-0", "12-0", 1)])
    assert (seen.trained, seen.may_have) == ((2,), (4, 3))
    seen = seen_by("law", VERSIONS, [IdRange("9-0", "10-0", 2)])
    assert (seen.trained, seen.may_have) == ((2, 1), (4, 3))
    seen = seen_by("law", VERSIONS, [IdRange("30-0", "30-1", 2)])
    assert (seen.trained, seen.may_have) == ((), ())
    assert seen_by("law", VERSIONS, []).trained == ()


def test_ids_are_compared_as_numbers() -> None:
    assert seen_by("law", [version(1, 9, 11)], [IdRange("10-0", "10-0", 1)]).trained == (1,)


def test_copies_in_other_domains_are_found() -> None:
    source = seen_by("law", VERSIONS, [IdRange("12-0", "12-0", 1)])
    others = [version(1, 0, 0), version(2, 0, 0, adopted_from="redraft-law/2"), version(3, 1, 2)]
    assert copies("faq", others, source).may_have == (3, 2)
    assert copies("faq", others[:1], source).may_have == ()


def test_a_domain_with_samples_of_its_own_may_have_copied_too() -> None:
    source = seen_by("law", VERSIONS, [IdRange("12-0", "12-0", 1)])
    faq = [version(1, 0, 0, adopted_from="redraft-law/2"), version(2, 1, 2), version(3, 3, 4)]
    own = seen_by("faq", faq, [IdRange("1-0", "1-0", 1)])
    untouched = [version(1, 0, 0)]
    found = {
        one.domain: one for one in copies_in({"law": VERSIONS, "faq": faq, "x": untouched}, [source, own])
    }
    assert (found["law"].trained, found["law"].may_have) == ((2,), (4, 3))
    assert (found["faq"].trained, found["faq"].may_have) == ((2,), (3, 1))
    assert found["x"].may_have == ()


@pytest.fixture
def environment(prepared_store: Prepared, redis_url: str) -> dict[str, str]:
    """Five versions, each trained on the sample of its number alone; samples are of Ann and Bob in turn."""
    uri = prepared_store(5, 0)
    registry = Registry(uri)
    for number in range(1, 6):
        registry.set_tags("default", number, {"stream_first_id": f"{number}-0"})
    with redis.Redis.from_url(redis_url) as client:
        for number in range(1, 9):
            sample = {"request_id": f"q{number}", "user": user_hash("Ann" if number % 2 else "Bob")}
            client.xadd(keys.samples("default"), {"sample": msgpack.packb(sample)}, id=f"{number}-0")
        client.sadd(keys.DOMAINS, "default")
    return {"REDRAFT_REDIS_URL": redis_url, "MLFLOW_TRACKING_URI": uri}


def call(redraft: Redraft, environment: dict[str, str], *arguments: str) -> Any:
    done = redraft(*arguments, "--json", **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.integration
def test_a_request_and_a_user_are_forgotten_and_who_saw_them_is_told(
    redraft: Redraft, environment: dict[str, str], redis_url: str
) -> None:
    told = redraft("forget", "--user", "Bob", "--yes", **environment)
    assert told.returncode == 0, told.stderr
    assert "domain default: 4 samples and 0 dead letters deleted" in told.stdout
    assert "trained on them: versions 4, 2" in told.stdout
    assert "may have replayed or inherited them: versions 5, 3" in told.stdout
    assert "not untrained" in told.stderr
    assert "redraft prune" in told.stderr

    found = call(redraft, environment, "forget", "--request", "q3", "--yes")
    assert [(one["domain"], one["samples"]) for one in found["deleted"]] == [("default", 1)]
    assert found["versions"] == [{"domain": "default", "trained": [3], "may_have": [5, 4]}]
    with redis.Redis.from_url(redis_url) as client:
        left = [entry_id for entry_id, _ in client.xrange(keys.samples("default"))]  # type: ignore[union-attr]
        assert left == [b"1-0", b"5-0", b"7-0"]

    again = redraft("forget", "--user", "Bob", "--yes", **environment)
    assert (again.returncode, again.stdout.strip()) == (0, "nothing is kept of user Bob")


@pytest.mark.integration
def test_a_domain_is_forgotten_even_where_the_registry_is_away(
    redraft: Redraft, environment: dict[str, str], redis_url: str
) -> None:
    away = {**environment, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    found = call(redraft, away, "forget", "--domain", "default", "--yes")
    assert found["deleted"][0]["samples"] == 8
    assert "not known" in found["remark"]
    with redis.Redis.from_url(redis_url) as client:
        assert not client.exists(keys.samples("default"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("forget",), "exactly one"),
        (("forget", "--user", "a", "--request", "b"), "exactly one"),
        (("forget", "--user", "a"), "say --yes"),
        (("forget", "--domain", "a b", "--yes"), "is no name"),
        (("train", "--no-wait"), "goes with --now"),
        (("status", "5"), "without --watch"),
        (("status", "--watch", "--json"), "for people"),
        (("up", "--without", "valkey"), "none of serve"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_in_a_sentence(
    redraft: Redraft, arguments: tuple[str, ...], said: str
) -> None:
    done = redraft(*arguments)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.integration
def test_versions_are_promoted_and_pruned_by_hand(redraft: Redraft, environment: dict[str, str]) -> None:
    assert call(redraft, environment, "promote", "2") == {"domain": "default", "from": 4, "to": 2}
    refused = redraft("promote", "77", **environment)
    assert (refused.returncode, "77" in refused.stderr, "Traceback" in refused.stderr) == (2, True, False)
    twice = redraft("promote", "2", **environment)
    assert (twice.returncode, "already" in twice.stderr) == (1, True)

    planned = call(redraft, environment, "prune", "--keep", "1", "--dry-run")
    assert (planned["versions"], planned["dry_run"]) == ([1, 3], True)
    assert call(redraft, environment, "prune", "--keep", "1")["versions"] == planned["versions"]
    assert call(redraft, environment, "prune", "--keep", "1")["versions"] == []
    registry = Registry(environment["MLFLOW_TRACKING_URI"])
    assert [info.version for info in registry.versions("default")] == [5, 4, 2]


@pytest.mark.integration
def test_a_round_is_asked_of_the_workers(
    redraft: Redraft, environment: dict[str, str], redis_url: str, tmp_path: Path
) -> None:
    done = redraft("train", "--now", "--no-wait", "--force", **environment)
    assert done.returncode == 0, done.stderr
    assert "no worker shows a sign of life" in done.stderr
    round_id = done.stdout.strip()
    with redis.Redis.from_url(redis_url) as client:
        (message,) = client.lrange(f"{keys.CELERY_PREFIX}redraft", 0, -1)  # type: ignore[misc]
    headers = json.loads(message)["headers"]
    assert headers["id"] == round_id
    assert "'trigger': 'operator'" in headers["kwargsrepr"]
    assert "'force': True" in headers["kwargsrepr"]


@pytest.mark.integration
def test_a_watched_status_renews_itself_and_ends_without_a_fault(
    environment: dict[str, str], clean_environment: dict[str, str], tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "redraft_ops", "status", "--watch", "0.3"],
        cwd=tmp_path,
        env={**clean_environment, **environment, "FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    seen = 0
    with process.stdout as output:
        for line in output:
            seen += "v4" in line
            if seen == 3:
                break
        process.send_signal(signal.SIGINT)
        output.read()
    assert process.wait(20) == 0
