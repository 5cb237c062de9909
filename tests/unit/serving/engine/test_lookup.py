"""N-gram lookup against a search that reads the whole text each time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from redraft_serving.engine.lookup import NgramIndex

MOST, LONGEST, SHORTEST = 6, 5, 2


def places(text: Sequence[int], size: int) -> list[int]:
    """Where the last `size` tokens of the text ended earlier, with something behind them."""
    return [end for end in range(size, len(text)) if text[end - size : end] == text[-size:]]


def searched(
    text: list[int],
    most: int,
    longest: int = LONGEST,
    shortest: int = SHORTEST,
    pick: Callable[[list[int]], int] = max,
) -> list[int]:
    """What an index should propose, in the plainest words: longest match first, of several the latest."""
    for size in range(min(longest, len(text)), shortest - 1, -1):
        if found := places(text, size):
            start = pick(found)
            length = most if size == longest else min(most, size)
            return [text[start + ahead % (len(text) - start)] for ahead in range(length)]
    return []


@pytest.fixture
def texts() -> list[list[int]]:
    """Short texts of few words: every n-gram repeats, but no more often than the index looks back."""
    draw = random.Random(3)
    return [[draw.randrange(words) for _ in range(30)] for words in (2, 3, 4, 6) for _ in range(50)]


def test_equals_a_full_search_after_every_token(texts: list[list[int]]) -> None:
    for text in texts:
        index = NgramIndex(text[:5], LONGEST, SHORTEST)
        for length in range(5, len(text)):
            assert index.propose(MOST) == searched(text[:length], MOST)
            index.extend([text[length]])


def test_wrong_variants_go_red(texts: list[list[int]]) -> None:
    """The comparison tells the latest place from the first, the longest match from a shorter one."""
    proposed = [NgramIndex(text, LONGEST, SHORTEST).propose(MOST) for text in texts]
    assert proposed == [searched(text, MOST) for text in texts]
    assert proposed != [searched(text, MOST, pick=min) for text in texts]
    assert proposed != [searched(text, MOST, longest=LONGEST - 1) for text in texts]
    assert proposed != [searched(text, MOST, shortest=SHORTEST + 1) for text in texts]


@pytest.mark.parametrize("piece", [1, 2, 7, 100])
def test_text_in_pieces_gives_the_same_index(piece: int, texts: list[list[int]]) -> None:
    """However the text came, and whether or not it was asked in between."""
    for text in texts[::10]:
        index = NgramIndex()
        for start in range(0, len(text), piece):
            index.extend(text[start : start + piece])
            if start % 3 == 0:
                index.propose(MOST)
        assert index.propose(MOST) == NgramIndex(text).propose(MOST)


def test_the_longest_match_wins_over_a_later_one() -> None:
    assert NgramIndex([1, 2, 3, 50, 9, 2, 3, 60, 8, 1, 2, 3]).propose(1) == [50]


def test_of_equal_matches_the_latest_wins() -> None:
    assert NgramIndex([2, 3, 50, 9, 2, 3, 60, 8, 2, 3]).propose(1) == [60]


def test_a_short_match_proposes_few_tokens() -> None:
    """As many as it matched, unless it is as long as is ever looked for."""
    text = [1, 2, 3, *range(10, 30), 1, 2, 3]
    assert NgramIndex(text).propose(8) == [10, 11, 12]
    assert NgramIndex(text, longest=3).propose(8) == list(range(10, 18))
    assert NgramIndex(text).propose(2) == [10, 11]


def test_a_repetition_is_expected_to_go_on() -> None:
    """The continuation reaches the end of the text and goes on with itself."""
    assert NgramIndex([7] * 20).propose(5) == [7] * 5
    assert NgramIndex([1, 2, 3] * 8).propose(7) == [1, 2, 3, 1, 2, 3, 1]


@pytest.mark.parametrize("text", [[], [1], [1, 2], [1, 1], [1, 2, 3, 4]])
def test_nothing_to_find(text: list[int]) -> None:
    """Above all the end itself, which matches itself always."""
    assert NgramIndex(text).propose(4) == []
    assert NgramIndex([1, 2, 1, 2]).propose(0) == []


def test_one_token_may_be_enough() -> None:
    assert NgramIndex([1, 2, 9, 1], shortest=1).propose(4) == [2]
    assert NgramIndex([5, 5], shortest=1).propose(1) == [5]


@pytest.mark.parametrize(("longest", "shortest"), [(1, 2), (2, 0), (0, 0)])
def test_lengths_that_make_no_sense(longest: int, shortest: int) -> None:
    with pytest.raises(ValueError, match=r"can't be looked up"):
        NgramIndex([1], longest, shortest)


def test_built_at_the_first_question_only() -> None:
    index = NgramIndex([1, 2, 3, 1, 2])
    index.extend([3, 1])
    assert not index._latest
    assert index.propose(2) == [2, 3]
    assert index._latest


class Counted(NgramIndex):
    """Counts the places that were compared."""

    compared = 0

    def _matched(self, end: int) -> int:
        self.compared += 1
        return super()._matched(end)


def test_a_text_full_of_one_pair_is_searched_in_part() -> None:
    """A bounded number of places, whatever the text: the newest ones."""
    text = [token for other in range(1000) for token in (1, 2, 100 + other)] + [1, 2]
    index = Counted(text)
    assert index.propose(2) == [1099, 1]
    assert index.compared == 32
