"""How far single domains speculate: set at the start, and changed while serving."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.integration

Worker = Any
Start = Callable[..., Worker]


@pytest.fixture(scope="module")
def worker(start: Start) -> Worker:
    return start("chain", 3, domain_speculative_tokens={"law": 0, "support": 5})


def drafted(worker: Worker, domain: str, **body: Any) -> int:
    """Tokens proposed for one answer."""
    headers = {"X-Redraft-Domain": domain}
    given = {"prompt": "a", "temperature": 0, "max_tokens": 7, **body}
    answer = worker.http.post("/v1/completions", json={**given, "ignore_eos": True}, headers=headers).json()
    counts = answer["metrics"]["speculative_decoding"]
    return int(counts["num_draft_tokens"])


def card(worker: Worker, domain: str) -> dict[str, Any]:
    cards = worker.http.get("/v1/drafts").json()["data"]
    return dict(next(one for one in cards if one["domain"] == domain))


def test_domains_begin_with_settings_of_their_own(worker: Worker) -> None:
    assert (card(worker, "law")["policy"]["setting"], card(worker, "support")["policy"]["setting"]) == (0, 5)
    assert drafted(worker, "law") == 0
    assert drafted(worker, "support") > 0
    assert drafted(worker, "default") > 0
    assert drafted(worker, "law", num_speculative_tokens=2) > 0


def test_a_change_while_serving_goes_before_the_setting_of_the_start(worker: Worker) -> None:
    for setting, drafts in ((2, True), (0, False), (None, True)):
        url = "/v1/drafts/law/speculation"
        assert worker.http.post(url, json={"num_speculative_tokens": setting}).status_code == 200
        assert (drafted(worker, "law") > 0) is drafts
    assert card(worker, "support")["policy"]["setting"] == 5
