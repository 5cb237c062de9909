"""Following an answer along its prediction: through edits, moves and borders, and counted as OpenAI does."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
from redraft_serving.engine.prediction import PredictedOutput

K = 4
TEXT = list(range(100, 160))
"""A prediction whose tokens all differ; other numbers are tokens that it does not have."""


def rounds(tracker: PredictedOutput, answer: Sequence[int], k: int = K) -> int:
    """How many rounds the answer takes: each emits what was proposed rightly, and one token more."""
    done = count = 0
    while done < len(answer):
        proposed = tracker.propose(k)
        assert len(proposed) <= k
        right = 0
        while right < len(proposed) and proposed[right : right + 1] == list(answer[done + right :][:1]):
            right += 1
        tracker.extend(answer[done : done + right + 1])
        done += right + 1
        count += 1
    return count


def least(answer: Sequence[int]) -> int:
    """Rounds where every proposal is right."""
    return -(-len(answer) // (K + 1))


def test_a_right_prediction_is_proposed_as_it_is() -> None:
    tracker = PredictedOutput(TEXT)
    assert tracker.propose(K) == TEXT[:K]
    assert rounds(tracker, TEXT) == least(TEXT) == 12
    assert tracker.counts() == (len(TEXT), 0)
    assert tracker.propose(K) == []


EDITS = {
    "replaced": ([*TEXT[:30], 1, 2, 3, *TEXT[33:]], 3, 3),
    "replaced by more": ([*TEXT[:30], 1, 2, 3, 4, 5, *TEXT[31:]], 5, 1),
    "inserted": ([*TEXT[:30], 1, 2, 3, *TEXT[30:]], 3, 0),
    "deleted": (TEXT[:30] + TEXT[34:], 0, 4),
    "deleted a page": (TEXT[:10] + TEXT[50:], 0, 40),
    "before the beginning": ([1, 2, 3, *TEXT], 3, 0),
    "behind the end": ([*TEXT, 1, 2, 3], 3, 0),
    "first token": ([1, *TEXT[1:]], 1, 1),
    "last token": ([*TEXT[:-1], 1], 1, 1),
    "everywhere": ([1 if at % 20 == 10 else token for at, token in enumerate(TEXT)], 3, 3),
}
"""The answer, how many of its tokens are new, and how many of the prediction it leaves out."""


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_costs_a_few_tokens(name: str) -> None:
    """One round per new token, and two more to find the way back, three times where there are three edits."""
    answer, new, missing = EDITS[name]
    tracker = PredictedOutput(TEXT)
    assert rounds(tracker, answer) <= least(answer) + new + (6 if name == "everywhere" else 2)
    assert tracker.counts() == (len(TEXT) - missing, missing)


class NeverFindsBack(PredictedOutput):
    """The variant that gives up at the first difference."""

    def _find(self) -> tuple[int | None, int]:
        return None, 0


def test_a_variant_that_gives_up_goes_red() -> None:
    answer, new, _ = EDITS["inserted"]
    assert rounds(NeverFindsBack(TEXT), answer) > 2 * (least(answer) + new + 2)


def test_passages_in_another_order_are_found() -> None:
    answer = TEXT[40:] + TEXT[20:40] + TEXT[:20]
    tracker = PredictedOutput(TEXT)
    assert rounds(tracker, answer) <= least(answer) + 3 * 3
    assert tracker.counts() == (len(TEXT), 0)


def test_a_wrong_turn_is_taken_back() -> None:
    """A pair that stands far ahead as well draws the place there; the next tokens bring it back."""
    prediction = [*range(100, 130), 7, 8, *range(130, 160), 5, 6, 7, 8, 9]
    answer = [*range(100, 130), 1, 7, 8, *range(130, 160), 5, 6, 7, 8, 9]
    assert rounds(PredictedOutput(prediction), answer) <= least(answer) + 3
    answer = [*range(100, 110), 7, 8, *range(110, 130), 7, 8, *range(130, 160)]
    assert rounds(PredictedOutput(prediction), answer) <= least(answer) + 6


def test_an_unrelated_prediction_stays_silent() -> None:
    """After the first guess, which is all that it costs."""
    tracker = PredictedOutput(TEXT)
    assert tracker.propose(K) == TEXT[:K]
    tracker.extend([1])
    for token in range(1, 40):
        assert tracker.propose(K) == []
        tracker.extend([token])
    assert tracker.counts() == (0, len(TEXT))


def test_a_prediction_that_was_mostly_wrong_proposes_little() -> None:
    """No more tokens than agree before them, until it is right again."""
    tracker = PredictedOutput(TEXT)
    tracker.extend([*range(1, 41), *TEXT[20:22]])
    assert tracker.propose(8) == TEXT[22:24]
    tracker.extend(TEXT[22:25])
    assert tracker.propose(8) == TEXT[25:30]
    trusted = PredictedOutput(TEXT)
    trusted.extend([*TEXT[:10], 1, *TEXT[20:22]])
    assert trusted.propose(8) == TEXT[22:30]


def test_an_answer_that_repeats_the_prediction_counts_it_once() -> None:
    tracker = PredictedOutput(TEXT)
    assert rounds(tracker, TEXT * 2) <= least(TEXT * 2) + 3
    assert tracker.counts() == (len(TEXT), 0)


def test_single_equal_tokens_are_coincidence() -> None:
    tracker = PredictedOutput(TEXT)
    tracker.extend([token for pair in zip(TEXT[1:20], range(19), strict=True) for token in pair])
    assert tracker.counts() == (0, len(TEXT))


@pytest.mark.parametrize("ids", [[], [5]])
def test_tiny_predictions(ids: list[int]) -> None:
    tracker = PredictedOutput(ids)
    assert tracker.propose(K) == ids
    assert tracker.propose(0) == []
    tracker.extend([5, 5, 6])
    assert tracker.counts() == (len(ids), 0)
    assert tracker.propose(K) == []


def test_an_answer_cut_later_is_counted_up_to_the_cut() -> None:
    """A stop string may take back tokens that were emitted."""
    tracker = PredictedOutput(TEXT)
    tracker.extend(TEXT[:20])
    assert [tracker.counts(length)[0] for length in (0, 1, 12, 20, 99)] == [0, 1, 12, 20, 20]
    assert tracker.counts(12) == (12, len(TEXT) - 12)


def edited_texts() -> Iterator[tuple[list[int], list[int]]]:
    """Predictions of few words, full of repeats, and answers made of their pieces."""
    draw = random.Random(5)
    for words in (1, 2, 3, 8, 30):
        for _ in range(30):
            prediction = [draw.randrange(words) for _ in range(draw.randrange(60))]
            answer: list[int] = []
            while len(answer) < 60:
                start, length = draw.randrange(60), draw.randrange(12)
                answer += [*prediction[start : start + length], draw.randrange(words + 2)]
            yield prediction, answer


def test_counts_do_not_depend_on_how_far_the_engine_speculated() -> None:
    for prediction, answer in edited_texts():
        whole, single = PredictedOutput(prediction), PredictedOutput(prediction)
        whole.extend(answer)
        rounds(single, answer, 1)
        assert whole.counts() == single.counts()
        assert whole.propose(K) == single.propose(K)
        accepted, rejected = whole.counts()
        assert accepted + rejected == len(prediction)
        growing = [whole.counts(length)[0] for length in range(len(answer) + 1)]
        assert growing == sorted(growing)
        assert growing[-1] == accepted <= len(answer)


def test_what_is_proposed_stands_in_the_prediction() -> None:
    for prediction, answer in edited_texts():
        tracker = PredictedOutput(prediction)
        pieces = {tuple(prediction[at : at + n]) for at in range(len(prediction)) for n in range(K + 1)}
        for token in answer:
            assert tuple(tracker.propose(K)) in pieces | {()}
            tracker.extend([token])
