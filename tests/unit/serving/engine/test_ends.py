"""Where an answer ends: text, ids, counts and sample are cut at the same place, for every K."""

from __future__ import annotations

from typing import Any

import pytest
from redraft_serving.engine import commit

from .conftest import Answer, MakePair, Serve, Served

KS = [0, 1, 2, 3, 5, 8]


def check_all_agree(served: Served, answer: Answer) -> None:
    """Ids of the chunks, usage and the sample tell of the same tokens."""
    sample = next(s for s in served.samples if s.request_id == f"request-{served.asked}")
    assert answer.ids == list(sample.output_ids)
    assert answer.statistics.emitted == len(answer.ids) == len(sample.outcome)
    assert len(sample.topk_ids) == len(answer.ids) * sample.top_k_logged * 4


@pytest.mark.parametrize("k", KS)
def test_ends_at_the_first_eos(make_pair: MakePair, run_engine: Serve, k: int) -> None:
    served = run_engine(make_pair("chain"), num_speculative_tokens=k)
    answer = served.ask("a", 20).wait()
    assert answer.text == "b c d"
    assert (answer.last.finish_reason, answer.last.stop_reason) == ("stop", None)
    eos = served.pair.tokenizer.eos_token_id
    assert answer.ids[-1] == eos
    assert len(answer.ids) == 4
    check_all_agree(served, answer)
    again = served.ask([*served.pair.tokenizer("a").input_ids, *answer.ids, 3], 20).wait()
    assert again.text == "b c d", "a follow-up turn is the target's own again"


def test_goes_red_when_only_the_last_token_of_a_run_may_end_it(
    make_pair: MakePair, run_engine: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrong variant: an EOS that is accepted in the middle of a run is passed over."""
    right = commit.token_ending

    def late(row: Any, run: Any, eos: Any, max_len: int) -> Any:
        return right(row, run, eos if run[-1].token_id in eos else frozenset(), max_len)

    monkeypatch.setattr(commit, "token_ending", late)
    answer = run_engine(make_pair("chain"), num_speculative_tokens=8).ask("a", 20).wait()
    assert answer.text != "b c d"
    assert len(answer.ids) > 4


@pytest.mark.parametrize("k", KS)
def test_ignore_eos_goes_on(make_pair: MakePair, run_engine: Serve, k: int) -> None:
    served = run_engine(make_pair("chain"), num_speculative_tokens=k)
    answer = served.ask("a", 6, ignore_eos=True).wait()
    assert answer.text == "b c d z z"
    assert answer.last.finish_reason == "length"


@pytest.mark.parametrize("k", [1, 2, 8])
@pytest.mark.parametrize(
    ("stop", "text", "tokens"), [("c", "b ", 1), ("c d", "b ", 1), ("b c d e f", "", 0), ("d e", "b c ", 2)]
)
def test_stop_strings(
    make_pair: MakePair, run_engine: Serve, k: int, stop: str, text: str, tokens: int
) -> None:
    served = run_engine(make_pair("chain", with_eos=False), num_speculative_tokens=k)
    answer = served.ask("a", 20, stop=(stop,), top_logprobs=0).wait()
    assert answer.text == text
    assert (answer.last.finish_reason, answer.last.stop_reason) == ("stop", stop)
    assert len(answer.ids) == answer.statistics.emitted == tokens
    assert sum(len(emission.logprobs) for emission in answer.emissions) == tokens
    assert not any(word in emission.text for emission in answer.emissions for word in stop.split()[-1:])
    if tokens:
        check_all_agree(served, answer)
    else:
        assert not served.samples, "an answer without a token leaves no sample"


def test_stop_token_ids(make_pair: MakePair, run_engine: Serve) -> None:
    served = run_engine(make_pair("chain", with_eos=False), num_speculative_tokens=8)
    c = served.pair.tokenizer("c").input_ids[0]
    answer = served.ask("a", 20, stop_token_ids=frozenset([c])).wait()
    assert (answer.text, answer.last.stop_reason, len(answer.ids)) == ("b", c, 2)
    shown = served.ask("a", 20, stop_token_ids=frozenset([c]), include_stop_str_in_output=True).wait()
    assert shown.text == "b c"


@pytest.mark.parametrize("k", [0, 5])
def test_max_tokens_is_exact(make_pair: MakePair, run_engine: Serve, k: int) -> None:
    served = run_engine(make_pair("chain", with_eos=False), num_speculative_tokens=k)
    for most in range(1, 13):
        answer = served.ask("a", most).wait()
        assert len(answer.ids) == answer.statistics.emitted == most
        assert answer.last.finish_reason == "length"
        check_all_agree(served, answer)


def test_the_drafts_own_eos_ends_nothing(make_pair: MakePair, run_engine: Serve) -> None:
    """A draft that always proposes EOS where the target never says it: 64 tokens come."""
    eos_row = [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    pair = make_pair("table", draft_rows=_rows(eos_row))
    answer = run_engine(pair, num_speculative_tokens=4).ask("w0", 64, temperature=1.0, seed=1).wait()
    assert (len(answer.ids), answer.last.finish_reason) == (64, "length")
    assert answer.statistics.accepted == 0


def _rows(row: list[float]) -> object:
    import torch

    return torch.tensor(row).expand(len(row), -1).contiguous()


def test_min_tokens_holds_the_end_back(make_pair: MakePair, run_engine: Serve) -> None:
    served = run_engine(make_pair("chain"), num_speculative_tokens=5)
    assert len(served.ask("a", 20, min_tokens=9).wait().ids) >= 9
    assert not any(sample.sampling.reproducible for sample in served.samples)


def test_min_tokens_holds_stop_ids_back(make_pair: MakePair, run_engine: Serve) -> None:
    served = run_engine(make_pair("chain", with_eos=False), num_speculative_tokens=5)
    c = served.pair.tokenizer("c").input_ids[0]
    answer = served.ask("a", 20, min_tokens=9, stop_token_ids=frozenset([c])).wait()
    assert len(answer.ids) >= 9
    assert c not in answer.ids[:9]


def test_a_sample_tells_whose_request_it_was_where_the_request_does(
    make_pair: MakePair, run_engine: Serve
) -> None:
    served = run_engine(make_pair("chain"))
    served.ask("a", 4, user="0123abcd").wait()
    served.ask("a", 4).wait()
    served.ask("a", 4, user="0123abcd", capture=False).wait()
    assert [sample.user for sample in served.samples] == ["0123abcd", None]
