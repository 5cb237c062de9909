"""`redraft bench` as a person runs it, on toy pairs: real workers, real processes, files left behind."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redraft_models.fingerprints import tokenizer_fingerprint
from redraft_models.reading import read_tokenizer
from redraft_ops.bench.worker import find_endpoint
from redraft_ops.demo.prompts import word_prompts
from redraft_ops.valkey import free_port
from redraft_queue.records import Sample, ids_to_bytes
from redraft_queue.settings import QueueSettings
from redraft_queue.stream import SampleStream, connect

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
Redraft = Callable[..., subprocess.CompletedProcess[str]]
ASKED_FOR = {
    "name",
    "clients",
    "dtype",
    "tokens_per_second",
    "ttft_ms_p50",
    "itl_ms_p50",
    "itl_ms_p99",
    "acceptance_rate",
    "equal",
}
SIX = "off,auto,k3,generate,assisted,continuous_batching"


@pytest.fixture
def pair(toy_pair: Callable[[str], tuple[Path, Path]]) -> tuple[str, ...]:
    target, draft = toy_pair("random")
    return ("--target", str(target), "--draft", str(draft))


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    words = [f"w{n}" for n in range(61)]
    lines = [
        {"prompt": text, **({"domain": "other"} if n % 2 else {})}
        for n, text in enumerate(word_prompts(1, words, 6, 20))
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def sample(number: int, tokenizer: str) -> Sample:
    """A prompt of three tokens, answered with `number` + 2."""
    emitted = number + 2
    return Sample(
        request_id=f"r{number}",
        domain="default",
        created_ms=1_700_000_000_000,
        target_fingerprint="target",
        tokenizer_fingerprint=tokenizer,
        prompt_ids=(3, 4, 5 + number),
        output_ids=tuple(range(emitted)),
        topk_ids=ids_to_bytes(range(emitted)),
        topk_logprobs=struct.pack(f"<{emitted}e", *[-0.5] * emitted),
        tail_mass=struct.pack(f"<{emitted}e", *[0.25] * emitted),
        top_k_logged=1,
    )


def bench(redraft: Redraft, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = redraft("bench", "--json", "--out", "out", *arguments, timeout=300)
    assert done.returncode == code, done.stderr
    return dict(json.loads(done.stdout))


def test_six_ways_side_by_side(redraft: Redraft, pair: tuple[str, ...], prompts: str, tmp_path: Path) -> None:
    asked = ("--prompts", prompts, "--requests", "6", "--max-tokens", "20", "--clients", "1,3")
    found = bench(redraft, *pair, *asked, "--compare", SIX, "--goal-ttft-ms", "60000")
    runs = {(run["name"], run["clients"]): run for run in found["runs"]}
    names = SIX.split(",")
    assert set(runs) == {(name, n) for n in (1, 3) for name in names} - {("assisted", 3)}
    for run in found["runs"]:
        assert set(run) >= ASKED_FOR
        assert (run["failed"], run["requests"], run["equal"]) == (0, 6, True), run
        assert run["tokens"] == runs["off", run["clients"]]["tokens"], (
            "the same prompts have the same answers"
        )
        assert min(run["tokens_per_second"], run["ttft_ms_p50"], run["itl_ms_p50"]) > 0
        assert run["itl_ms_p50"] <= run["itl_ms_p99"]
        assert run["within_goal"] == 1.0
    assert runs["off", 1]["acceptance_rate"] is None
    assert 0 < runs["k3", 1]["acceptance_rate"] <= 1
    assert 0 < runs["assisted", 1]["acceptance_rate"] <= 1
    assert set(runs["k3", 1]["ratio_to"]) == {f"{n} float32" for n in names if n not in ("k3", "auto")}
    assert found["complete"] is True
    assert "assisted, 3 clients: left out" in " ".join(found["notes"])
    out = tmp_path / "out"
    assert json.loads((out / "bench.json").read_text()) == found
    assert "| continuous_batching | 3 |" in (out / "bench.md").read_text()
    assert (out / "bench.png").stat().st_size > 10_000
    assert "serving" in (out / "logs" / "float32" / "serve.log").read_text()


@pytest.fixture
def peer(clean_environment: dict[str, str], pair: tuple[str, ...], tmp_path: Path) -> Iterator[str]:
    """A server that stands for somebody else's; on the same model."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "redraft_ops",
        "serve",
        *pair,
        "--port",
        str(port),
        "--num-speculative-tokens",
        "0",
    ]
    environment = {**clean_environment, "XDG_DATA_HOME": str(tmp_path / "peer")}
    with (tmp_path / "peer.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 120
    while find_endpoint(url) is None and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    yield url
    process.terminate()
    process.wait(60)


def test_an_open_loop_with_a_peer(redraft: Redraft, pair: tuple[str, ...], prompts: str, peer: str) -> None:
    asked = ("--prompts", prompts, "--requests", "4", "--max-tokens", "8", "--rate", "20", "--clients", "2")
    found = bench(redraft, *pair, *asked, "--compare", "off,k2,generate", "--peer", f"other={peer}/v1")
    runs = {run["name"]: run for run in found["runs"]}
    assert set(runs) == {"off", "k2", "other"}
    assert all(run["clients"] is None and run["rate"] == 20 for run in found["runs"])
    assert all(run["equal"] is True and run["failed"] == 0 for run in found["runs"])
    assert (runs["other"]["dtype"], runs["other"]["reference"]) == ("as served", "off float32")
    assert "generate, 2 clients: left out" in " ".join(found["notes"])


def test_sampling_is_not_compared_and_capture_can_be_on(
    redraft: Redraft, pair: tuple[str, ...], prompts: str
) -> None:
    asked = ("--prompts", prompts, "--requests", "3", "--max-tokens", "8", "--temperature", "1")
    found = bench(redraft, *pair, *asked, "--compare", "off,off+capture,auto", "--dtype", "bfloat16")
    assert [run["name"] for run in found["runs"]] == ["off", "off+capture", "auto"]
    assert {run["equal"] for run in found["runs"]} == {None}
    assert {run["dtype"] for run in found["runs"]} == {"bfloat16"}


def test_time_that_is_up_is_said(redraft: Redraft, pair: tuple[str, ...], prompts: str) -> None:
    asked = ("--prompts", prompts, "--requests", "12", "--compare", "off,k2", "--max-seconds", "1")
    found = bench(redraft, *pair, *asked, "--max-tokens", "4", "--warm-up", "0")
    assert found["complete"] is False
    assert "stopped by --max-seconds 1" in found["notes"][-1]
    assert [run["requests"] for run in found["runs"]] == [1, 1]


def test_chosen_acceptance_and_profile(redraft: Redraft, pair: tuple[str, ...], prompts: str) -> None:
    asked = ("--prompts", prompts, "--requests", "4", "--max-tokens", "13", "--clients", "1,2")
    found = bench(redraft, *pair, *asked, "--acceptance", "0,1", "--compare", "off,k3")
    rates = [(run["name"], run["clients"], run["acceptance_rate"]) for run in found["runs"]]
    assert rates == [(name, n, a) for n in (1, 2) for name, a in (("off", None), ("k3", 0.0), ("k3", 1.0))]
    found = bench(redraft, *pair, *asked, "--profile", "--compare", "off,k3")
    assert [(run["name"], run["clients"]) for run in found["runs"]] == [
        (name, n) for n in (1, 2) for name in ("off", "k3")
    ]
    assert found["memory_bandwidth_gb_per_second"] > 0
    assert all(run["floor_ms"] > 0 and run["rounds"] > 0 for run in found["runs"])


def test_replay_takes_what_the_stream_holds(
    redraft: Redraft, pair: tuple[str, ...], prompts: str, redis_url: str
) -> None:
    """Greedy text of three prompts with lengths of their own; ends of the model's own are not waited for."""
    asked = ("--requests", "3", "--compare", "off,k2", "--warm-up", "0")
    empty = redraft("bench", *pair, "--replay", *asked, REDRAFT_REDIS_URL=redis_url)
    assert (empty.returncode, "0 different prompts" in empty.stderr) == (2, True), empty.stderr
    fingerprint = tokenizer_fingerprint(read_tokenizer(Path(pair[1]), "toy"))
    settings = QueueSettings()
    stream = SampleStream(connect(redis_url, settings), settings)
    stream.append([sample(n, fingerprint) for n in range(4)])
    found = redraft("bench", *pair, "--replay", *asked, "--json", REDRAFT_REDIS_URL=redis_url, timeout=300)
    assert found.returncode == 0, found.stderr
    runs = json.loads(found.stdout)["runs"]
    assert [run["tokens"] for run in runs] == [3 + 4 + 5] * 2
    assert [run["equal"] for run in runs] == [True, True]
    assert stream.position("default").length == 4, "a bench adds nothing to the stream"


def test_a_wrong_argument_is_exit_2(redraft: Redraft, pair: tuple[str, ...], prompts: str) -> None:
    done = redraft("bench", *pair, "--prompts", prompts, "--requests", "21")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "20 different prompts and 21 requests" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_peer_that_is_away_is_exit_1(redraft: Redraft, pair: tuple[str, ...], prompts: str) -> None:
    asked = ("--prompts", prompts, "--requests", "2", "--compare", "off")
    done = redraft("bench", *pair, *asked, "--peer", "away=http://127.0.0.1:9")
    assert (done.returncode, done.stdout) == (1, "")
    assert "--peer away at http://127.0.0.1:9" in done.stderr
