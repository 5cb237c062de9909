"""The demo, phase by phase: serve and measure the first draft, train, swap under traffic, serve and
measure again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from redraft_ops.demo.client import Answer, Client
from redraft_ops.demo.numbers import LiveCounts, Speed, live, longest_pause, speed, usual_pause
from redraft_ops.demo.oracle import all_equal, greedy_texts
from redraft_ops.demo.plan import DemoPlan
from redraft_ops.demo.result import DemoResult, Side
from redraft_ops.demo.setup import choose_prompts, demo_settings, prepare, start_processes
from redraft_ops.demo.swap import RoundOutcome, RoundUnderTraffic
from redraft_ops.demo.traffic import Prompts, run_all
from redraft_ops.errors import DemoFailed
from redraft_ops.measuring import Measured, measure_versions, paired_gain
from redraft_ops.processes import Children, sigterm_as_exit
from redraft_ops.progress import Phases
from redraft_ops.settings import as_environment
from redraft_ops.stack import Stack, open_stack

T = TypeVar("T")


def run_demo(plan: DemoPlan, out: Path, phases: Phases) -> DemoResult:
    """Run the plan in `out` and leave its data there; whatever was started is stopped, however it ends.

    Raises UsageError for a folder that is not ours, DemoFailed where the loop does not close, ChildEnded.
    """
    started = time.monotonic()
    with sigterm_as_exit():
        prepare(out)
        settings = demo_settings(plan, out)
        with open_stack(settings) as stack:
            environment = {**as_environment(settings), **stack.environment()}
            with Children(out / "logs", environment) as children:
                return _Run(plan, stack, children, phases, started).result()


@dataclass
class _Run:
    """The state that the phases share."""

    plan: DemoPlan
    stack: Stack
    children: Children
    phases: Phases
    started: float
    answers: list[Answer] = field(default_factory=list)

    def result(self) -> DemoResult:
        """All phases in their order."""
        prompts = self._phase("choose prompts", lambda: choose_prompts(self.plan))
        client = self._phase(
            "start Valkey, MLflow, serving and training worker",
            lambda: start_processes(self.plan, self.stack.settings, self.children),
        )
        self._probe(client, prompts.probes[:1], "warm up")
        off, texts_off = self._probe(client, prompts.probes, "one stream, speculation off", speculate=False)
        speed_before, texts_before = self._probe(client, prompts.probes, "one stream, base draft")
        live_before = self._traffic(client, prompts.traffic, "traffic, base draft")
        outcome = self._rounds(client, prompts.spare)
        name = f"version {outcome.result['version']}"
        live_after = self._traffic(client, prompts.fresh, f"fresh traffic, {name}")
        speed_after, texts_after = self._probe(client, prompts.probes, f"one stream, {name}")
        before, after = self._measure(int(outcome.result["version"]))
        equal = self._greedy(prompts.probes, [texts_off, texts_before, texts_after])
        first = _side("base draft", before, live_before, speed_before)
        second = _side(name, after, live_after, speed_after)
        gain = paired_gain(before.report, after.report, self.stack.settings.gate.confidence)
        return DemoResult(
            before=first,
            after=second,
            gain=gain,
            off=off,
            num_speculative_tokens=self.plan.num_speculative_tokens,
            decision=str(outcome.result.get("reason")),
            longest_pause_seconds=longest_pause(outcome.answers, *outcome.swap) if outcome.swap else 0.0,
            usual_pause_seconds=usual_pause(outcome.answers),
            streams_during_swap=_running_at(outcome),
            requests=len(self.answers),
            failures=tuple(answer.error for answer in self.answers if answer.error is not None),
            greedy_equal=equal,
            seconds=time.monotonic() - self.started,
        )

    def _phase(self, title: str, work: Callable[[], T]) -> T:
        with self.phases.phase(title):
            return work()

    def _probe(
        self, client: Client, prompts: list[str], title: str, *, speculate: bool = True
    ) -> tuple[Speed, list[str]]:
        """One greedy stream at a time, not captured: what a single user sees."""
        with self.phases.phase(title, len(prompts)) as bar:
            found = []
            for prompt in prompts:
                options: dict[str, Any] = {"temperature": 0.0, "max_tokens": self.plan.probe_tokens}
                found.append(client.ask(prompt, speculate=speculate, store=False, **options))
                bar.advance()
        self.answers += found
        return speed(found), [answer.text for answer in found]

    def _traffic(self, client: Client, prompts: list[str], title: str) -> LiveCounts:
        with self.phases.phase(title, len(prompts)) as bar:
            found = run_all(client, prompts, self.plan.clients, lambda _: bar.advance(), **self._sampling())
        self.children.check()
        self.answers += found
        return live(found)

    def _sampling(self) -> dict[str, Any]:
        return {"temperature": self.plan.temperature, "max_tokens": self.plan.max_tokens}

    def _rounds(self, client: Client, spare: Prompts) -> RoundOutcome:
        """The training rounds; the last promoted one counts. Raises DemoFailed where none is."""
        outcomes = []
        for number in range(1, self.plan.rounds + 1):
            with self.phases.phase(
                f"training round {number}, then its swap under {self.plan.clients} streams"
            ) as bar:
                job = RoundUnderTraffic(self.stack, client, self.plan, spare, self.children, self._sampling())
                outcomes.append(job.run(bar, lambda _: None))
            self.answers += outcomes[-1].answers
            self.phases.say(f"  {outcomes[-1].result.get('decision')}: {outcomes[-1].result.get('reason')}")
        promoted = [outcome for outcome in outcomes if outcome.promoted]
        if not promoted:
            raise DemoFailed(f"no draft was promoted: {outcomes[-1].result.get('reason')}")
        return promoted[-1]

    def _measure(self, version: int) -> tuple[Measured, Measured]:
        """Both drafts on the same held-out samples, once the last answers are in the stream."""
        versions = [None, version]
        before, after = self._phase(
            "measure both drafts on held-out prompts",
            lambda: measure_versions(self.stack, self.plan.domain, versions),
        )
        return before, after

    def _greedy(self, prompts: list[str], served: list[list[str]]) -> bool:
        count = self.plan.greedy_checks
        settings = self.stack.settings
        references = self._phase(
            "the target's own greedy text, by transformers",
            lambda: greedy_texts(
                settings.models,
                settings.cache_dir,
                prompts[:count],
                self.plan.probe_tokens,
                chat=self.plan.pair == "default",
            ),
        )
        return all(all_equal(texts[:count], references) for texts in served)


def _side(name: str, measured: Measured, counts: LiveCounts, one_stream: Speed) -> Side:
    report = measured.report
    return Side(name, report.interval(), report.requests, report.tokens, counts, one_stream)


def _running_at(outcome: RoundOutcome) -> int:
    """Streams that were receiving text while the draft was swapped."""
    if outcome.swap is None:
        return 0
    begin, end = outcome.swap
    return sum(1 for a in outcome.answers if a.arrivals and a.arrivals[0] <= end and a.arrivals[-1] >= begin)
