"""The pieces of the supervisor: waits, logs, ports, the guard, and the loop with tiny processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from redraft_ops.settings import Settings, SettingsError, load_settings
from redraft_ops.up.backoff import Backoff
from redraft_ops.up.guard import listen
from redraft_ops.up.output import last_words, rotate
from redraft_ops.up.plan import make_plan
from redraft_ops.up.probes import free_at_or_after

SCRIPT = """
import sys
from pathlib import Path
from redraft_ops.errors import UsageError
from redraft_ops.logs import configure_logging
from redraft_ops.up.service import Service
from redraft_ops.up.supervisor import Supervisor

configure_logging()
services = [
    Service(name, ["sh", "-c", code], lambda pid: True, first=name == "first", grace_seconds=grace)
    for name, code, grace in SERVICES
]
try:
    Supervisor(services, Path(sys.argv[1]), 1000, 1).run()
except UsageError as error:
    print(f"refused: {error}", file=sys.stderr)
    sys.exit(2)
"""
SLEEPER = "echo here; sleep 600 & wait"
Start = Callable[..., "Run"]


class Run:
    """A supervisor of shell commands in a process of its own."""

    def __init__(self, folder: Path, services: list[tuple[str, str, float]]) -> None:
        self.folder = folder
        script = SCRIPT.replace("SERVICES", repr(services))
        with (folder / "up.log").open("wb") as log:
            self.process = subprocess.Popen([sys.executable, "-c", script, str(folder / "logs")], stderr=log)

    @property
    def log(self) -> str:
        return (self.folder / "up.log").read_text()

    def await_line(self, text: str, count: int = 1) -> None:
        wait_for(lambda: self.log.count(text) >= count, lambda: f"{count} x {text!r} in {self.log}")

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


def wait_for(condition: Callable[[], bool], what: Callable[[], str], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def gone(processes: list[psutil.Process]) -> bool:
    return all(not p.is_running() or p.status() == psutil.STATUS_ZOMBIE for p in processes)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    runs: list[Run] = []

    def begin(*services: tuple[str, str, float]) -> Run:
        runs.append(Run(tmp_path, list(services)))
        return runs[-1]

    yield begin
    for run in runs:
        if run.process.poll() is None:
            run.process.terminate()
        run.process.wait(30)


def test_waits_double_to_a_limit_and_begin_again_after_a_minute_of_life() -> None:
    backoff = Backoff()
    assert [backoff.after(0.5) for _ in range(9)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert backoff.after(61.0) == 1
    assert backoff.after(3.0) == 2


def test_a_log_is_cut_while_its_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    with log.open("a") as writer:
        for number in range(3):
            writer.write(f"{number}" * 100 + "\n")
            writer.flush()
            assert rotate(log, 50, kept=2)
        writer.write("after\n")
    assert log.read_text() == "after\n"
    assert (tmp_path / "part.log.1").read_text().startswith("2")
    assert (tmp_path / "part.log.2").read_text().startswith("1")
    assert not (tmp_path / "part.log.3").exists()
    assert not rotate(log, 50, kept=2)
    assert not rotate(tmp_path / "absent.log", 50, kept=2)


def test_last_words_are_the_last_lines_of_this_life(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    log.write_text("an earlier life\n")
    since = log.stat().st_size
    with log.open("a") as writer:
        writer.write("one\ntwo\n\nthree\nfour\n")
    assert last_words(log, since) == "two | three | four"
    assert last_words(log, since + 10_000).startswith("two")
    assert last_words(tmp_path / "absent") == ""


def test_the_guard_knows_who_is_left() -> None:
    assert listen(["+11\n", "+12\n", "-11\n", "+13\n"]) == {12, 13}


def test_a_taken_port_gives_the_next_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert free_at_or_after(port) > port
        with pytest.raises(OSError, match="all taken"):
            free_at_or_after(port, most=1)


def plan_of(tmp_path: Path, **values: object) -> Settings:
    return Settings.model_validate({"data_dir": tmp_path, "serving": {"port": 0}, **values})


def test_given_servers_are_used_and_not_started(tmp_path: Path) -> None:
    given = plan_of(
        tmp_path, redis_url="redis://u:secret@there:1/0", mlflow_tracking_uri="http://u:secret@m:5"
    )
    plan = make_plan(given)
    assert [one.name for one in plan.services()] == ["serve", "worker", "beat"]
    assert plan.environment()["REDRAFT_REDIS_URL"] == "redis://u:secret@there:1/0"
    assert plan.environment()["MLFLOW_TRACKING_URI"] == "http://u:secret@m:5"
    assert "secret" not in "".join(plan.places())


def test_the_embedded_ones_stop_last_and_a_taken_port_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        plan = make_plan(plan_of(tmp_path, up={"mlflow_port": port}))
    assert [one.name for one in plan.services()] == ["serve", "worker", "beat", "mlflow", "valkey"]
    assert plan.mlflow_port != port
    assert f"port {port} is taken" in plan.places()[2]
    assert plan.serving_port
    less = make_plan(plan_of(tmp_path), frozenset({"mlflow", "worker"}))
    assert [one.name for one in less.services()] == ["serve", "beat", "valkey"]


def test_a_part_that_dies_comes_back_and_its_children_do_not_stay(start: Start) -> None:
    run = start(("first", SLEEPER, 5.0), ("other", SLEEPER, 5.0))
    run.await_line("ready", 2)
    shell = next(p for p in run.descendants() if p.name() == "sh")
    family = [shell, *shell.children()]
    shell.kill()
    run.await_line("died with signal SIGKILL: here; restarting in 1 s")
    run.await_line("ready", 3)
    assert gone(family)


def test_a_wrong_setting_ends_all_and_is_told(start: Start) -> None:
    run = start(("first", SLEEPER, 5.0), ("wrong", "echo setting x is wrong; exit 2", 5.0))
    assert run.process.wait(30) == 2
    assert "refused: wrong can't start: setting x is wrong" in run.log
    assert "first: stopping" in run.log


def test_the_others_wait_for_the_first_and_all_end_in_order(start: Start, tmp_path: Path) -> None:
    code = 'trap "sleep 0.3; echo $0 >> ORDER; exit 0" TERM; sleep 600 & wait'.replace(
        "ORDER", str(tmp_path / "order")
    )
    run = start(*((name, code.replace("$0", name), 5.0) for name in ("serve", "worker", "first")))
    run.await_line("ready", 3)
    assert run.log.index("first: ready") < run.log.index("serve: started")
    family = run.descendants()
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(30) == 0
    assert (tmp_path / "order").read_text().split() == ["serve", "worker", "first"]
    assert gone(family)


def test_a_second_signal_hurries_and_the_deaf_are_killed(start: Start) -> None:
    deaf = 'trap "" TERM; echo here; sleep 600'
    run = start(("first", deaf, 600.0), ("other", deaf, 600.0))
    run.await_line("ready", 2)
    time.sleep(0.3)
    family = run.descendants()
    run.process.send_signal(signal.SIGINT)
    run.await_line("first: stopping")
    assert run.process.poll() is None
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(30) == 0
    run.await_line("did not end in time, killed", 2)
    assert gone(family)


@pytest.mark.parametrize("lose_the_guard", [False, True])
def test_nothing_outlives_a_killed_supervisor(start: Start, lose_the_guard: bool) -> None:
    run = start(("first", SLEEPER, 5.0), ("other", SLEEPER, 5.0))
    run.await_line("ready", 2)
    if lose_the_guard:
        next(p for p in run.descendants() if "guard" in " ".join(p.cmdline())).kill()
        run.await_line("guard: died; started again")
        time.sleep(0.5)
    family = run.descendants()
    assert len(family) == 5
    os.kill(run.process.pid, signal.SIGKILL)
    wait_for(lambda: gone(family), lambda: f"left: {family}")


def test_logs_are_cut_by_size(start: Start, tmp_path: Path) -> None:
    run = start(("first", "yes | head -c 5000; sleep 600", 5.0))
    run.await_line("ready")
    wait_for((tmp_path / "logs" / "first.log.1").exists, lambda: "no file put aside")
    assert (tmp_path / "logs" / "first.log.1").stat().st_size == 5000


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"a": "a"}, "own draft"),
        ({"a": "b", "b": "c"}, "name the last one"),
        ({"a b": "c"}, "is no name"),
    ],
)
def test_shared_drafts_are_checked(shares: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        load_settings({"shared_drafts": shares})
    assert load_settings({"shared_drafts": {"faq": "support"}}).shared_drafts == {"faq": "support"}
