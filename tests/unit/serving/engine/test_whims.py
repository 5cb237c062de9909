"""Whatever the policy decides, the text is the target's own: a policy of whims, on the CPU and on a GPU.

It takes any proposer for any row, any number of tokens, and stops drafting early by the draft's confidence.
Chi-square limits are exceeded by a right engine in one of 10,000 runs.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from redraft_models.loading import ModelPair, load_pair
from redraft_models.settings import ModelSettings
from redraft_models.toy import write_toy_pair
from redraft_serving.engine.draft_model import DraftModelProposer
from redraft_serving.policy.types import Plan, RowPlan, RowView

from .conftest import Serve, Served
from .oracle import TIE, greedy, random_prompts
from .test_law import FIRST_WORD, words
from .test_sampling import LIMIT_4_DEGREES, P, chi_square

Load = Callable[[str, str], ModelPair]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class Whims:
    """Decides by chance, within what is offered."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def plan(self, rows: Sequence[RowView]) -> Plan:
        return Plan(tuple(self._row(row) for row in rows), "decided", 1.0)

    def _row(self, row: RowView) -> RowPlan:
        name, most = self.random.choice([*sorted(row.offers.items()), (None, 0)])
        return RowPlan(name, self.random.randint(1, most) if name else 0)

    def survival(self, domain: str, temperature: str, confidences: Sequence[float]) -> float:
        return min(confidences)

    def keep_drafting(self, plan: Plan, step: int, survivals: Sequence[float]) -> bool:
        return max(survivals) > self.random.random()


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """`load(kind, device)`: one toy pair of each kind, on any device."""
    written: dict[str, tuple[Path, Path]] = {}

    def make(kind: str, device: str) -> ModelPair:
        if kind not in written:
            written[kind] = write_toy_pair(tmp_path_factory.mktemp(kind), kind)  # type: ignore[arg-type]
        target, draft = (str(folder) for folder in written[kind])
        settings = ModelSettings(target=target, draft=draft, device=device, max_model_len=2048)
        return load_pair(settings, Path(target).parent)

    return make


def whimsical(served: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    whims = Whims(7)
    for name in ("plan", "survival", "keep_drafting"):
        monkeypatch.setattr(served.engine.policy, name, getattr(whims, name))
    return served


@pytest.mark.parametrize("device", DEVICES)
def test_greedy_text(load: Load, run_engine: Serve, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    target = load("random", "cpu").target.module
    answers = [(prompt, *greedy(target, prompt, 60)) for prompt in random_prompts(16, 61, seed=3)]
    clear = [(prompt, answer) for prompt, answer, gap in answers if gap >= TIE]
    assert len(clear) >= 10
    served = whimsical(run_engine(load("random", device), max_num_seqs=4), monkeypatch)
    asked = [
        served.ask(prompt, 60, ignore_eos=True, prediction_ids=tuple(answer[turn:]))
        for turn, (prompt, answer) in enumerate(clear)
    ]
    assert [one.wait().ids for one in asked] == [answer for _, answer in clear]
    used = sum((Counter(one.statistics.proposers) for one in asked), Counter[str]())
    assert used.keys() == {"draft", "ngram", "prediction", "plain"}


def drawn(served: Served) -> tuple[float, Counter[str]]:
    """The statistic of 8,000 tokens at temperature 1, without a request's seed, and who proposed."""
    asked = [
        served.ask("w0", 1000, temperature=1.0, capture=False, prediction_ids=(3, 4, 5, 6, 7) * 20)
        for _ in range(8)
    ]
    statistic = chi_square(words([one.wait(120).ids for one in asked]), P)
    return statistic, sum((Counter(one.statistics.proposers) for one in asked), Counter[str]())


@pytest.mark.parametrize("device", DEVICES)
def test_the_sampled_law(load: Load, run_engine: Serve, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr(secrets, "randbits", Random(11).getrandbits)
    statistic, used = drawn(whimsical(run_engine(load("table", device), max_num_seqs=8), monkeypatch))
    assert statistic < LIMIT_4_DEGREES
    assert used.keys() >= {"draft", "ngram", "plain"}


def test_dropping_a_drawn_token_for_what_it_is_goes_red(
    load: Load, run_engine: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrong variant: a proposal ends before a certain word, once that word is drawn."""
    right, unwanted = DraftModelProposer._close, FIRST_WORD + 1

    def picky(self: DraftModelProposer, group: Any, proposal: Any, *rest: Any) -> None:
        right(self, group, proposal, *rest)
        for b in group.members:
            drawn = proposal.tokens[b, : proposal.limits[b]].tolist()
            proposal.limits[b] = drawn.index(unwanted) if unwanted in drawn else len(drawn)

    monkeypatch.setattr(secrets, "randbits", Random(11).getrandbits)
    monkeypatch.setattr(DraftModelProposer, "_close", picky)
    statistic, _ = drawn(whimsical(run_engine(load("table", "cpu"), max_num_seqs=8), monkeypatch))
    assert statistic > 2 * LIMIT_4_DEGREES
