"""What goes wrong inside fails one request at most, and never the thread."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from redraft_models.loading import ModelPair
from redraft_serving.engine import local
from redraft_serving.engine.draft_model import DraftModelProposer
from redraft_serving.engine.interface import Emission, EngineDead, EngineFull

from .conftest import MakePair, Serve, Served
from .oracle import TIE, greedy

PROMPT = [5, 9, 17]


@pytest.fixture
def pair(make_pair: MakePair) -> ModelPair:
    return make_pair("random", max_model_len=512)


def poison(decoder: Any, monkeypatch: pytest.MonkeyPatch, when: Any) -> None:
    """Make a model's logits NaN in the rows that `when(tokens)` selects."""
    right = decoder.logits

    def poisoned(cache: Any, step: Any, tokens: torch.Tensor, keep: int) -> torch.Tensor:
        logits: torch.Tensor = right(cache, step, tokens, keep)
        logits[when(tokens)] = float("nan")
        return logits

    monkeypatch.setattr(decoder, "logits", poisoned)


def draft_decoder(served: Served) -> Any:
    proposer = served.engine.proposer
    assert isinstance(proposer, DraftModelProposer)
    return proposer.weights.base.decoder


def until_idle(served: Served) -> None:
    deadline = time.monotonic() + 30
    while served.engine.statistics().running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert served.engine.statistics().running == 0


def test_a_rotten_draft_falls_back_to_plain(
    pair: ModelPair, run_engine: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pair.draft is not None
    expected, gap = greedy(pair.target.module, PROMPT, 40)
    assert gap >= TIE
    served = run_engine(pair, num_speculative_tokens=3)
    poison(draft_decoder(served), monkeypatch, lambda ids: torch.ones(len(ids), dtype=torch.bool))
    for temperature in (0.0, 1.0):
        answer = served.ask(PROMPT, 40, ignore_eos=True, temperature=temperature, seed=1).wait()
        assert answer.last.error is None
        assert (len(answer.ids), answer.statistics.accepted) == (40, 0)
        if temperature == 0:
            assert answer.ids == expected
    assert served.engine.statistics().fallback_rows == {"nonfinite": 2}


def test_a_rotten_target_row_fails_alone(
    pair: ModelPair, run_engine: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, gap = greedy(pair.target.module, PROMPT, 40)
    assert gap >= TIE
    served = run_engine(pair, num_speculative_tokens=0, max_num_seqs=4)
    poison(served.engine.parts.target, monkeypatch, lambda ids: (ids == 60).any(dim=1))
    good = [served.ask(PROMPT, 40, ignore_eos=True) for _ in range(2)]
    bad = served.ask([60], 40).wait()
    assert bad.last.finish_reason == "error"
    assert "not finite" in str(bad.last.error)
    assert [answer.wait().ids for answer in good] == [expected] * 2
    assert served.ask(PROMPT, 40, ignore_eos=True).wait().ids == expected, "the slot is clean again"


def test_a_fault_of_a_round_does_not_end_the_thread(
    pair: ModelPair, run_engine: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log tells what it was, the client that the log does."""
    served = run_engine(pair, num_speculative_tokens=3)
    with monkeypatch.context() as patch:
        patch.setattr(served.engine.batch.rounds, "run", lambda rows: 1 // (len(rows) - len(rows)))
        answer = served.ask(PROMPT, 8).wait()
        assert answer.last.finish_reason == "error"
        assert answer.last.error == "the engine failed in this round; the server's log says why"
    assert "ZeroDivisionError" in caplog.text
    assert served.engine.alive
    assert served.ask(PROMPT, 8, ignore_eos=True).wait().last.finish_reason == "length"


def test_a_receiver_that_fails_loses_only_its_request(pair: ModelPair, run_engine: Serve) -> None:
    from redraft_serving.engine.interface import GenerationRequest

    served = run_engine(pair, num_speculative_tokens=3, max_num_seqs=2)

    def broken(emission: Emission) -> None:
        raise RuntimeError("the client is gone")

    served.engine.submit(GenerationRequest("broken", "default", tuple(PROMPT), 400, ignore_eos=True), broken)
    assert served.ask(PROMPT, 20, ignore_eos=True).wait().last.error is None
    until_idle(served)


def test_cancel_frees_running_and_waiting(pair: ModelPair, run_engine: Serve) -> None:
    served = run_engine(pair, num_speculative_tokens=3, max_num_seqs=2)
    answers = [served.ask(PROMPT, 480, ignore_eos=True, request_id="one", choice=i) for i in range(4)]
    served.engine.cancel("nobody")
    served.engine.cancel("one")
    for answer in answers:
        assert answer.wait(10).last.finish_reason == "abort"
    until_idle(served)
    assert served.ask(PROMPT, 4, ignore_eos=True).wait().last.finish_reason == "length"


def test_a_full_queue_refuses(pair: ModelPair, run_engine: Serve) -> None:
    served = run_engine(pair, num_speculative_tokens=0, max_num_seqs=1, max_waiting=2)
    running = [served.ask(PROMPT, 300, ignore_eos=True) for _ in range(3)]
    with pytest.raises(EngineFull) as refused:
        served.ask(PROMPT, 4)
    assert refused.value.retry_after_seconds >= 1
    for answer in running:
        answer.wait(120)
    assert served.ask(PROMPT, 4, ignore_eos=True).wait().last.error is None


def test_a_stopped_engine_ends_what_runs_and_refuses_more(pair: ModelPair, run_engine: Serve) -> None:
    served = run_engine(pair, num_speculative_tokens=3)
    answer = served.ask(PROMPT, 480, ignore_eos=True)
    served.engine.stop()
    assert answer.wait().last.finish_reason == "abort"
    assert not served.engine.alive
    with pytest.raises(EngineDead):
        served.ask(PROMPT, 4)


def test_without_a_draft_everything_is_plain(make_pair: MakePair, run_engine: Serve) -> None:
    pair = make_pair("random", draft=False, max_model_len=512)
    served = run_engine(pair, num_speculative_tokens=3)
    answer = served.ask(PROMPT, 20, ignore_eos=True).wait()
    assert answer.ids == greedy(pair.target.module, PROMPT, 20)[0]
    assert served.samples[0].outcome == ("plain",) * 20
    (draft,) = served.engine.statistics().drafts
    assert (draft.rounds, draft.tested) == (0, 0), "what lookup guessed is no draft's"


def test_capture_is_left_out_where_asked(pair: ModelPair, run_engine: Serve) -> None:
    served = run_engine(pair, num_speculative_tokens=3)
    served.ask(PROMPT, 8, capture=False).wait()
    assert not served.samples
    served.ask(PROMPT, 8, num_speculative_tokens=0).wait()
    assert set(served.samples[0].outcome) == {"plain"}


@pytest.mark.parametrize("length", [4, 40])
def test_a_row_past_the_drafts_window_is_counted_once(
    make_pair: MakePair, run_engine: Serve, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """Whether its prompt or its answer is too long for the draft."""
    pair = make_pair("random", max_model_len=512)
    assert pair.draft is not None
    monkeypatch.setattr(pair.draft.module.config, "max_position_embeddings", 16)
    served = run_engine(pair, num_speculative_tokens=3)
    assert len(served.ask([5] * length, 30, ignore_eos=True).wait().ids) == 30
    assert served.engine.statistics().fallback_rows == {"window": 1}


def test_a_fault_while_slots_are_freed_leaves_nobody_waiting(
    pair: ModelPair, run_engine: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that had just ended has left the batch: it hears of its end all the same."""
    served = run_engine(pair, num_speculative_tokens=0, max_num_seqs=2)

    def broken(row: Any, source: int) -> None:
        raise RuntimeError("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(served.engine.batch.rounds, "move", broken)
        short, long = (served.ask(PROMPT, most, ignore_eos=True) for most in (20, 200))
        assert [short.wait(20).last.finish_reason, long.wait(20).last.finish_reason] == ["error", "error"]
    assert served.engine.statistics().finished == {"error": 2}
    assert served.ask(PROMPT, 8, ignore_eos=True).wait().last.finish_reason == "length"


def test_a_fault_while_slots_are_freed_ends_who_is_reading_too(
    pair: ModelPair, run_engine: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its prompt can't follow to another slot either: it hears of it, and the thread goes on."""
    served = run_engine(pair, num_speculative_tokens=0, prefill_chunk=16, prefix_cache_mb=0)

    def broken(row: Any, source: int) -> None:
        raise RuntimeError("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(served.engine.batch.rounds, "move", broken)
        short = served.ask(PROMPT, 6, ignore_eos=True)
        reading = served.ask([4] * 400, 8)
        assert [short.wait(20).last.finish_reason, reading.wait(20).last.finish_reason] == ["error", "error"]
    assert served.ask(PROMPT, 8, ignore_eos=True).wait().last.finish_reason == "length"


@pytest.mark.parametrize("setting", [8, "auto"])
def test_the_drafts_window_ends_one_row_not_its_neighbours(
    make_pair: MakePair, run_engine: Serve, monkeypatch: pytest.MonkeyPatch, setting: Any
) -> None:
    """A row near the end of the window drafts less than others, and waits for them in the same passes."""
    pair = make_pair("random", max_model_len=512)
    assert pair.draft is not None
    monkeypatch.setattr(pair.draft.module.config, "max_position_embeddings", 64)
    served = run_engine(pair, num_speculative_tokens=setting, proposers=("draft",))
    others = [served.ask(PROMPT, 40, ignore_eos=True) for _ in range(2)]
    prompts = [[5, 9] * 15, [5, 9] * 20, [4, 8, 12] * 15]
    late = [served.ask(prompt, 40, ignore_eos=True) for prompt in prompts]
    for prompt, answer in zip([PROMPT, PROMPT, *prompts], [*others, *late], strict=True):
        assert answer.wait().ids == greedy(pair.target.module, prompt, 40)[0]
    assert served.engine.statistics().finished == {"length": 5}
    proposer = served.engine.proposer
    assert isinstance(proposer, DraftModelProposer)
    assert proposer.cache.slot_bytes == served.engine.statistics().memory.draft_cache_per_slot


def test_a_rotten_prompt_leaves_nothing_behind(
    pair: ModelPair, run_engine: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one that sees no round, which clears what fails in it: masked positions weigh nothing, but
    0 * NaN is NaN, so the next row of the slot would fail.
    """
    served = run_engine(pair, num_speculative_tokens=0, prefill_chunk=16, prefix_cache_mb=0)
    target, prefill = served.engine.parts.target, served.engine.batch.prefill
    right, read = target.logits, prefill.read

    def rotten(cache: Any, step: Any, tokens: torch.Tensor, keep: int) -> torch.Tensor:
        logits = right(cache, step, tokens, keep)
        if bool((tokens == 7).any()):
            for values in cache.values:
                values[step.slots_B] = float("nan")
            logits.fill_(float("nan"))
        return logits

    def cancelled(row: Any) -> bool:
        done = read(row)
        served.engine.cancel("cancelled")
        return done

    monkeypatch.setattr(target, "logits", rotten)
    with monkeypatch.context() as patch:
        patch.setattr(prefill, "read", cancelled)
        answer = served.ask([7] * 100, 8, request_id="cancelled").wait()
        assert answer.last.finish_reason == "error"
    assert served.ask(PROMPT, 8, ignore_eos=True).wait().ids == greedy(pair.target.module, PROMPT, 8)[0]


def test_when_the_thread_ends_nobody_is_left_waiting(
    pair: ModelPair, run_engine: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()

    def broken(parts: Any) -> None:
        assert asked.wait(30)
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(local, "calibrate", broken)
    served = run_engine(pair)
    answer = served.ask(PROMPT, 8)
    asked.set()
    assert answer.wait(20).last.finish_reason == "abort"
    assert not served.engine.alive
    with pytest.raises(EngineDead):
        served.ask(PROMPT, 8)
