"""The dashboard's page and files over HTTP, and who may see what in /v1/overview."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from redraft_serving.http.metrics import LoopCounters
from transformers import PreTrainedTokenizerFast

from .reporting import ReportingEngine
from .scripted import TWO_WORDS, application

Serve = Callable[[FastAPI], str]
FOLDER = Path(str(files("redraft_serving") / "dashboard"))
KEYS: dict[str, Any] = {
    "api_keys": {"shop": {"key": "shop-key", "domains": ["law"]}},
    "api_key": "client-key",
    "admin_key": "operator-key",
}


@pytest.fixture
def open_client(word_tokenizer: PreTrainedTokenizerFast, serve: Serve) -> Iterator[httpx.Client]:
    app = application(ReportingEngine(TWO_WORDS), word_tokenizer)
    app.state.context.domains.resolve("law")
    with httpx.Client(base_url=serve(app), timeout=10) as made:
        yield made


@pytest.fixture
def keyed_client(word_tokenizer: PreTrainedTokenizerFast, serve: Serve) -> Iterator[httpx.Client]:
    app = application(ReportingEngine(TWO_WORDS), word_tokenizer, **KEYS)
    app.state.context.actions = object()
    app.state.loop_counters = LoopCounters(lost=lambda: {"law": 1, "other": 2})
    for domain in ("law", "other"):
        app.state.context.domains.resolve(domain)
    with httpx.Client(base_url=serve(app), timeout=10) as made:
        yield made


def overview(client: httpx.Client, key: str | None = None, **query: str) -> Any:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return client.get("/v1/overview", params=query, headers=headers)


def test_the_page_is_open_and_its_data_are_not(keyed_client: httpx.Client) -> None:
    assert keyed_client.get("/").status_code == 200
    assert keyed_client.get("/dashboard/app.js").status_code == 200
    assert overview(keyed_client).status_code == 401
    assert overview(keyed_client, "wrong").status_code == 401
    assert overview(keyed_client, "client-key").status_code == 200


def test_every_file_has_a_type_and_a_strict_policy(open_client: httpx.Client) -> None:
    for path in ["/", *(f"/dashboard/{p.relative_to(FOLDER)}" for p in FOLDER.rglob("*") if p.is_file())]:
        answer = open_client.get(path)
        assert answer.status_code == 200, path
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert re.match(r"text/(html|css|javascript|plain)|image/svg", answer.headers["content-type"])
        again = open_client.get(path, headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "path", ["../http/app.py", "%2e%2e/http/app.py", "..%2fsettings.py", "nothing.js", "", "uplot"]
)
def test_nothing_else_is_served(open_client: httpx.Client, path: str) -> None:
    answer = open_client.get(f"/dashboard/{path}")
    assert answer.status_code == 404
    assert "Traceback" not in answer.text


def strangers(text: str) -> list[str]:
    """Addresses of other hosts that a browser would ask, and code or style that stands inside the page."""
    outside = re.findall(
        r"""(?:src|href)=["'](?:[a-z]+:)?//[^"']+|url\(\s*["']?(?:https?:)?//|@import""", text
    )
    inside = re.findall(r"<script(?![^>]*\ssrc=)[^>]*>|<style|\son[a-z]+=[\"']|\sstyle=[\"']", text)
    return outside + inside


def test_the_page_asks_no_other_host_and_has_nothing_inline() -> None:
    found = {
        p.name: strangers(p.read_text()) for p in FOLDER.glob("*.*") if p.suffix in (".html", ".css", ".js")
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://example.org/a.js"></script>',
        "<script>alert(1)</script>",
        '<p style="color: red">',
        "@import 'a.css';",
        "body { background: url(//example.org/a.png) }",
        '<button onclick="go()">',
    ],
)
def test_a_stranger_goes_red(text: str) -> None:
    assert strangers(text)


def test_the_licence_stands_beside_the_library() -> None:
    assert "MIT License" in (FOLDER / "uplot" / "LICENSE.txt").read_text()
    assert "uPlot" in (FOLDER / "uplot" / "uPlot.iife.min.js").read_text()[:200]


def test_drafts_are_those_of_the_drafts_route(open_client: httpx.Client) -> None:
    found = overview(open_client).json()
    assert found["drafts"] == open_client.get("/v1/drafts").json()["data"]
    assert [row["domain"] for row in found["domains"]] == ["default", "law"]
    assert found["detail"]["domain"] == "default"
    assert overview(open_client, domain="law").json()["detail"]["domain"] == "law"
    assert found["sources"]["redis"] == {"configured": False, "up": None, "stale_seconds": None}


def test_a_key_sees_its_own_domains_alone(keyed_client: httpx.Client) -> None:
    """Neither the rows nor the details of another's domain, whatever the query asks for."""
    found = overview(keyed_client, "shop-key").json()
    assert found["samples"]["lost"] == {"law": 1}
    assert found["workers"] is None
    assert overview(keyed_client, "client-key").json()["samples"]["lost"] == {"law": 1, "other": 2}
    assert [row["domain"] for row in found["domains"]] == ["law"]
    assert [card["domain"] for card in found["drafts"]] == ["law"]
    assert found["detail"]["domain"] == "law"
    refused = overview(keyed_client, "shop-key", domain="other")
    assert refused.status_code == 404
    assert '"other"' not in json.dumps(found)


def test_only_the_admin_key_may_act(keyed_client: httpx.Client) -> None:
    may = {key: overview(keyed_client, key).json()["may_act"] for key in ("client-key", "operator-key")}
    assert may == {"client-key": False, "operator-key": True}


def test_a_domain_that_nobody_knows(open_client: httpx.Client) -> None:
    answer = overview(open_client, domain="nowhere")
    assert answer.status_code == 404
    assert "known are default, law" in answer.json()["error"]["message"]
