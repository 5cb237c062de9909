"""From emitted token ids to text that may be shown: incremental decoding, stop strings, where both are cut.

`TextStream` belongs to one choice. It never shows half a character, nor text that may yet turn out to begin
a stop string; and it says how many output tokens are settled, so that ids and log-probabilities travel with
their text. The result does not depend on how the tokens were split into pushes.

Text is decoded in a sliding window (the tokens of the last settled piece, then the open ones), so a push
costs the same at any length of output. In the end the shown text is `tokenizer.decode(kept ids)`, unless a
stop string cut it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

REPLACEMENT = "\ufffd"
"""What decoders give for bytes that are no character (yet)."""

MAX_CHARACTER_TOKENS = 4
"""A UTF-8 character has at most four bytes, so at most four tokens: more open ones can't become one."""


@dataclass(frozen=True, slots=True)
class TextStep:
    """What one push settled.

    `text` is newly safe to show. `total_kept` counts output tokens from the first one: those are settled,
    whatever follows; the others wait for a later push or for `finish`. `stopped` is the stop string that
    ended the output; then `total_kept` is final, and every token behind it belongs to nothing.
    """

    text: str
    total_kept: int
    stopped: str | None = None


class _Span(NamedTuple):
    """Where a token's text lies, in characters of the output; `solid`: where its leading white space ends."""

    start: int
    solid: int
    end: int


class _Hit(NamedTuple):
    """A stop string found in the output, in characters from its beginning."""

    end: int
    start: int
    stop: str


class TextStream:
    """Incremental text of one choice.

    A token belongs to the output where some of its text lies before the cut. A token that would leave nothing
    there but the white space in front of its word does not: with stop "c d", the words b c d end as text "b "
    and one token.

    Args:
        tokenizer: decodes the ids.
        stop: stop strings, none empty. The one that completes first ends the output; of those completing
            together, the one that began first.
        include_stop: cut behind the stop string instead of before it.
        skip_special_tokens: special tokens give no text.
        min_tokens: stop strings that complete within so many first tokens are only text.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
    ) -> None:
        if "" in stop:
            raise ValueError("a stop string is empty; it would match everywhere")
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._include_stop = include_stop
        self._skip_special_tokens = skip_special_tokens
        self._skipped = special_ids(tokenizer) if skip_special_tokens else frozenset[int]()
        self._min_tokens = min_tokens
        self._stop_floor = 0
        self._window: list[int] = []
        self._window_text = ""
        self._seen = 0
        self._open: list[int] = []
        self._open_at = 0
        self._decoded = 0
        self._held = ""
        self._shown = 0
        self._spans: deque[_Span] = deque()
        self._pushed = 0
        self._kept = 0
        self._ended = False

    @property
    def total_kept(self) -> int:
        """Output tokens settled so far."""
        return self._kept

    def push(self, token_ids: Sequence[int]) -> TextStep:
        """Take the tokens that a round emitted. After a stop string, further tokens change nothing."""
        if self._ended:
            return TextStep("", self._kept)
        for token_id in token_ids:
            self._append(token_id)
        hit = self._find_stop()
        if hit is not None:
            return self._end_at(hit)
        shown = self._show(self._hold_from())
        self._release(self._shown)
        return TextStep(shown, self._kept)

    def finish(self) -> str:
        """End the output (EOS, length, abort): show what was held back. Every pushed token is kept then."""
        if self._ended:
            return ""
        self._ended = True
        self._settle(self._window_text)
        self._kept = self._pushed
        self._spans.clear()
        return self._show(len(self._held))

    def _append(self, token_id: int) -> None:
        """Decode one more token, and settle the open ones if they give whole characters."""
        self._pushed += 1
        self._open.append(self._open_at)
        if token_id not in self._skipped:
            self._extend_window(token_id)
        if not self._window_text[self._seen :].endswith(REPLACEMENT):
            self._settle(self._window_text)
        if self._pushed <= self._min_tokens:
            self._stop_floor = self._decoded

    def _extend_window(self, token_id: int) -> None:
        before = self._window_text
        self._window.append(token_id)
        self._window_text = self._decode(self._window)
        if len(self._open) > MAX_CHARACTER_TOKENS and len(self._window_text) > len(before):
            self._settle_hopeless(before)
        settled = self._window_text.rstrip(REPLACEMENT)
        self._open_at = self._decoded + max(0, len(settled) - self._seen)

    def _settle_hopeless(self, before: str) -> None:
        """Settle all but the newest token: bytes that no further one completes. Keeps the window short."""
        if not (self._window_text.startswith(before) and before.endswith(REPLACEMENT)):
            return
        newest = self._window.pop()
        newest_at = self._open.pop()
        self._settle(before)
        self._open.append(max(newest_at, self._decoded))
        self._window.append(newest)
        self._window_text = self._decode(self._window)

    def _settle(self, window_text: str) -> None:
        """The open tokens' text is final: give them spans, and slide the window to them."""
        piece = window_text[self._seen :]
        end = self._decoded + len(piece)
        for start in self._open:
            own = piece[start - self._decoded :]
            self._spans.append(_Span(start, end - len(own.lstrip()), end))
        self._held += piece
        self._decoded = self._open_at = end
        if piece:
            self._window = self._window[-len(self._open) :]
            self._window_text = self._decode(self._window)
            self._seen = len(self._window_text)
        self._open.clear()

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=self._skip_special_tokens))

    def _find_stop(self) -> _Hit | None:
        """The stop string that completes first in the text not shown yet: shown text can't be part of one."""
        hits = []
        for stop in self._stop:
            first = max(0, self._stop_floor - len(stop) + 1 - self._shown)
            at = self._held.find(stop, first)
            if at >= 0:
                start = self._shown + at
                hits.append(_Hit(start + len(stop), start, stop))
        return min(hits, default=None)

    def _hold_from(self) -> int:
        """Index into the held text from where it may begin a stop string."""
        return min((_begins_at(stop, self._held) for stop in self._stop), default=len(self._held))

    def _end_at(self, hit: _Hit) -> TextStep:
        self._ended = True
        cut = hit.end if self._include_stop else hit.start
        shown = self._show(cut - self._shown)
        # A token without text that follows the stop string would not have been drawn with smaller rounds.
        self._release(cut, before=cut if self._include_stop else None)
        self._spans.clear()
        return TextStep(shown, self._kept, hit.stop)

    def _show(self, length: int) -> str:
        shown, self._held = self._held[:length], self._held[length:]
        self._shown += length
        return shown

    def _release(self, cut: int, before: int | None = None) -> None:
        """Count the tokens that stay wherever the output is cut from `cut` on."""
        while self._spans:
            span = self._spans[0]
            if (span.solid >= cut and span.end > cut) or (before is not None and span.start >= before):
                return
            self._spans.popleft()
            self._kept += 1


def _begins_at(stop: str, text: str) -> int:
    """First index from where the rest of `text` begins `stop` without completing it; len(text) if none."""
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0:
        if stop.startswith(text[at:]):
            return at
        at = text.find(stop[0], at + 1)
    return len(text)


@lru_cache(maxsize=8)
def special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids that decode to nothing with `skip_special_tokens`."""
    return frozenset(index for index, token in tokenizer.added_tokens_decoder.items() if token.special)
