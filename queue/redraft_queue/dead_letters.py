"""Entries that can't be used, with the reason: one record per entry, however often it is read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import redis

from redraft_queue import keys
from redraft_queue.connection import translated

logger = logging.getLogger(__name__)

_KEPT_BYTES = 64 * 1024

# An entry may be met again, and an older one after a newer one, so ids of the source can't be ids here (those
# must rise); a sorted set by time remembers them, without the ones that the source has trimmed.
_RECORD = """
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
if first then
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', '(' .. string.match(first[1], '^%d+'))
end
local added = 0
for i = 2, #ARGV, 3 do
  local entry = ARGV[i]
  if redis.call('ZADD', KEYS[3], 'NX', string.match(entry, '^%d+'), entry) == 1 then
    redis.call('XADD', KEYS[2], 'MAXLEN', ARGV[1], '*',
      'entry', entry, 'reason', ARGV[i + 1], 'sample', ARGV[i + 2])
    added = added + 1
  end
end
return added
"""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """`entry_id` is the id in the domain's stream; `sample` the start (64 KiB) of what stood there."""

    entry_id: str
    reason: str
    sample: bytes = b""


class DeadLetters:
    """The dead letters of all domains. `maxlen` of them are kept per domain."""

    def __init__(self, client: redis.Redis, maxlen: int) -> None:
        self._client = client
        self._maxlen = maxlen
        self._script = client.register_script(_RECORD)

    def record(self, domain: str, letters: Sequence[DeadLetter]) -> None:
        """Add those that aren't recorded yet. Where Redis is full or gone this only logs: reading goes on."""
        if not letters:
            return
        arguments: list[Any] = [self._maxlen]
        for letter in letters:
            arguments += [letter.entry_id, letter.reason, letter.sample[:_KEPT_BYTES]]
        names = [keys.samples(domain), keys.dead(domain), keys.dead_entries(domain)]
        try:
            added = self._script(keys=names, args=arguments)
        except redis.RedisError as error:
            logger.warning(
                "%d dead letters of domain %s could not be recorded: %s", len(letters), domain, error
            )
            return
        if added:
            first = letters[0]
            logger.warning(
                "%d new dead letters in domain %s: %s: %s", added, domain, first.entry_id, first.reason
            )

    def list(self, domain: str, count: int = 100) -> list[DeadLetter]:
        """The newest `count`, newest first. Raises StreamUnavailable."""
        with translated(f"list the dead letters of domain {domain}"):
            found = cast("list[Any]", self._client.xrevrange(keys.dead(domain), count=count))
        return [_letter(fields) for _, fields in found]

    def length(self, domain: str) -> int:
        """How many are kept. Raises StreamUnavailable."""
        with translated(f"count the dead letters of domain {domain}"):
            return self._client.xlen(keys.dead(domain))


def _letter(fields: dict[bytes, bytes]) -> DeadLetter:
    return DeadLetter(
        entry_id=fields.get(b"entry", b"").decode(),
        reason=fields.get(b"reason", b"").decode(errors="replace"),
        sample=fields.get(b"sample", b""),
    )
