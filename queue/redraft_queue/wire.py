"""A Sample's arrays and fields on the wire: conversions, and the checks of a reader that trusts nobody."""

from __future__ import annotations

import array
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from redraft_queue.errors import UnreadableSample

ID_BYTES = 4
HALF_BYTES = 2
_HALF_SIGN = 0x8000
_HALF_INFINITY = 0x7C00
_HALF_ONE = 0x3C00
_HALF_SLACK = 0x1400  # 2**-10: rounding of a float16 softmax may step over 0 or 1 by this much


def ids_to_bytes(ids: Iterable[int]) -> bytes:
    """Token ids as little-endian int32. Raises ValueError for an id outside int32."""
    try:
        values = array.array("i", ids)
    except OverflowError as error:
        raise ValueError("a token id doesn't fit into int32") from error
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def bytes_to_ids(data: bytes) -> tuple[int, ...]:
    """The inverse of `ids_to_bytes`. Raises ValueError where the length is no multiple of 4."""
    return tuple(_array("i", data))


def _array(code: str, data: bytes) -> array.array[int]:
    values: array.array[int] = array.array(code)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def check_lengths(expected: Mapping[str, tuple[int, int]]) -> None:
    """`expected`: field -> (its length, the right one). Raises UnreadableSample where they differ."""
    for name, (length, right) in expected.items():
        if length != right:
            raise UnreadableSample(f"{name} has length {length}, but {right} was expected")


def check_ids(values: Iterable[int], name: str, lowest: int = 0) -> None:
    """Raises UnreadableSample where an id is under `lowest`."""
    smallest = min(values, default=lowest)
    if smallest < lowest:
        raise UnreadableSample(f"{name} holds the id {smallest}, but ids start at {lowest}")


def check_packed_ids(data: bytes, name: str) -> None:
    """Raises UnreadableSample where int32 bytes hold a negative id."""
    check_ids(_array("i", data), name)


def check_logprobs(data: bytes, name: str) -> None:
    """float16 log-probabilities: at most 0 (rounding apart) and not NaN; -inf is an impossible token."""
    for bits in set(_array("H", data)):
        magnitude = bits & ~_HALF_SIGN
        if magnitude > _HALF_INFINITY or (bits < _HALF_SIGN and bits > _HALF_SLACK):
            raise UnreadableSample(
                f"{name} holds a value that is no log-probability (float16 bits {bits:#06x})"
            )


def check_masses(data: bytes, name: str) -> None:
    """float16 probabilities: between 0 and 1, rounding apart, and not NaN."""
    for bits in set(_array("H", data)):
        magnitude = bits & ~_HALF_SIGN
        if magnitude > (_HALF_SLACK if bits & _HALF_SIGN else _HALF_ONE):
            raise UnreadableSample(f"{name} holds a value that is no probability (float16 bits {bits:#06x})")


class Reader:
    """Typed access to a msgpack map; each method raises UnreadableSample with the field and its value."""

    def __init__(self, document: Mapping[Any, Any]) -> None:
        self._document = document

    def _value(self, name: str, default: Any = None) -> Any:
        value = self._document.get(name, default)
        if value is None:
            raise UnreadableSample(f"the field {name} is missing")
        return value

    def _wrong(self, name: str, value: object, expected: str) -> UnreadableSample:
        # Text and bytes may be a piece of somebody's prompt, and a reason goes into logs.
        shown = f" ({value!r:.40})" if isinstance(value, int | float) else ""
        return UnreadableSample(f"{name} is a {type(value).__name__}{shown}, but {expected} was expected")

    def text(self, name: str, default: str | None = None) -> str:
        """A string; required where it has no default."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return value

    def optional_text(self, name: str) -> str | None:
        """A string; None where it is missing, nil or empty."""
        return (self.text(name) or None) if self._document.get(name) is not None else None

    def count(self, name: str, default: int | None = None) -> int:
        """An integer of at least 0; required where it has no default."""
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self._wrong(name, value, "an integer of at least 0")
        return value

    def number(
        self, name: str, default: float, lowest: float = -math.inf, highest: float = math.inf
    ) -> float:
        """A finite number between `lowest` and `highest`, both included."""
        value = self._value(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not _finite(value):
            raise self._wrong(name, value, "a finite number")
        if not lowest <= value <= highest:
            raise UnreadableSample(
                f"{name} is {value:.6g}, but a number from {lowest:g} to {highest:g} was expected"
            )
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "a boolean")
        return value

    def raw(self, name: str, default: bytes | None = None) -> bytes:
        """Bytes; required where it has no default."""
        value = self._value(name, default)
        if not isinstance(value, bytes):
            raise self._wrong(name, value, "bytes")
        return value

    def ids(self, name: str, default: bytes | None = None) -> tuple[int, ...]:
        """int32 bytes as a tuple."""
        data = self.raw(name, default)
        if len(data) % ID_BYTES:
            raise UnreadableSample(f"{name} has {len(data)} bytes, which is no multiple of {ID_BYTES}")
        return bytes_to_ids(data)

    def map(self, name: str) -> Reader:
        """A nested map; an empty one where it is missing."""
        value = self._value(name, {})
        if not isinstance(value, dict):
            raise self._wrong(name, value, "a map")
        return Reader(value)

    def runs(self, name: str) -> tuple[tuple[int | str, int], ...]:
        """Pairs [version, rounds]; none where it is missing."""
        value = self._value(name, [])
        if not isinstance(value, list) or not all(_is_run(run) for run in value):
            raise self._wrong(name, value, 'a list of [version or "base", rounds]')
        return tuple((version, rounds) for version, rounds in value)


def _finite(value: int | float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _is_run(run: object) -> bool:
    if not isinstance(run, list) or len(run) != 2:
        return False
    version, rounds = run
    named = isinstance(version, str) or (type(version) is int and version >= 0)
    return named and type(rounds) is int and rounds >= 0
