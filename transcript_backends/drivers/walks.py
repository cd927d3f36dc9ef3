"""Listings of directory trees, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import islice

from transcript_backends.drivers.driver import ObjectInfo, Page

PAGE_SIZE = 1000
_WALKS = 8  # that are remembered from page to page


class Walks:
    """Listings under way: reading a large directory once per page would take the square of its size.

    Args:
        begin: starts one: prefix, key -> the objects below the prefix by key, those up to that key left out.
    """

    def __init__(self, begin: Callable[[str, str], Iterator[ObjectInfo]]) -> None:
        self._begin = begin
        self._walks: dict[tuple[str, str | None], Iterator[ObjectInfo]] = {}

    def page(self, prefix: str, start_after: str, token: str | None, now: datetime | None) -> Page:
        """A page; its token is its last key, so a page can be had again, from a new walk."""
        walk = self._walks.pop((prefix, token), None) or self._begin(prefix, max(start_after, token or ""))
        found = list(islice(walk, PAGE_SIZE))
        if len(found) < PAGE_SIZE:
            return Page(found, None, now)
        last = found[-1].key
        self._walks[prefix, last] = walk
        while len(self._walks) > _WALKS:
            self._walks.pop(next(iter(self._walks)), None)
        return Page(found, last, now)
