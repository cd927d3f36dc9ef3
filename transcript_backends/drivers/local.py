"""Objects as files below a directory: atomic, exclusive, durable, on POSIX file systems.

A create writes a temporary file beside its target, flushes it, links it to its name (which fails where the name is
taken), and flushes the directory: a name never shows a part of its bytes, and what `put` has returned survives a power
cut. What becomes of that on a file system without links, flushes or locks: `FileSystem`. Metadata is not kept.
Directories are never removed, since another process may be about to use them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone

from transcript_backends.drivers.driver import (
    Body,
    Capabilities,
    Failure,
    Head,
    IfMatch,
    Meaning,
    ObjectInfo,
    Page,
    PutMode,
    Unread,
)
from transcript_backends.drivers.spelling import OtherSpelling, Spellings
from transcript_backends.drivers.walks import See, Walks, walk
from transcript_backends.filesystem import OUTAGES, FileSystem

_ABANDONED_SECONDS = 24 * 3600
_TEMPORARY = ".tmp-"
_PLAIN_SECONDS = 1.0  # a link that comes in this time is as one that comes between a look and the use of what was seen
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class _Changed(Exception):
    """The file has another version than the one to be replaced."""


class _Refused(Exception):
    """A key that would leave the directory, through a link say."""


class _NoRoot(Exception):
    """The store's directory itself is missing."""


class LocalObjectStore:
    """Files below ``directory`` (absolute), which the first write makes where it is missing.

    Raises:
        OSError: it is no directory, or can't be looked at.
    """

    details = ""

    def __init__(self, directory: str) -> None:
        self._system = FileSystem()
        self._is_new = not _is_directory(directory)
        self.location = f"file://{directory}"
        self.capabilities = Capabilities(one_pass=False, parallel=1, conditional_delete=True, unfit_in_names=r"\A\.")
        self._root = os.path.realpath(directory)
        self._walks = Walks(self._walk)
        self._plain: tuple[str, float] = "", 0.0  # a directory no link leads to, and when that was seen
        self._settled: set[str] = set()  # directories whose own entries are known to be on disk
        self._unflushed: set[str] = set()  # directories with names that may not be on disk
        self._spellings = Spellings()

    @property
    def remarks(self) -> list[str]:
        """What the file system was found not to offer, and what follows from it."""
        return list(self._system.lacks.values())

    @property
    def is_there(self) -> bool:
        """Whether the directory is there. One that never was is as good as empty to whoever is about to write."""
        return os.path.isdir(self._root)

    # --- write --------------------------------------------------------------------------------------------------------

    def put(self, key: str, body: bytes, *, mode: PutMode, metadata: Mapping[str, str]) -> str:
        target = self._path(key) if mode == "create" else self._file(key)
        while True:
            directory = os.path.dirname(target)
            self._settle(directory)
            try:
                return self._write(directory, target, body, mode)
            except FileNotFoundError:
                if os.path.isdir(directory):
                    raise
                self._settled.clear()  # somebody removed the directory since: make it again

    def _write(self, directory: str, target: str, body: bytes, mode: PutMode) -> str:
        temporary = os.path.join(
            directory, f".{os.path.basename(target)[:150]}{_TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}"
        )
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o666)
        try:
            try:
                remaining = memoryview(body)
                while remaining:
                    remaining = remaining[os.write(descriptor, remaining) :]
                # The kernel's own stamp is coarse; versions need a fine one.
                self._system.stamp(descriptor, time.time_ns(), temporary)
                self._system.flush(descriptor, temporary)
                version = _version(os.fstat(descriptor))
            finally:
                os.close(descriptor)
            if mode == "create":
                self._link_durably(temporary, target)
            elif mode == "overwrite":
                with self._system.locked(directory):  # not between the look and the replacement of another
                    os.replace(temporary, target)
            else:
                version = self._replace(directory, temporary, target, mode)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        self._flush_names(directory)
        return version

    def _link_durably(self, source: str, target: str) -> None:
        try:
            self._system.name_new(source, target)
        except FileExistsError:
            if os.path.islink(target) or os.path.isdir(target):
                raise _Refused(f"{target!r} is not a regular file") from None
            # Whoever put it there may have died before flushing its name, and our caller may find that it is what he wants.
            self._flush_names(os.path.dirname(target))
            raise

    def _flush_names(self, directory: str) -> None:
        """Until this has succeeded, no name in the directory may be told to be stored."""
        self._unflushed.add(directory)
        self._system.flush_directory(directory)
        self._unflushed.discard(directory)

    def _replace(self, directory: str, temporary: str, target: str, expected: IfMatch) -> str:
        with self._system.locked(directory, required=True):
            try:
                present = os.lstat(target)
            except FileNotFoundError:
                raise _Changed(target) from None
            if _version(present) != expected.version:
                raise _Changed(target)
            stamp = max(time.time_ns(), present.st_mtime_ns + 1)
            self._system.stamp(temporary, stamp, temporary)
            os.replace(temporary, target)
            return _version(os.lstat(target))

    def _settle(self, directory: str) -> None:
        """Make a directory and its parents, and see that the entry of each is on disk before anything is stored in it."""
        if directory in self._settled:
            return
        if directory == self._root:
            self._system.make_directory(directory)
            self._is_new = False
        else:
            self._settle(os.path.dirname(directory))
            try:
                os.mkdir(directory)
            except FileExistsError:
                self._spellings.check(directory)  # somebody else may have made it meanwhile
            self._system.flush_directory(os.path.dirname(directory))
            _sweep(directory)
        self._settled.add(directory)

    def delete_many(self, keys: Sequence[str], *, versions: Mapping[str, str] | None = None) -> Mapping[str, Exception]:
        failed: dict[str, Exception] = {}
        touched: set[str] = set()
        for key in keys:
            try:
                path = self._file(key)
                directory = os.path.dirname(path)
                with self._system.locked(directory):
                    if versions and key in versions and _version(os.lstat(path)) != versions[key]:
                        continue
                    os.unlink(path)
                touched.add(directory)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except Exception as error:
                failed[key] = error
        for directory in touched:
            with contextlib.suppress(FileNotFoundError):
                self._system.flush_directory(directory)
        return failed

    # --- read ---------------------------------------------------------------------------------------------------------

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> Body:
        descriptor = os.open(self._file(key), os.O_RDONLY | _NO_FOLLOW)
        try:
            info = _info(key, os.fstat(descriptor))
            stop = info.size if end is None else min(end, info.size)
            return Body(info, _FileRange(descriptor, start, stop), {})
        except BaseException:
            os.close(descriptor)
            raise

    def head(self, key: str) -> Head:
        path = self._file(key)
        info = _info(key, os.lstat(path))
        if os.path.dirname(path) in self._unflushed:  # by a put that has failed, whose caller asks what became of it
            self._flush_names(os.path.dirname(path))
        return Head(info, {})

    def list_page(self, prefix: str, *, start_after: str = "", token: str | None = None) -> Page:
        if not (self._is_new or self.is_there):  # in this order: another thread may be making it
            raise _NoRoot(self._root)
        return self._walks.page(prefix, start_after, token, datetime.now(timezone.utc))

    def _walk(self, prefix: str, after: str) -> Iterator[ObjectInfo | Unread]:
        self._path(f"{prefix}any")  # refuses links on the way there; those on the way from there are not followed
        return walk(self._look_into, prefix, after)

    def _look_into(self, prefix: str) -> tuple[list[str], See]:
        """As `walks.LookInto`. Dot files are temporary ones; links and odd files are no objects."""
        directory = os.path.join(self._root, prefix)

        def see(name: str) -> ObjectInfo | Unread | None:
            path = os.path.join(directory, name)
            try:
                status = os.lstat(path)
            except FileNotFoundError:
                return None
            if stat.S_ISREG(status.st_mode):
                return _info(prefix + name, status)
            if os.path.isdir(path):
                return Unread(
                    f"{prefix}{name}/",
                    _Refused(
                        f"{prefix}{name} is a symbolic link to a directory, which is not followed: move the directory here"
                    ),
                )
            return None

        try:
            with os.scandir(directory) as entries:
                names = [
                    entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name
                    for entry in entries
                    if not entry.name.startswith(".")
                ]
        except (FileNotFoundError, NotADirectoryError):
            names = []
        return names, see

    # --- the rest -----------------------------------------------------------------------------------------------------

    def _path(self, key: str) -> str:
        parts = key.split("/")
        if not all(parts) or "." in parts or ".." in parts or "\0" in key:
            raise _Refused(f"{key!r} has an empty, '.' or '..' segment")
        directory = os.path.join(self._root, *parts[:-1])
        seen, at = self._plain
        if seen != directory or time.monotonic() - at > _PLAIN_SECONDS:
            if os.path.realpath(directory) != directory:
                raise _Refused(f"{key!r} leads through a symbolic link")
            below = self._root
            for part in parts[:-1]:
                below = os.path.join(below, part)
                self._spellings.check(below)
            self._plain = directory, time.monotonic()
        return os.path.join(directory, parts[-1])

    def _file(self, key: str) -> str:
        """As `_path`, of a file that is at hand: under this very name, if it is there."""
        path = self._path(key)
        self._spellings.check(path)
        return path

    def classify(self, error: Exception) -> Failure | None:
        if isinstance(error, _Refused):
            return Failure(Meaning.DENIED, str(error))
        if isinstance(error, OtherSpelling):
            return Failure(Meaning.NO_NAME, str(error))
        if isinstance(error, _NoRoot):
            return Failure(Meaning.CONTAINER_NOT_FOUND, "the directory does not exist")
        if isinstance(error, _Changed):
            return Failure(Meaning.PRECONDITION, "the file has changed")
        if not isinstance(error, OSError):
            return None
        if isinstance(error, FileExistsError):
            meaning = Meaning.PRECONDITION
        elif isinstance(error, FileNotFoundError):
            meaning = Meaning.NOT_FOUND if self._is_new or self.is_there else Meaning.CONTAINER_NOT_FOUND
        elif error.errno in (errno.ENAMETOOLONG, errno.EILSEQ) or (error.errno == errno.EINVAL and error.filename):
            # Names that are too long, reserved, or of characters that are not allowed there.
            return Failure(Meaning.NO_NAME, f"the file system takes no such name: {error.strerror}")
        elif error.errno in OUTAGES:
            meaning = Meaning.TRY_AGAIN
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP):
            meaning = Meaning.DENIED
        else:
            meaning = Meaning.UNSUPPORTED if error.errno in (errno.ENOTSUP, errno.ENOLCK) else Meaning.OTHER
        return Failure(meaning, error.strerror or type(error).__name__)

    def renew(self) -> bool:
        return False

    def close(self) -> None:
        pass


class _FileRange:
    """The bytes of an open file from one offset up to another."""

    def __init__(self, descriptor: int, position: int, stop: int) -> None:
        self._descriptor: int | None = descriptor
        self._position, self._stop = position, stop

    def read(self, size: int, /) -> bytes:
        if self._descriptor is None or self._position >= self._stop:
            return b""
        chunk = os.pread(self._descriptor, min(size, self._stop - self._position), self._position)
        self._position += len(chunk)
        return chunk

    def close(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    __del__ = close


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    if not stat.S_ISREG(status.st_mode):
        raise FileNotFoundError(errno.ENOENT, "not a regular file")
    return ObjectInfo(key, status.st_size, datetime.fromtimestamp(status.st_mtime, timezone.utc), _version(status))


def _is_directory(path: str) -> bool:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    return True


def _version(status: os.stat_result) -> str:
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"


def _sweep(directory: str) -> None:
    """Remove temporary files that a crash left a day ago or earlier."""
    for entry in os.scandir(directory):
        if entry.name.startswith(".") and _TEMPORARY in entry.name:
            with contextlib.suppress(OSError):
                if time.time() - entry.stat(follow_symlinks=False).st_mtime > _ABANDONED_SECONDS:
                    os.unlink(entry.path)
