"""The dashboard acts when it is told, by whoever has the key, and says why it does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect
from redraft_models.registry import Registry
from redraft_serving.actions import Actions

from ..conftest import Start, Worker
from ..test_loop import register, wait_for
from .browsing import EVIDENCE, MARKS, Visit, look, serving_version, traffic, with_loop

pytestmark = MARKS


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
