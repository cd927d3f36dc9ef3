"""Real disks that are full for a moment, fail, or forget at a power cut what was not flushed."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from pathlib import Path

from transcript_backends.machine import Disk, System, SystemDisk


class FlakyDisk(SystemDisk):
    """Fails calls at random, in bursts.

    Args:
        code: of the error.
        operations: which calls fail.
        chance: that a burst begins with a call.
    """

    def __init__(self, code: int, operations: set[str], chance: float = 0.05) -> None:
        self._code, self._operations, self._chance = code, operations, chance
        self._remaining = 0
        self._random = random.Random(os.getpid())

    def _fail(self, operation: str) -> None:
        if operation in self._operations:
            if not self._remaining and self._random.random() < self._chance:
                self._remaining = self._random.randint(1, 8)
            if self._remaining:
                self._remaining -= 1
                raise OSError(self._code, os.strerror(self._code))

    def create(self, path: str) -> int:
        self._fail("create")
        return super().create(path)

    def write(self, file: int, data: memoryview) -> int:
        try:
            self._fail("write")
        except OSError:
            super().write(file, data[: self._random.randrange(len(data))])  # some of it is there all the same
            raise
        return super().write(file, data)

    def truncate(self, file: int, size: int) -> None:
        self._fail("truncate")
        super().truncate(file, size)

    def flush(self, file: int) -> None:
        self._fail("flush")
        super().flush(file)

    def flush_directory(self, path: str) -> None:
        self._fail("flush_directory")
        super().flush_directory(path)

    def rename(self, path: str, name: str) -> None:
        self._fail("rename")
        super().rename(path, name)


HEALTHY: Disk = SystemDisk()


def disk(kind: str) -> Disk:
    """A disk of a kind: healthy, full (it can still free space), or failing (all but what shortens a file)."""
    if kind == "full":
        return FlakyDisk(errno.ENOSPC, {"create", "write", "flush", "flush_directory", "rename"})
    if kind == "failing":
        return FlakyDisk(errno.EIO, {"create", "write", "flush", "flush_directory", "rename"})
    return HEALTHY


class RememberingDisk:
    """Passes calls on, and notes what a disk would have after a power cut.

    Args:
        inner: the disk.
        directory: the only one that is used.
        notes: a directory for the notes: ``names``, and the content of each file that was flushed.
    """

    def __init__(self, inner: Disk, directory: str, notes: str) -> None:
        self._inner, self._directory, self._notes = inner, directory, Path(notes)
        (self._notes / "names").unlink(missing_ok=True)  # first: names without their contents would be of empty files
        shutil.rmtree(notes, ignore_errors=True)
        os.makedirs(notes)
        os.makedirs(directory, exist_ok=True)
        self._ids: dict[int, str] = {}  # by inode, whose numbers are used again while the disk still has the file before
        for each in os.scandir(directory):
            self._ids[each.inode()] = os.urandom(8).hex()
            shutil.copy(each.path, self._notes / self._ids[each.inode()])
        self._note_names()

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def create(self, path: str) -> int:
        file = self._inner.create(path)
        self._ids[os.fstat(file).st_ino] = os.urandom(8).hex()
        return file

    def flush(self, file: int) -> None:
        content = self._inner.read(file)
        self._inner.flush(file)
        self._note(self._ids[os.fstat(file).st_ino], content)

    def flush_directory(self, path: str) -> None:
        self._inner.flush_directory(path)
        self._note_names()

    def _note_names(self) -> None:
        names = {each.name: self._ids[each.inode()] for each in os.scandir(self._directory)}
        self._note("names", json.dumps(names).encode())

    def _note(self, name: str, content: bytes) -> None:
        beside = self._notes / f"{name}.{os.urandom(4).hex()}"  # several threads, and killed anywhere
        beside.write_bytes(content)
        beside.rename(self._notes / name)


def cut_power(directory: str, notes: str) -> None:
    """Make a directory what it would be after a power cut: what was flushed."""
    names = Path(notes) / "names"
    if not names.exists():  # the process was killed before it used the disk
        return
    kept = {
        name: noted.read_bytes() if (noted := Path(notes) / each).exists() else b""
        for name, each in json.loads(names.read_bytes()).items()
    }
    shutil.rmtree(directory)
    os.makedirs(directory)
    for name, content in kept.items():
        (Path(directory) / name).write_bytes(content)


def machine(kind: str, directory: str, notes: str) -> System:
    """This machine, with a disk of a kind, and notes for a power cut where ``notes`` is a path."""
    here = System()
    here.disk = RememberingDisk(disk(kind), directory, notes) if notes else disk(kind)  # type: ignore[assignment]
    return here
