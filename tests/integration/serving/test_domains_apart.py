"""One domain's trouble in the registry is not another's."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from redraft_models.registry import Registry

from .test_loop import register, serving, wait_for

pytestmark = pytest.mark.integration

Start = Callable[..., Any]


def test_a_version_that_cannot_be_fetched_holds_no_other_domain_up(
    start: Start, tracking_uri: str, tmp_path: Path
) -> None:
    """The run of a's champion is gone from the registry: b, which is looked at later, follows its own."""
    registry = Registry(tracking_uri)
    maker = start("random")
    for seed, domain in enumerate(("a", "b")):
        registry.promote(domain, register(registry, maker, tmp_path, seed, domain))
    with closing(sqlite3.connect(tracking_uri.removeprefix("sqlite:///"))) as database:
        database.execute(
            "UPDATE model_versions SET source = 'runs:/nowhere/version' WHERE name = 'redraft-a'"
        )
        database.commit()
    worker = start("random", config={"tracking_uri": tracking_uri, "domains": ("a", "b")})
    wait_for(lambda: serving(worker, "b")["version"] == 1)
    assert serving(worker, "a")["version"] == "base"
    worker.complete("w1 w2", max_tokens=5)
