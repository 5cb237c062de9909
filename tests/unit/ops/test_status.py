"""What `redraft status` makes of whatever answers at the serving worker's address, and of what it gathers."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from redraft_ops.errors import ServerUnreachable
from redraft_ops.glance.findings import findings_of
from redraft_ops.glance.gather import Glance
from redraft_ops.glance.rows import KEYS, rows_of
from redraft_ops.glance.serving import Serving, ask_serving
from redraft_ops.glance.table import WIDTH, finding_lines, shown
from redraft_ops.glance.versions import DomainVersions, Version, chosen
from redraft_ops.settings import Settings
from redraft_queue.due import ScheduleState
from redraft_queue.heartbeat import SignOfLife
from redraft_queue.positions import Backlog
from redraft_queue.schedule import view
from redraft_queue.settings import QueueSettings
from rich.console import Console

ROOT = Path(__file__).resolve().parents[3]
DRAFT = {
    "domain": "law",
    "version": 3,
    "base_draft_fingerprint": "f",
    "acceptance_rate": 0.5,
    "tested": 10,
    "num_speculative_tokens": 4,
    "state": "speculating",
    "policy": {"measured_gain": 1.4, "reason": "speculating: 4 tokens a round are quickest"},
}


class Foreign(BaseHTTPRequestHandler):
    """Whatever program has the port that a serving worker would have."""

    answers: ClassVar[Mapping[str, tuple[int, bytes]]] = {}
    asked: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        status, body = self.answers.get(self.path, (404, b""))
        self.asked.append(self.headers["Authorization"])
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on standard error."""


@pytest.fixture
def port() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), Foreign)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("path", ["/v1/overview", "/v1/drafts"])
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b""),
        (200, b"<html>"),
        (200, b"{}"),
        (200, b"[]"),
        (200, b'{"data": 1, "drafts": 1}'),
        (200, b'{"data": [{"domain": "default"}], "drafts": [{"domain": "default"}]}'),
        (200, b'{"data": [1], "drafts": [1]}'),
    ],
)
def test_another_program_on_the_port_is_a_remark_unless_its_address_was_given(
    port: int, monkeypatch: pytest.MonkeyPatch, path: str, status: int, body: bytes
) -> None:
    monkeypatch.setattr(Foreign, "answers", {path: (status, body)})
    settings = Settings.model_validate({"serving": {"host": "127.0.0.1", "port": port}})
    serving = ask_serving(settings, None)
    assert serving.drafts == {}
    assert str(port) in (serving.remark or "")
    with pytest.raises(ServerUnreachable, match=str(port)):
        ask_serving(settings, f"http://127.0.0.1:{port}")


def test_the_overview_has_everything_and_an_older_worker_its_drafts(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.model_validate(
        {"serving": {"host": "127.0.0.1", "port": port, "api_key": "client", "admin_key": "admin"}}
    )
    monkeypatch.setattr(Foreign, "asked", [])
    monkeypatch.setattr(Foreign, "answers", {"/v1/drafts": (200, json.dumps({"data": [DRAFT]}).encode())})
    assert ask_serving(settings, None) == Serving({"law": DRAFT})
    summary = {"domain": "law", "decode_seconds": 2.0, "decoded_tokens": 400}
    overview = {"drafts": [DRAFT], "domains": [summary], "samples": {"dropped": {"full": 2}, "lost": {}}}
    monkeypatch.setattr(Foreign, "answers", {"/v1/overview": (200, json.dumps(overview).encode())})
    assert ask_serving(settings, None) == Serving({"law": DRAFT}, {"law": summary}, {"full": 2})
    assert set(Foreign.asked) == {"Bearer admin"}


def glance_of(
    domain: str = "law",
    *,
    serving: Serving | None = None,
    versions: DomainVersions | None = None,
    state: ScheduleState | None = None,
    lost: int = 0,
    dead: int = 0,
    signs: tuple[SignOfLife, ...] | None = None,
) -> Glance:
    everybody = tuple(SignOfLife(role, "here", 7, 0.0) for role in ("serving", "trainer", "beat"))
    queue = QueueSettings.model_validate({})
    return Glance(
        [domain],
        serving or Serving(),
        {domain: versions or DomainVersions()},
        {domain: Backlog(5, lost, 100, 5 + lost, 50)},
        {domain: view(domain, state or ScheduleState(), 1_000_000, False, queue)},
        {domain: dead},
        everybody if signs is None else signs,
    )


def row_of(glance: Glance, **settings: Any) -> dict[str, Any]:
    (row,) = rows_of(Settings.model_validate(settings), glance)
    return row


def sign(role: str, **details: Any) -> SignOfLife:
    return SignOfLife(role, "here", 7, 0.0, details)


def test_a_fresh_deployment_has_a_row_of_known_keys_and_nothing_to_say() -> None:
    row = row_of(glance_of())
    assert row.keys() == KEYS.keys()
    assert (row["version"], row["acceptance_rate"], row["last_round"], row["findings"]) == (
        "base",
        None,
        None,
        [],
    )
    json.dumps(row, allow_nan=False)


def test_the_keys_are_documented() -> None:
    text = (ROOT / "docs" / "status.md").read_text()
    for key, meaning in KEYS.items():
        assert f"| `{key}` | {meaning} |" in text


@pytest.mark.parametrize(
    ("policy", "gain"),
    [(None, None), ([], None), ({}, None), ({"measured_gain": 1.4}, 1.4)],
)
def test_gain_of_a_worker_that_may_be_older(policy: object, gain: float | None) -> None:
    serving = Serving({"law": {**DRAFT, "policy": policy}})
    assert row_of(glance_of(serving=serving))["measured_gain"] == gain


def test_time_per_token_is_a_ratio_of_sums() -> None:
    serving = Serving({"law": DRAFT}, {"law": {"decode_seconds": 2.0, "decoded_tokens": 400}})
    assert row_of(glance_of(serving=serving))["time_per_token_ms"] == 5.0
    nothing = Serving({"law": DRAFT}, {"law": {"decode_seconds": 0.0, "decoded_tokens": 0}})
    assert row_of(glance_of(serving=nothing))["time_per_token_ms"] is None


def test_the_version_served_and_the_champion_are_told_apart() -> None:
    old = (datetime.now(UTC) - timedelta(minutes=5)).isoformat()
    versions = DomainVersions(champion=Version(4, 0, {"promoted_at": old}))
    signs = (sign("trainer"), sign("beat"), sign("serving", drafts={"law": 3}))
    row = row_of(glance_of(serving=Serving({"law": DRAFT}), versions=versions, signs=signs))
    assert (row["version"], row["champion"]) == (3, 4)
    assert any("lags: it serves version 3, the champion is version 4" in said for said in row["findings"])
    follows = row_of(glance_of(versions=versions, signs=(*signs[:2], sign("serving", drafts={"law": 4}))))
    assert follows["findings"] == []
    new = DomainVersions(champion=Version(4, 0, {"promoted_at": datetime.now(UTC).isoformat()}))
    assert row_of(glance_of(versions=new, signs=signs))["findings"] == []


def test_a_silent_role_lost_samples_and_dead_letters_are_told() -> None:
    serving = Serving({"law": DRAFT}, dropped={"full": 2, "oversized": 0})
    found = row_of(glance_of(serving=serving, lost=9, dead=1, signs=(sign("serving"), sign("beat"))))[
        "findings"
    ]
    assert found[0] == "no sign of life of any process of the role trainer; start `redraft worker`"
    assert found[1].startswith("9 samples were trimmed")
    assert found[2] == "the serving worker dropped 2 samples before they reached Redis (full 2)"
    assert found[3].startswith("1 entries of the stream")
    assert found[4] == "speculating: 4 tokens a round are quickest"


def test_no_headroom_a_canary_and_a_rollback_are_told() -> None:
    state = ScheduleState(
        asked_ms=900_000, decision="rejected", gain=0.002, gain_ci_low=-0.01, gain_ci_high=0.014,
        rounds_without_gain=3,
    )  # fmt: skip
    running = Version(
        9, 0, {"validation_status": "approved", "canary": "running", "canary_started_ms": "1000"}
    )
    left = Version(10, 0, {"rollback_reason": "acceptance fell by 0.06"})
    glance = glance_of(state=state, versions=chosen([running, left], {}))
    found = row_of(glance)["findings"]
    assert found[0].startswith("canary: version 9 has served a share of the requests for ")
    assert found[1] == "version 10 was left: acceptance fell by 0.06"
    assert (
        "no headroom: 3 rounds in a row without a sure gain, the last +0.002 (-0.010 to +0.014)" in found[2]
    )
    assert findings_of(glance, row_of(glance)) == found


def test_what_a_trial_says_is_told() -> None:
    running = Version(9, 0, {"validation_status": "approved", "canary": "running"})
    trial = {"kind": "canary", "version": 9, "against": 8, "sentence": "It goes on: 12 of 50 requests."}
    serving = Serving({"law": {**DRAFT, "policy": None, "trial": trial}})
    found = row_of(glance_of(serving=serving, versions=chosen([running], {})))["findings"]
    assert found == ["canary: version 9 serves a share of the requests. It goes on: 12 of 50 requests"]
    watch = {**trial, "kind": "watch", "sentence": None}
    serving = Serving({"law": {**DRAFT, "policy": None, "trial": watch}})
    assert row_of(glance_of(serving=serving))["findings"] == ["watch: version 9 is compared with version 8"]


def test_what_won_its_comparison_is_promoted_only_when_its_canary_has_ended() -> None:
    tags = {"decision": "promoted", "validation_status": "approved", "canary": "running"}
    for canary, word in (("running", "approved"), ("passed", "promoted")):
        version = Version(9, 0, {**tags, "canary": canary})
        assert row_of(glance_of(versions=chosen([version], {})))["last_round"]["decision"] == word


def test_a_copy_is_no_rounds_version() -> None:
    adopted = Version(1, 0, {"decision": "promoted", "adopted_from": "redraft-default/4"})
    assert row_of(glance_of(versions=chosen([adopted], {})))["last_round"]["decision"] == "adopted"


def test_a_shared_draft_is_told() -> None:
    row = row_of(glance_of(), shared_drafts={"law": "support"})
    assert row["shared_from"] == "support"
    assert "served with the draft of domain support" in row["findings"][-1]


def test_the_table_fits_a_hundred_columns_and_cuts_no_number() -> None:
    versions = DomainVersions(newest=Version(500, 1, {"decision": "promoted", "gain": "0.0312"}))
    draft = {**DRAFT, "version": 499, "acceptance_rate": 0.61234}
    serving = Serving({"law": draft}, {"law": {"decode_seconds": 123.456, "decoded_tokens": 1000}})
    row = row_of(glance_of(serving=serving, versions=versions))
    row |= {
        "domain": "a-long-name-of-a-domain",
        "stream_length": 100_000,
        "unseen": 99_500,
        "lost": 12_345,
        "num_speculative_tokens": "auto",
    }
    console = Console(width=WIDTH, file=io.StringIO(), highlight=False)
    console.print(shown([row]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= WIDTH
    for part in (
        "v499",
        "0.612",
        "1.40",
        "123.5",
        "auto",
        "99500",
        "100000",
        "12345",
        "v500",
        "+0.031",
    ):
        assert part in text


def test_what_holds_for_every_domain_is_said_once() -> None:
    rows = [{"domain": "a", "findings": ["all", "one"]}, {"domain": "b", "findings": ["all"]}]
    assert finding_lines(rows) == ["all", "a: one"]
    assert finding_lines(rows[1:]) == ["b: all"]
    assert finding_lines([]) == []
