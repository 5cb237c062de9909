"""Predicted outputs: following an answer along the text that the client expects it to be.

OpenAI's `prediction` field (https://developers.openai.com/api/docs/guides/predicted-outputs). While answer
and prediction agree, the next predicted tokens are proposed. After a difference the place is found again by
what the answer said last: so an edit costs a few tokens, wherever it is, and so does the border where a text
tokenized alone begins otherwise than a model would. No torch, no model: a proposal is a one-hot law.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

_LONGEST = 16
"""A run of agreement this long needs no further proof."""
_SETTLED = 3
"""Agreeing tokens that make a place sure; until then, the next search starts at the last sure one."""
_NEAR = 16
"""So many tokens behind the last sure place, a single equal token is enough to go on from."""
_MOST_TRIES = 16
"""Places looked at in each direction, nearest first."""
_SLACK = 16
"""Tokens of an answer that may differ before its prediction has to prove itself."""


class PredictedOutput:
    """One row's prediction and how the answer goes along it."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = list(ids)
        self._answer: list[int] = []
        self._cursor: int | None = 0
        """The predicted token that should come next; None: the place is lost."""
        self._run = _LONGEST
        """Tokens before the cursor that agree without a gap; the beginning counts as agreement."""
        self._settled = 0
        """The last sure place."""
        self._agreed = 0
        self._places: dict[tuple[int, int], list[int]] | None = None
        """Two tokens -> the places behind them, ascending; built at the first difference."""
        self._used = bytearray(len(self._ids))
        self._used_at: list[int] = []
        """Length of the answer when each accepted token became one; ascending."""

    def extend(self, tokens: Sequence[int]) -> None:
        """The answer grew by what the row emitted, whoever proposed it."""
        for token in tokens:
            self._answer.append(token)
            cursor = self._cursor
            if cursor is not None and self._ids[cursor : cursor + 1] == [token]:
                self._cursor, self._run = cursor + 1, self._run + 1
                self._agreed += 1
            else:
                self._cursor, self._run = self._find()
            self._settle()

    def propose(self, most: int) -> list[int]:
        """The tokens that the prediction has next, at most `most`; empty where the place is lost or the end
        reached.

        A prediction that the answer has mostly left must prove itself: it then proposes no more tokens than
        agree before them.
        """
        if self._cursor is None or most < 1:
            return []
        if self._run < _LONGEST and len(self._answer) > 2 * self._agreed + _SLACK:
            most = min(most, self._run)
        return self._ids[self._cursor : self._cursor + most]

    def counts(self, length: int | None = None) -> tuple[int, int]:
        """OpenAI's (accepted_prediction_tokens, rejected_prediction_tokens) for the answer's first `length`
        tokens.

        Accepted: tokens of the prediction that appear in the answer, each once, in runs of at least three, or
        at the prediction's beginning or end; less elsewhere is coincidence. Rejected: all others of the
        prediction, which OpenAI bills. Both follow from prediction and answer alone, so the same answer
        counts the same however far the engine speculated.
        """
        accepted = len(self._used_at) if length is None else bisect_right(self._used_at, length)
        return accepted, len(self._ids) - accepted

    def _settle(self) -> None:
        """Believe the place, and count its run, once it has agreed for long enough."""
        cursor, run = self._cursor, self._run
        if cursor is None:
            return
        if run >= _SETTLED:
            self._settled = cursor
        elif cursor < len(self._ids):
            return
        place = cursor - 1
        while place >= 0 and run > 0 and not self._used[place]:
            self._used[place] = 1
            self._used_at.append(len(self._answer))
            place, run = place - 1, run - 1

    def _find(self) -> tuple[int | None, int]:
        """(where to go on, tokens that agree before it): the longest match of the answer's end, the nearest
        place of several, those ahead first; else a single equal token close by.
        """
        found, longest = None, 0
        for place in self._candidates():
            matched = self._matched(place)
            if matched > longest:
                found, longest = place, matched
                if longest == _LONGEST:
                    break
        if found is None:
            near = self._ids[self._settled : self._settled + _NEAR]
            if self._answer[-1] in near:
                return self._settled + near.index(self._answer[-1]) + 1, 1
        return found, longest

    def _candidates(self) -> list[int]:
        """Places behind the answer's last two tokens."""
        if self._places is None:
            self._places = {}
            for place, pair in enumerate(zip(self._ids, self._ids[1:], strict=False), 2):
                self._places.setdefault(pair, []).append(place)
        if len(self._answer) < 2:
            return []
        places = self._places.get((self._answer[-2], self._answer[-1]), [])
        split = bisect_left(places, self._settled)
        return places[split : split + _MOST_TRIES] + places[max(0, split - _MOST_TRIES) : split][::-1]

    def _matched(self, place: int) -> int:
        """How many tokens before `place` equal the answer's last ones."""
        ids, answer, matched = self._ids, self._answer, 2
        most = min(_LONGEST, place, len(answer))
        while matched < most and ids[place - matched - 1] == answer[-matched - 1]:
            matched += 1
        return matched
