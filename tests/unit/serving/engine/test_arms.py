"""Two drafts of one domain at once: each request on its own arm, and none fails when an arm goes away."""

from __future__ import annotations

from pathlib import Path

import pytest
from redraft_models.loading import ModelPair
from redraft_serving.engine.interface import CHALLENGER, CHAMPION, PREVIOUS, domain_and_arm, lane

from .conftest import MakePair, Serve
from .oracle import TIE, greedy, random_prompts
from .test_swap import make_adapter


@pytest.fixture
def pair(make_pair: MakePair) -> ModelPair:
    return make_pair("random", max_model_len=512)


def test_a_lane_names_domain_and_arm() -> None:
    for arm in (CHAMPION, CHALLENGER, PREVIOUS):
        assert domain_and_arm(lane("support.eu", arm)) == ("support.eu", arm)
    assert lane("support", CHAMPION) == "support"


def test_each_request_belongs_to_its_arm(pair: ModelPair, run_engine: Serve, tmp_path: Path) -> None:
    found = [(p, *greedy(pair.target.module, p, 60)) for p in random_prompts(9, pair.vocab_size, 7)]
    wanted = [(prompt, answer) for prompt, answer, gap in found if gap >= TIE][:6]
    served = run_engine(pair, num_speculative_tokens=3, max_num_seqs=8)
    served.engine.swap("default", make_adapter(pair, tmp_path / "a", 1), 1).result(30)
    served.engine.swap("default", make_adapter(pair, tmp_path / "b", 2), 2, CHALLENGER).result(30)
    arms = [CHAMPION, CHALLENGER] * 3
    answers = [
        served.ask(prompt, 60, ignore_eos=True, arm=arm)
        for (prompt, _), arm in zip(wanted, arms, strict=True)
    ]
    for (_, answer), arm, done in zip(wanted, arms, answers, strict=True):
        assert done.wait().ids == answer, "the text is the target's on either arm"
        [(version, rounds)] = done.statistics.draft_versions
        assert (version, rounds > 0) == (1 if arm == CHAMPION else 2, True)
        assert 0 < done.statistics.draft_tested <= done.statistics.tested
    by_arm = {draft.arm: draft for draft in served.engine.statistics().drafts}
    assert {arm: draft.version for arm, draft in by_arm.items()} == {CHAMPION: 1, CHALLENGER: 2}
    for arm, draft in by_arm.items():
        mine = [done for done, one in zip(answers, arms, strict=True) if one == arm]
        assert draft.tested == sum(done.statistics.draft_tested for done in mine)
        assert draft.accepted == sum(done.statistics.draft_accepted for done in mine)


def test_a_retired_arm_goes_on_with_the_champion(pair: ModelPair, run_engine: Serve, tmp_path: Path) -> None:
    [prompt] = random_prompts(1, pair.vocab_size, 7)
    answer, _ = greedy(pair.target.module, prompt, 200)
    served = run_engine(pair, num_speculative_tokens=3)
    adapter = make_adapter(pair, tmp_path / "b", 2)
    checksum = served.engine.swap("default", adapter, 2, CHALLENGER).result(30).checksum
    stream = served.ask(prompt, 200, ignore_eos=True, arm=CHALLENGER)
    while not stream.emissions:
        pass
    assert served.engine.swap("default", adapter, 2).result(30).checksum == checksum
    served.engine.retire("default", CHALLENGER)
    assert stream.wait().ids == answer
    [draft] = served.engine.statistics().drafts
    assert (draft.arm, draft.version) == (CHAMPION, 2)
    late = served.ask(prompt, 20, ignore_eos=True, arm=CHALLENGER).wait()
    assert late.ids == answer[:20]
    assert [version for version, _ in late.statistics.draft_versions] == [2]


def test_the_base_draft_can_be_an_arm(pair: ModelPair, run_engine: Serve, tmp_path: Path) -> None:
    served = run_engine(pair, num_speculative_tokens=3)
    served.engine.swap("default", make_adapter(pair, tmp_path / "a", 1), 1).result(30)
    served.engine.swap("default", None, "base", PREVIOUS).result(30)
    control = served.ask([5, 6, 7], 30, ignore_eos=True, arm=PREVIOUS).wait()
    champion = served.ask([5, 6, 7], 30, ignore_eos=True).wait()
    assert [version for version, _ in control.statistics.draft_versions] == ["base"]
    assert [version for version, _ in champion.statistics.draft_versions] == [1]


def test_the_champion_cannot_be_retired(pair: ModelPair, run_engine: Serve) -> None:
    with pytest.raises(ValueError, match="swapped, not retired"):
        run_engine(pair).engine.retire("default", CHAMPION)


def test_arms_keep_their_prefixes_apart(pair: ModelPair, run_engine: Serve, tmp_path: Path) -> None:
    """A repeated prompt is accepted alike on its arm, whatever the other arm has read or lost meanwhile."""
    [prompt] = random_prompts(1, pair.vocab_size, 40)
    served = run_engine(pair, num_speculative_tokens=3)
    served.engine.swap("default", make_adapter(pair, tmp_path / "a", 1), 1).result(30)
    served.engine.swap("default", make_adapter(pair, tmp_path / "b", 2), 2, CHALLENGER).result(30)

    def accepted(arm: str) -> int:
        return served.ask(prompt, 40, ignore_eos=True, arm=arm).wait().statistics.draft_accepted

    first = {arm: accepted(arm) for arm in (CHAMPION, CHALLENGER)}
    assert {arm: accepted(arm) for arm in (CHAMPION, CHALLENGER)} == first
    served.engine.retire("default", CHALLENGER)
    assert accepted(CHAMPION) == first[CHAMPION]
