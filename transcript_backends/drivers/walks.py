"""Listings of directory trees, a page at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from datetime import datetime
from itertools import count, islice

from transcript_backends.drivers.driver import ObjectInfo, Page, Unread
from transcript_backends.filesystem import OUTAGES

PAGE_SIZE = 1000
_WALKS = 8  # that are remembered from page to page


See = Callable[[str], ObjectInfo | Unread | None]
LookInto = Callable[[str], tuple[list[str], See]]
"""Gives what is in a directory now, by its prefix: the names, those of directories with a slash; none where it is missing.
And a way to see the file of such a name, None where it is gone or no object."""


def walk(look_into: LookInto, prefix: str, after: str = "") -> Generator[ObjectInfo | Unread, None, bool]:
    """The files below a prefix in byte order of their keys, those up to ``after`` left out; whether there was anything.

    A directory on the way that can't be read takes the place of what is in it. The prefix itself must be readable.
    """
    names, see = look_into(prefix)
    names.sort(reverse=True)
    found = False
    while names:  # a large directory is forgotten as it is walked
        name = names.pop()
        key = prefix + name
        if name.endswith("/"):
            found = True
            if key > after or after.startswith(key):
                try:
                    has_content = yield from walk(look_into, key, after)
                except OSError as error:
                    if not error.errno or error.errno in OUTAGES:
                        raise
                    has_content = True
                    yield Unread(key, error)
                if not has_content:
                    names, see = look_into(prefix)  # what was in that one may be in a new one now
                    names = sorted((each for each in names if each > name), reverse=True)
        elif key > after and (info := see(name)) is not None:
            found = True
            yield info
    return found


class Walks:
    """Listings in flight: reading a large directory once per page would take the square of its size.

    Each listing continues its own walk only. Another's may be older, and miss what was stored before this listing began.

    Args:
        begin: starts one: prefix, key -> the objects below the prefix by key, those up to that key left out.
    """

    def __init__(self, begin: Callable[[str, str], Iterator[ObjectInfo | Unread]]) -> None:
        self._begin = begin
        self._numbers = count()
        self._walks: OrderedDict[tuple[str, str], Iterator[ObjectInfo | Unread]] = (
            OrderedDict()
        )  # all that is done to it is atomic

    def page(self, prefix: str, start_after: str, token: str | None, now: datetime | None) -> Page:
        """A page; its token names the walk and the last key, after which a new walk starts where that one is not remembered."""
        number, _, last = (token or "").partition(" ")
        walk = self._walks.pop((prefix, token), None) if token else None
        if walk is None:
            number, walk = str(next(self._numbers)), self._begin(prefix, max(start_after, last))
        found = list(islice(walk, PAGE_SIZE))
        objects = [each for each in found if isinstance(each, ObjectInfo)]
        unread = [each for each in found if isinstance(each, Unread)]
        if len(found) < PAGE_SIZE:
            return Page(objects, None, now, unread)
        token = f"{number} {found[-1].key}"
        self._walks[prefix, token] = walk
        with suppress(KeyError):  # other threads have removed the rest
            while len(self._walks) > _WALKS:
                self._walks.popitem(last=False)
        return Page(objects, token, now, unread)
