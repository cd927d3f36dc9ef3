"""Listings of directory trees, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from datetime import datetime
from itertools import islice

from transcript_backends.drivers.driver import ObjectInfo, Page

PAGE_SIZE = 1000
_WALKS = 8  # that are remembered from page to page


LookInto = Callable[[str], tuple[list[str], Callable[[str], ObjectInfo | None]]]
"""Gives what is in a directory now, by its prefix: the names, those of directories with a slash; none where it is missing.
And a way to see the file of such a name, None where it is gone or no object."""


def walk(look_into: LookInto, prefix: str, after: str = "") -> Generator[ObjectInfo, None, bool]:
    """The files below a prefix in byte order of their keys, those up to ``after`` left out; whether there was anything."""
    names, see = look_into(prefix)
    names.sort(reverse=True)
    found = False
    while names:  # a large directory is forgotten as it is walked
        name = names.pop()
        key = prefix + name
        if name.endswith("/"):
            found = True
            if (key > after or after.startswith(key)) and not (yield from walk(look_into, key, after)):
                names, see = look_into(prefix)  # what was in that one may be in a new one now
                names = sorted((each for each in names if each > name), reverse=True)
        elif key > after and (info := see(name)) is not None:
            found = True
            yield info
    return found


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
