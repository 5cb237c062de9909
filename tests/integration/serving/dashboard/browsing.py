"""Tabs of a browser on a worker, and what a test compares with what they show.

With REDRAFT_SCREENSHOTS=folder every test leaves pictures of what it saw.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page
from prometheus_client.parser import text_string_to_metric_families
from redraft_serving.engine.interface import CHAMPION

from ..conftest import Start, Worker

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
MARKS = [
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
