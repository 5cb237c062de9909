"""One part of the deployment as a process of its own group: started, watched, started again, ended."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from redraft_ops.up.backoff import Backoff
from redraft_ops.up.guard import Guard
from redraft_ops.up.output import last_words
from redraft_ops.up.service import Service

logger = logging.getLogger("redraft_ops.up")

WRONG_SETTING = 2
"""Exit code of a command whose settings have to be changed: starting it again changes nothing."""
TICK_SECONDS = 0.1


@dataclass
class Part:
    """The state of one service; `step` moves it on, and one line is logged for each event."""

    service: Service
    log: Path
    guard: Guard
    backoff: Backoff = field(default_factory=Backoff)
    process: subprocess.Popen[bytes] | None = None
    ready: bool = False
    been_ready: bool = False
    _started: float = 0.0
    _log_start: int = 0
    _start_at: float = 0.0

    def step(self, now: float) -> str | None:
        """Start what is due, notice a death, ask whether it is ready. `now` is of the monotonic clock.

        Returns the last words of a part that a wrong setting ended, else None.
        """
        if self.process is None:
            if now >= self._start_at:
                self._start(now)
            return None
        code = self.process.poll()
        if code is not None:
            return self._died(code, now)
        if not self.ready and _answers(self.service, self.process.pid):
            self.ready = self.been_ready = True
            logger.info("%s: ready after %.1f s", self.service.name, time.monotonic() - self._started)
        return None

    def _start(self, now: float) -> None:
        try:
            self.process = self._spawn()
        except OSError as error:
            # No memory, no process numbers or no disk left: as passing as a death.
            self._wait(self.backoff.after(0.0), now, f"could not be started ({error})")
            return
        self.guard.watch(self.process.pid)
        self._started = now
        logger.info("%s: started (process %d)", self.service.name, self.process.pid)

    def _spawn(self) -> subprocess.Popen[bytes]:
        """The process in a group of its own, so that a Ctrl-C of the terminal does not reach it."""
        with self.log.open("ab") as output:
            self._log_start = output.tell()
            return subprocess.Popen(
                self.service.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.service.environment, "PYTHONUNBUFFERED": "1"},
                process_group=0,
            )

    def _died(self, code: int, now: float) -> str | None:
        words = last_words(self.log, self._log_start) or "no output"
        self._clear()
        how = f"died with {_code(code)}: {words}"
        if code == WRONG_SETTING:
            logger.error("%s: %s", self.service.name, how)
            return words
        self._wait(self.backoff.after(now - self._started), now, how)
        return None

    def _wait(self, seconds: float, now: float, how: str) -> None:
        self._start_at = now + seconds
        logger.warning("%s: %s; restarting in %.0f s", self.service.name, how, seconds)

    def ask_to_end(self) -> None:
        """Send SIGTERM."""
        if self.process is not None:
            logger.info("%s: stopping", self.service.name)
            send = os.killpg if self.service.whole_group else os.kill
            _sent(send, self.process.pid, signal.SIGTERM)

    def ended(self) -> bool:
        """Whether it is gone, with all that it started."""
        if self.process is not None and self.process.poll() is not None:
            self._clear()
        return self.process is None

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None:
            if self.process.poll() is None:
                logger.warning("%s: did not end in time, killed", self.service.name)
            _sent(os.killpg, self.process.pid, signal.SIGKILL)
            self.process.wait()
            self._clear()

    def _clear(self) -> None:
        """What a dead process started must not live on beside its successor."""
        if self.process is not None:
            _sent(os.killpg, self.process.pid, signal.SIGKILL)
            self.guard.forget(self.process.pid)
        self.process, self.ready = None, False


def _answers(service: Service, pid: int) -> bool:
    try:
        return service.ready(pid)
    except OSError:
        return False


def _code(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"


def _sent(send: object, pid: int, number: signal.Signals) -> None:
    try:
        send(pid, number)  # type: ignore[operator]  # os.kill or os.killpg
    except (ProcessLookupError, PermissionError):
        return
