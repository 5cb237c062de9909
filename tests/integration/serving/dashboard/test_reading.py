"""The dashboard can be read: light and dark, on a phone, without eyes and without a mouse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect
from redraft_models.registry import Registry

from ..conftest import Start
from ..test_loop import register
from .browsing import EVIDENCE, MARKS, Visit, look, no_strangers, traffic, with_loop

pytestmark = MARKS


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
