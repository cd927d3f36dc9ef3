"""Names that a file system takes for one though they are spelled differently.

In case, in how Unicode composes them, or in blanks and dots at their end.
"""

from __future__ import annotations

import os
import unicodedata

_DIRECTORIES = 4096  # that are remembered


class OtherSpelling(Exception):
    """A file or directory is there, under another spelling of the name that was asked for."""

    def __init__(self, path: str, found: str) -> None:
        super().__init__(
            f"{os.path.basename(path)!r} is spelled {found!r} there, and this file system takes the two names for one"
        )


class Spellings:
    """Sees that what is at a path has that very name, from the directory's own list of names.

    Where a directory tells spellings apart, as most do, that costs two looks at the first name in it that is there, and
    nothing from then on.
    """

    def __init__(self) -> None:
        self._exact: set[tuple[str, bool]] = set()  # directories that tell them apart, and whether for ASCII only
        self._listed: tuple[str, int, frozenset[str]] = "", 0, frozenset()

    def check(self, path: str) -> None:
        """See that nothing is at a path, or something of this very name.

        Raises:
            OtherSpelling: it has another one.
        """
        directory, name = os.path.split(path)
        if (directory, name.isascii()) in self._exact:
            return
        forms = (unicodedata.normalize("NFC", name), unicodedata.normalize("NFD", name))
        others = {name.swapcase(), *forms, *(each.swapcase() for each in forms), name.rstrip(" .")} - {name, ""}
        try:
            found = os.lstat(path) if others else None
        except (FileNotFoundError, NotADirectoryError):
            found = None
        if found is None:
            return
        if not any(_is_at(found, os.path.join(directory, other)) for other in others):
            if len(self._exact) >= _DIRECTORIES:
                self._exact.clear()
            self._exact.add((directory, name.isascii()))
        elif name not in self._names(directory, name):
            raise OtherSpelling(path, self._spelling(directory, found))

    def _names(self, directory: str, name: str) -> frozenset[str]:
        """The names in a directory, as of its last change, or now where this one is not among those."""
        changed = os.stat(directory).st_mtime_ns
        seen, at, names = self._listed
        if (seen, at) != (directory, changed) or name not in names:
            names = frozenset(os.listdir(directory))
            self._listed = directory, changed, names
        return names

    def _spelling(self, directory: str, found: os.stat_result) -> str:
        names = (each for each in self._listed[2] if _is_at(found, os.path.join(directory, each)))
        return next(names, "differently")


def _is_at(found: os.stat_result, path: str) -> bool:
    try:
        return os.path.samestat(found, os.lstat(path))
    except OSError:
        return False
