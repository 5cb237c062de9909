"""A drift run: traffic moves from prose to functions, acceptance falls, the loop notices by itself, trains,
tries the new draft on a share of the traffic, and acceptance is back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redraft_ops.demo.client import Answer, Client
from redraft_ops.demo.plan import DemoPlan
from redraft_ops.demo.prompts import docstring_prompts, topic_prompts
from redraft_ops.demo.setup import prepare, start_processes
from redraft_ops.demo.traffic import Prompts, running_streams
from redraft_ops.drift.plan import DriftPlan, drift_settings
from redraft_ops.drift.result import DriftResult, Mark, moving_acceptance
from redraft_ops.drift.watch import VersionMarks
from redraft_ops.processes import Children, sigterm_as_exit
from redraft_ops.progress import Phases
from redraft_ops.settings import as_environment
from redraft_ops.stack import Stack, open_stack

FUNCTION_CHARACTERS, PROSE_CHARACTERS = (100, 420), (60, 700)
POLL_SECONDS = 1.0


def run_drift(plan: DriftPlan, out: Path, phases: Phases) -> DriftResult:
    """Run the plan in `out`; whatever was started is stopped, however it ends.

    Raises UsageError for a folder that is not ours, DemoFailed where nothing gets ready, ChildEnded.
    """
    started = time.monotonic()
    with sigterm_as_exit():
        prepare(out)
        settings = drift_settings(plan, out)
        with open_stack(settings) as stack:
            environment = {**as_environment(settings), **stack.environment()}
            with Children(out / "logs", environment) as children:
                with phases.phase("start Valkey, MLflow, serving worker, training worker and beat"):
                    demo = DemoPlan(domain=plan.domain, ready_seconds=plan.ready_seconds)
                    client = start_processes(demo, settings, children)
                    children.start("beat", ["beat"])
                result = _Run(plan, stack, client, children, phases).run()
    result.seconds = time.monotonic() - started
    return result


@dataclass
class _Run:
    """The phases and what they share."""

    plan: DriftPlan
    stack: Stack
    client: Client
    children: Children
    phases: Phases
    result: DriftResult = field(default_factory=DriftResult)

    def run(self) -> DriftResult:
        """Both kinds of traffic, watched all along."""
        plan, result = self.plan, self.result
        functions = Prompts(docstring_prompts(plan.seed, FUNCTION_CHARACTERS))
        prose = Prompts(topic_prompts(plan.seed, PROSE_CHARACTERS))
        with VersionMarks(self.client, result, POLL_SECONDS):
            self._send("prose, to learn from", prose, plan.first_requests)
            self._ask_for_a_round()
            self._send("prose, until its draft serves", prose, plan.serving_requests, result.served)
            self._send("prose, the level", prose, plan.level_requests)
            result.level_before = moving_acceptance(result.answers, plan.level_requests)[-1]
            result.moved_at = len(result.answers)
            result.marks.append(Mark(result.moved_at, "moved", "traffic moves to functions"))
            self._send(
                "functions, until acceptance is back", functions, plan.second_requests, self._recovered
            )
        return result

    def _ask_for_a_round(self) -> None:
        """The one round that somebody asks for: the draft that the traffic then moves away from."""
        from redraft_queue.celery_app import build_app, request_round

        request_round(build_app(self.stack.redis_url, self.stack.settings.queue), self.plan.domain)

    def _recovered(self) -> bool:
        return self.result.recovered_after(self.plan.recovered_share) is not None

    def _send(
        self, title: str, prompts: Prompts, most: int, done: Callable[[], object] = lambda: False
    ) -> None:
        """Send prompts at the plan's pace until `most` are answered, or `done`."""
        first = len(self.result.answers)
        sampling: dict[str, Any] = {"temperature": 0.0, "max_tokens": self.plan.max_tokens}
        with self.phases.phase(title, most) as bar:

            def arrived(answer: Answer) -> None:
                self.result.answers.append(answer)
                bar.advance()
                time.sleep(self.plan.think_seconds)

            with running_streams(self.client, prompts, self.plan.clients, arrived, **sampling):
                while not done() and len(self.result.answers) - first < most:
                    self.children.check()
                    time.sleep(POLL_SECONDS)
