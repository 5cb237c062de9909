"""A real browser, and tabs in it that are closed at the test's end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from ..conftest import Worker
from .browsing import CHROMIUM, FLAGS, Visit


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield made
        made.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visit]]:
    visits: list[Visit] = []

    def make(worker: Worker, **options: Any) -> Visit:
        visits.append(Visit(browser, worker.url, **options))
        return visits[-1]

    yield make
    for one in visits:
        one.context.close()
