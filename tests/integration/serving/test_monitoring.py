"""The Prometheus and Grafana files beside a real worker: rules fire when they should, every metric exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from redraft_models.registry import Registry
from redraft_ops.valkey import free_port

from .conftest import Start, Worker
from .test_loop import register, wait_for

pytestmark = pytest.mark.integration
MONITORING = Path(__file__).resolve().parents[3] / "serving" / "monitoring"
PROMETHEUS = MONITORING / "prometheus"
GRAFANA = MONITORING / "grafana"
DASHBOARD = GRAFANA / "dashboards" / "redraft.json"
RULES = PROMETHEUS / "redraft.rules.yml"
_METRIC = re.compile(r"\b(?:redraft_|vllm:)[a-z0-9_]+")
_RECORDED = re.compile(r"\bredraft:[a-z0-9_:]+")
_LABEL_VALUE = re.compile(r'"[^"]*"')

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="Prometheus is not installed"
)


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return list(json.loads(DASHBOARD.read_text())["panels"])


def expressions() -> list[str]:
    """Every PromQL expression of rules and dashboard, with Grafana's variables filled in."""
    document = json.loads(DASHBOARD.read_text())
    found = [rule["expr"] for rule in rules()]
    found += [target["expr"] for panel in document["panels"] for target in panel["targets"]]
    found += [note["expr"] for note in document["annotations"]["list"]]
    return [one.replace("$domain", ".*").replace("$__rate_interval", "1m") for one in found]


def unknown_metrics(texts: list[str], known: set[str], recorded: set[str]) -> set[str]:
    plain = [_LABEL_VALUE.sub('""', text) for text in texts]
    used = {name for text in plain for name in _METRIC.findall(text)}
    derived = {name for text in plain for name in _RECORDED.findall(text)}
    return (used - known) | (derived - recorded)


def exposed(worker: Worker) -> set[str]:
    """Names of /metrics: families that have no sample yet are told as well."""
    text = worker.http.get("/metrics").text
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    return names | {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}


@pytest.fixture
def worker(start: Start, redis_url: str, tracking_uri: str, tmp_path: Path) -> Worker:
    """One with samples, a round's version, and all that follows from them."""
    made = start("random", config={"redis_url": redis_url, "tracking_uri": tracking_uri})
    registry = Registry(tracking_uri)
    version = register(registry, made, tmp_path, 1)
    registry.set_tags("default", version, {"gain": "0.02", "decision": "rejected", "round_id": "a-round"})
    made.complete("w1 w2", max_tokens=40, ignore_eos=True)
    wait_for(lambda: made.metric("redraft_samples_written_total") == 1)
    made.app.state.context.overview.loop.look()
    return made


@needs_promtool
@pytest.mark.parametrize(
    "command",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "redraft.rules.yml"),
        ("test", "rules", "redraft.rules.test.yml"),
    ],
)
def test_the_files_are_valid_and_the_alerts_fire(command: tuple[str, ...]) -> None:
    ran = subprocess.run(["promtool", *command], cwd=PROMETHEUS, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@needs_promtool
def test_an_alert_that_never_fires_goes_red(tmp_path: Path) -> None:
    """The limit of a fall set to 50 points: its own test notices."""
    for path in PROMETHEUS.iterdir():
        shutil.copy(path, tmp_path)
    text = RULES.read_text()
    assert "- 0.05" in text
    (tmp_path / RULES.name).write_text(text.replace("- 0.05", "- 0.5"))
    command = ["promtool", "test", "rules", "redraft.rules.test.yml"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.returncode != 0
    assert "RedraftAcceptanceFellAfterSwap" in ran.stdout + ran.stderr


def test_every_alert_is_tested() -> None:
    tests = yaml.safe_load((PROMETHEUS / "redraft.rules.test.yml").read_text())["tests"]
    fired = {
        case["alertname"] for test in tests for case in test.get("alert_rule_test", []) if case["exp_alerts"]
    }
    assert fired == {rule["alert"] for rule in rules() if "alert" in rule}


def test_every_metric_is_one_of_a_running_worker(worker: Worker) -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    assert unknown_metrics(expressions(), exposed(worker), recorded) == set()


def test_an_unknown_metric_goes_red(worker: Worker) -> None:
    text = 'sum(rate(redraft_tokens_accepted_total{domain=~"redraft_x"}[5m])) / redraft:acceptance:5m'
    assert unknown_metrics([text], exposed(worker), {"redraft:acceptance:10m"}) == {
        "redraft_tokens_accepted_total",
        "redraft:acceptance:5m",
    }


def test_the_loops_series_have_their_values(worker: Worker) -> None:
    """Not only their names: one sample, unseen; one round with a gain; servers that answer; one worker."""
    expected = {
        "redraft_stream_length": 1,
        "redraft_stream_unseen": 1,
        "redraft_last_round_gain": 0.02,
        "redraft_redis_up": 1,
        "redraft_registry_up": 1,
        "redraft_decoded_tokens_total": 39,
        "redraft_worker_domains_behind": 0,
    }
    assert {name: worker.metric(name) for name in expected} == expected
    assert 0 <= worker.metric("redraft_round_seconds_ago") < 600
    assert worker.metric("redraft_decode_seconds_total") > 0


def test_the_dashboard_is_one_that_grafana_can_provision() -> None:
    """Its datasource is the provisioned one, ids differ, panels don't overlap, and each axis has its unit."""
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/redraft.yml").read_text())["providers"]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"
    assert {target["datasource"]["uid"] for panel in panels() for target in panel["targets"]} == {
        source["uid"]
    }
    assert len({panel["id"] for panel in panels()}) == len(panels())
    cells = [
        (x, y)
        for panel in panels()
        for grid in [panel["gridPos"]]
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    both = next(panel for panel in panels() if "Acceptance (left)" in panel["title"])
    assert len(both["targets"]) == 2, "the two curves that only together show a slow-down"


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[httpx.Client]:
    """A real Prometheus with our rules, scraping `target` every second."""
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (job,) = config["scrape_configs"]
    del job["dns_sd_configs"]
    job["static_configs"] = [{"targets": [target]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(RULES, folder)
    port = free_port()
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=10) as client:
                wait_for(lambda: _ready(client), seconds=60)
                yield client
        finally:
            process.terminate()
            process.wait(timeout=20)


def _ready(client: httpx.Client) -> bool:
    """It has begun to scrape; while it starts, it refuses connections, then answers 503."""
    try:
        answer = client.get("/query", params={"query": "up == 1"})
    except httpx.TransportError:
        return False
    return answer.status_code == 200 and answer.json()["data"]["result"] != []


@needs_prometheus
def test_a_real_prometheus_scrapes_and_evaluates(worker: Worker, tmp_path: Path) -> None:
    """The worker's series arrive, every rule is healthy, and the dashboard's expressions are answered."""
    folder = tmp_path / "prometheus"
    folder.mkdir()

    with prometheus(folder, worker.url.removeprefix("http://")) as client:

        def ask(query: str) -> Any:
            return client.get("/query", params={"query": query}).json()

        wait_for(lambda: ask("redraft_stream_length")["data"]["result"] != [], seconds=60)
        (found,) = ask('redraft_stream_length{domain="default"}')["data"]["result"]
        assert float(found["value"][1]) == 1
        answers = {one: ask(one)["status"] for one in expressions()}
        assert {one: status for one, status in answers.items() if status != "success"} == {}

        def healthy() -> bool:
            groups = client.get("/rules").json()["data"]["groups"]
            return all(rule["health"] == "ok" for group in groups for rule in group["rules"])

        wait_for(healthy, seconds=60)
        groups = client.get("/rules").json()["data"]["groups"]
        assert len([rule for group in groups for rule in group["rules"]]) == len(rules())
