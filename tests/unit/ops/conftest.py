"""A registry and a stream of a given size, made quickly: `prepared_store` and its parts."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import redis
from redraft_models.registry import Registry
from redraft_queue import keys

ROWS_AT_ONCE = 5_000
VERSION_TAGS = 30


def fill_registry(database: Path, artifacts: Path, domain: str, versions: int) -> None:
    """As many versions with the tags of rounds; the last but one is champion, before it `previous`."""
    registry = Registry(f"sqlite:///{database}", artifact_root=artifacts)
    registry._ensure_model(domain)
    name = f"redraft-{domain}"
    with closing(sqlite3.connect(database)) as db:
        for number in range(1, versions + 1):
            db.execute(
                "INSERT INTO model_versions (name, version, creation_time, current_stage, source, run_id,"
                " status) VALUES (?, ?, ?, 'None', ?, ?, 'READY')",
                (name, number, 1_700_000_000_000 + number, f"runs:/r{number}/version", f"r{number}"),
            )
            tags = {
                "validation_status": "approved" if number < versions else "rejected",
                "decision": "promoted" if number < versions else "rejected",
                "decision_reason": "measured",
                "round_id": f"round-{number}",
                "gain": "0.0312",
                "gain_ci_low": "-0.001",
                "acceptance_rate": "0.61",
                "stream_last_id": f"{number}-0",
                "stream_last_ordinal": str(number),
                "stream_last_tokens": str(10 * number),
            }
            tags |= {f"filler_{i}": "x" * 40 for i in range(VERSION_TAGS - len(tags))}
            db.executemany(
                "INSERT INTO model_version_tags (key, value, name, version) VALUES (?, ?, ?, ?)",
                [(key, value, name, number) for key, value in tags.items()],
            )
        for alias, number in (("champion", versions - 1), ("previous", versions - 2)):
            db.execute(
                "INSERT INTO registered_model_aliases (alias, version, name) VALUES (?, ?, ?)",
                (alias, number, name),
            )
        db.commit()


def fill_stream(client: redis.Redis, domain: str, samples: int) -> None:
    """`samples` entries of a sample's usual size."""
    body = b"s" * 2_000
    for start in range(0, samples, ROWS_AT_ONCE):
        pipeline = client.pipeline(transaction=False)
        for number in range(start, min(samples, start + ROWS_AT_ONCE)):
            pipeline.xadd(keys.samples(domain), {"sample": body}, id=f"{number + 1}-0")
        pipeline.execute()
    client.set(keys.tokens(domain), 10 * samples)
    client.sadd(keys.DOMAINS, domain)


PreparedStore = Callable[[int, int], str]


@pytest.fixture
def prepared_store(_mlflow_template: Path, tmp_path: Path, redis_url: str) -> PreparedStore:
    """`prepared_store(versions, samples)`: fill registry and stream of the domain `default`; returns the
    tracking URI.
    """

    def fill(versions: int, samples: int) -> str:
        folder = tmp_path / "prepared"
        folder.mkdir()
        shutil.copy(_mlflow_template, folder / "mlflow.db")
        fill_registry(folder / "mlflow.db", folder / "artifacts", "default", versions)
        with redis.Redis.from_url(redis_url) as client:
            fill_stream(client, "default", samples)
        return f"sqlite:///{folder / 'mlflow.db'}"

    return fill
