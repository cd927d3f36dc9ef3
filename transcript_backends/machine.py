"""What a writer asks of the machine it runs on: threads, and files that survive a crash. Simulations bring their own."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from functools import cached_property
from types import TracebackType
from typing import Protocol

from transcript_backends.filesystem import FileSystem

_READ_BYTES = 1024 * 1024


class Condition(Protocol):
    """As `threading.Condition`."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

    def wait(self, timeout: float | None = None) -> bool: ...

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool: ...

    def notify_all(self) -> None: ...


class Thread(Protocol):
    """As `threading.Thread`, started."""

    def join(self, timeout: float | None = None) -> None: ...


class Disk(Protocol):
    """Files, by descriptor and path. Whatever fails raises `OSError`."""

    def make_directory(self, path: str) -> None:
        """Create a directory where it is missing, with its parents, durably."""

    def names(self, directory: str) -> list[str]:
        """The names in a directory, sorted; none where it is missing."""

    def create(self, path: str) -> int:
        """Open a new file for reading and appending; `FileExistsError` where the name is taken."""

    def open(self, path: str) -> int:
        """Open a file for reading and appending."""

    def lock(self, file: int) -> bool:
        """Lock a file against other processes until it is closed; False where another one has locked it.

        Raises:
            OSError: there are no locks here.
        """

    def is_at(self, file: int, path: str) -> bool:
        """Whether this path still leads to this open file."""

    def read(self, file: int) -> bytes:
        """All of it."""

    def write(self, file: int, data: memoryview) -> int:
        """Append; returns how many bytes were written, which may be fewer."""

    def truncate(self, file: int, size: int) -> None: ...

    def flush(self, file: int) -> None:
        """Return when the content is on the disk."""

    def flush_directory(self, path: str) -> None:
        """Return when the names in a directory are on the disk."""

    def link(self, path: str, name: str) -> None:
        """Give a file another name; `FileExistsError` where that is taken. Without hard links it loses its own."""

    def rename(self, path: str, name: str) -> None:
        """Give a file this name in place of its own, and of whatever has it."""

    def unlink(self, path: str) -> None: ...

    def close(self, file: int) -> None: ...


class Machine(Protocol):
    """Threads and files.

    Attributes:
        disk: the files.
    """

    @property
    def disk(self) -> Disk: ...

    def condition(self) -> Condition:
        """A new condition variable with a lock of its own."""

    def start(self, name: str, run: Callable[[], None]) -> Thread:
        """Run something in a daemon thread."""

    def token(self) -> str:
        """Twelve letters and digits that nobody else chooses."""


class SystemDisk:
    """The file systems of this machine (POSIX)."""

    @cached_property
    def _system(self) -> FileSystem:
        return FileSystem()

    def make_directory(self, path: str) -> None:
        self._system.make_directory(os.path.abspath(path))

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def create(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def open(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)

    def lock(self, file: int) -> bool:
        return self._system.try_lock(file)

    def is_at(self, file: int, path: str) -> bool:
        try:
            return os.path.samestat(os.fstat(file), os.stat(path))
        except FileNotFoundError:
            return False

    def read(self, file: int) -> bytes:
        parts: list[bytes] = []
        position = 0
        while part := os.pread(file, _READ_BYTES, position):
            parts.append(part)
            position += len(part)
        return b"".join(parts)

    def write(self, file: int, data: memoryview) -> int:
        return os.write(file, data)

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def flush(self, file: int) -> None:
        self._system.flush(file, "a journal")

    def flush_directory(self, path: str) -> None:
        self._system.flush_directory(path)

    def link(self, path: str, name: str) -> None:
        self._system.name_new(path, name)

    def rename(self, path: str, name: str) -> None:
        os.replace(path, name)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def close(self, file: int) -> None:
        os.close(file)


class System:
    """This machine."""

    def __init__(self) -> None:
        self.disk: Disk = SystemDisk()

    def condition(self) -> Condition:
        return threading.Condition()

    def start(self, name: str, run: Callable[[], None]) -> Thread:
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def token(self) -> str:
        return secrets.token_hex(6)
