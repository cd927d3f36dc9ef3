"""Objects that listings show and that are not there: the placeholders of a broken gateway, say.

A reader that is told "not found" lists again, since a compaction has moved what it wanted. What is listed still, unchanged,
and still not there, would have it do so for ever. It is nobody's: told of once, and left out of listings from then on.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from transcript_backends.drivers.driver import ObjectInfo

_log = logging.getLogger(__name__)

_REMEMBERED = 1000  # keys
_FORGOTTEN_SECONDS = 600.0  # then it is looked at anew: a gateway may have been mended


@dataclass
class _Miss:
    """What is known of a key that was read and was not there.

    Attributes:
        at: when that was found out, last.
        listed: how it was listed since, and when.
        contradicted: whether it was not there again, asked for after it was so listed.
    """

    at: float
    listed: tuple[ObjectInfo, float] | None = None
    contradicted: bool = False


class Phantoms:
    """What one container's listings show though it is not there. Times are a monotonic clock's, in seconds."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._misses: dict[str, _Miss] = {}
        self._hidden: dict[str, ObjectInfo] = {}

    def __bool__(self) -> bool:
        return bool(self._misses)

    def missed(self, key: str, began: float, now: float) -> None:
        """Know that a read which began then was told that the key is not there."""
        known = self._misses.get(key)
        if known is None:
            self._misses[key] = _Miss(now)
            while len(self._misses) > _REMEMBERED:
                self._misses.pop(next(iter(self._misses)), None)
        elif known.listed is not None and began >= known.listed[1]:
            known.at, known.contradicted = now, True

    def hide(self, info: ObjectInfo, now: float) -> bool:
        """Whether what a listing shows is to be left out of it."""
        known = self._misses.get(info.key)
        if known is None:
            return False
        if known.listed is None or known.listed[0] != info or (known.contradicted and now - known.at > _FORGOTTEN_SECONDS):
            self._misses[info.key] = _Miss(now, (info, now))
            return False
        if known.contradicted and self._hidden.get(info.key) != info:
            self._hidden[info.key] = info
            _log.warning(
                "%s/%s is listed, and is not there when it is read: it is left out; it is no record of ours, or a lost one",
                self._location,
                info.key,
            )
        return known.contradicted

    def below(self, prefix: str) -> list[ObjectInfo]:
        """Those that were left out."""
        return [info for key, info in sorted(self._hidden.items()) if key.startswith(prefix)]
