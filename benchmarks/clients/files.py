"""Transcripts in a directory of this machine without this package."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

from benchmarks.clients import Threaded, count_lines, parsed, prefix, segment_key
from benchmarks.places import Place


class _Segments(Threaded):
    """A file per segment, under the same names as this package's."""

    def __init__(self, place: Place) -> None:
        self._root = place.endpoint
        self._made: set[str] = set()

    def _path(self, session: str, seq: int) -> str:
        directory = os.path.join(self._root, prefix(session))
        if directory not in self._made:
            os.makedirs(directory, exist_ok=True)
            self._made.add(directory)
        return os.path.join(self._root, segment_key(session, seq))


class Fsspec(_Segments):
    """pipe_file with mode create, which flushes nothing to disk and shows a file before all of it is there; ls; cat_file."""

    def __init__(self, place: Place) -> None:
        import fsspec

        super().__init__(place)
        self._fs: Any = fsspec.filesystem("file", skip_instance_cache=True)

    def append(self, session: str, seq: int, line: bytes) -> object:
        return self._fs.pipe_file(self._path(session, seq), line, mode="create")

    def _keys(self, session: str) -> list[str]:
        found = self._fs.ls(os.path.join(self._root, prefix(session)), detail=True)
        return [key for *_, key in parsed(each["name"] for each in found)]

    def list(self, session: str) -> int:
        return len(self._keys(session))

    def read(self, session: str) -> int:
        return count_lines(self._fs.cat_file(key) for key in self._keys(session))


class SystemCalls(_Segments):
    """The least that makes a file appear whole, only once, and survive a power failure: temp, fsync, link, fsync."""

    def append(self, session: str, seq: int, line: bytes) -> object:
        path = self._path(session, seq)
        directory = os.path.dirname(path)
        temporary = os.path.join(directory, f".temp-{seq}")
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            os.write(file, line)
            os.fsync(file)
        finally:
            os.close(file)
        os.link(temporary, path)
        os.unlink(temporary)
        file = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
        return path

    def _keys(self, session: str) -> list[str]:
        with os.scandir(os.path.join(self._root, prefix(session))) as found:
            return [key for *_, key in parsed(each.path for each in found if each.stat().st_size)]

    def list(self, session: str) -> int:
        return len(self._keys(session))

    def read(self, session: str) -> int:
        return count_lines(Path(key).read_bytes() for key in self._keys(session))


class OneFile(Threaded):
    """A file per session, written at its end and flushed: for one writer, on one machine."""

    def __init__(self, place: Place) -> None:
        self._root = place.endpoint
        self._files: dict[str, int] = {}

    def _path(self, session: str) -> str:
        return os.path.join(self._root, f"{session}.jsonl")

    def append(self, session: str, seq: int, line: bytes) -> object:
        if session not in self._files:
            self._files[session] = os.open(self._path(session), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        written = os.write(self._files[session], line)
        os.fsync(self._files[session])
        return written

    def read(self, session: str) -> int:
        return count_lines([Path(self._path(session)).read_bytes()])

    def close(self) -> None:
        for each in self._files.values():
            os.close(each)


class SQLite:
    """A row per record, a transaction per append, synchronous=FULL: for one machine."""

    def __init__(self, place: Place) -> None:
        self._base = sqlite3.connect(os.path.join(place.endpoint, "transcripts.sqlite"), isolation_level=None)
        self._base.execute("PRAGMA journal_mode=WAL")
        self._base.execute("PRAGMA synchronous=FULL")
        self._base.execute("CREATE TABLE IF NOT EXISTS records (session, seq, line, PRIMARY KEY (session, seq))")

    def append(self, session: str, seq: int, line: bytes) -> object:
        return self._base.execute("INSERT INTO records VALUES (?, ?, ?)", (session, seq, line))

    def read(self, session: str) -> int:
        rows = self._base.execute("SELECT line FROM records WHERE session = ? ORDER BY seq", (session,))
        return count_lines(line for (line,) in rows)

    def close(self) -> None:
        self._base.close()
