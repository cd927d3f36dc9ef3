"""A writer's journal: records on this machine's disk until the store has them, so that a killed process loses none.

One file for each writer, in a directory of the user's. A line each: a letter, the CRC-32 of letter and rest, the rest.

- ``H``: what it is the journal of, as JSON; twice, so that one damaged line can't hide it;
- ``R``: a record: its seq and its line;
- ``C``: a batch that may have been sent, by its first and last seq: it is sent again with the same bounds;
- ``D``: everything up to this seq is stored.

The file is locked as long as its writer lives, and has its name only once it is locked and its header is on the disk. It
is replaced, by a file with what still waits, when it has grown, after a failure of the disk, and where its name is lost.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from transcript_backends.hashing import sha256
from transcript_backends.machine import Disk, Machine
from transcript_backends.refs import TranscriptRef

FORMAT = 3  # 1 had one header, which did not tell servers apart; in 1 and 2 the letters were not part of the checksums
SUFFIX = ".journal"
_ROTATE_BYTES = 4 * 1024 * 1024  # a smaller journal is not replaced for its size
_ATTEMPTS = 10  # to make a file that nobody takes for a dead writer's before it is locked


class Batch(NamedTuple):
    """Records with consecutive seqs, without newlines; once it was sent its bounds never change."""

    seq_start: int
    lines: list[bytes]

    @property
    def seq_end(self) -> int:
        return self.seq_start + len(self.lines) - 1

    @property
    def body(self) -> bytes:
        return b"".join(line + b"\n" for line in self.lines)


class Header(NamedTuple):
    """What a journal is the journal of.

    Attributes:
        store: the store's location, root included.
        identity: tells the store from others of that location, on other servers say; empty where that is not known.
        ref: the transcript.
        writer_id: whose records it holds.
        offload_bytes: the writer's limit, by which a batch that is sent again has the same bytes.
    """

    store: str
    identity: str
    ref: TranscriptRef
    writer_id: str
    offload_bytes: int | None

    @property
    def line(self) -> bytes:
        members = {
            "format": FORMAT,
            "store": self.store,
            "identity": self.identity,
            "ref": [self.ref.tenant, self.ref.agent_id, self.ref.session_id],
            "writer": self.writer_id,
            "offload": self.offload_bytes,
        }
        return encode("H", json.dumps(members).encode())

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{name_prefix(self.store, self.ref)}{sha256(self.identity.encode())[:8]}-{self.writer_id}{SUFFIX}"


class Waiting(NamedTuple):
    """What a journal has to hold.

    Attributes:
        sent: the batch that may have been sent already.
        records: all that is not known to be stored, the batch included.
    """

    sent: Batch | None
    records: Batch


class Journal:
    """The journal of one writer, made anew.

    Only `sync` may be called by several threads concurrently; the writer's lock is held around everything else.

    Args:
        machine: where the file is.
        directory: made where it is missing.
        header: what it is the journal of.
        waiting: returns what it has to hold.

    Raises:
        FileExistsError: there is one of this writer.
        OSError: the directory can't be written.
    """

    def __init__(self, machine: Machine, directory: str, header: Header, waiting: Callable[[], Waiting]) -> None:
        self._machine, self._disk = machine, machine.disk
        self._directory, self._header, self._waiting = directory, header.line * 2, waiting
        self.path = os.path.join(directory, header.name)
        self._syncing = machine.condition()
        self._written = self._position = self._synced = 0  # bytes in the file; ever written; of these, on the disk
        self._rotate_at = _ROTATE_BYTES
        self._is_sound = True  # the file holds all that was written, and has its name
        self._file = -1
        self._disk.make_directory(directory)
        try:
            self._replace()
        except BaseException:
            self.close(remove=True)
            raise

    def add(self, seq: int, line: bytes) -> int:
        """Write a record down; returns the position up to which `sync` makes it durable."""
        if not self._is_sound:
            self.renew()
        return self._append(encode("R", b"%d %s" % (seq, line)))

    def cut(self, batch: Batch) -> int:
        """Write the bounds of a batch down; returns the position up to which `sync` makes them durable."""
        if not self._is_sound:
            self.renew()
        return self._append(encode("C", b"%d %d" % (batch.seq_start, batch.seq_end)))

    def sync(self, position: int) -> None:
        """Return when all up to a position is on the disk; threads that wait together share one flush.

        Raises:
            OSError: it may not be, nor anything that was written since the last flush: `renew` it, or `take_back` records.
        """
        with self._syncing:
            if self._synced >= position:
                return
            reached = self._position
            try:
                if not self._is_sound:
                    raise OSError(errno.EIO, os.strerror(errno.EIO), self.path)
                self._disk.flush(self._file)
                if not self._disk.is_at(self._file, self.path):
                    raise FileNotFoundError(errno.ENOENT, "it was removed or replaced", self.path)
            except OSError:
                self._is_sound = False  # a second flush would succeed, and prove nothing
                raise
            self._synced = reached

    def renew(self) -> None:
        """Replace the file by one with what waits, on the disk when this returns.

        Raises:
            OSError: it could not be; whatever was durable before still is.
        """
        with self._syncing:
            self._replace()

    def done(self, seq: int, waiting_bytes: int) -> None:
        """Everything up to a seq is stored, so many bytes are not. Never fails: what is stored may be sent again."""
        with contextlib.suppress(OSError):
            if self._is_sound:
                self._append(encode("D", b"%d" % seq))
            if self._written > max(self._rotate_at, 4 * waiting_bytes):
                self._rotate_at = 2 * self._written  # where it can't be replaced, it is not tried for every batch
                self.renew()

    def take_back(self, seq: int) -> None:
        """See that the records from a seq on are not found in the file, as far as the disk allows."""
        self._is_sound = False
        with contextlib.suppress(OSError):
            kept = 0
            for raw in self._disk.read(self._file).split(b"\n"):
                if raw[:1] == b"R" and (record := decode(raw)) and int(record.partition(b" ")[0]) >= seq:
                    self._disk.truncate(self._file, kept)
                    self._disk.flush(self._file)
                    break
                kept += len(raw) + 1

    def close(self, *, remove: bool) -> None:
        """Unlock it; ``remove`` it where nothing is left to send. A second call does nothing."""
        file, self._file = self._file, -1  # the number may soon be another file's
        if file < 0:
            return
        try:
            if remove and self._disk.is_at(file, self.path):
                self._disk.unlink(self.path)
                self._disk.flush_directory(self._directory)
        except OSError:
            pass  # what is stored is found there again, and sent again
        finally:
            self._disk.close(file)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _append(self, line: bytes) -> int:
        try:
            write_all(self._disk, self._file, line)
        except OSError:
            try:
                self._disk.truncate(self._file, self._written)
            except OSError:
                self._is_sound = False  # what comes after half a line could not be read
            raise
        self._written += len(line)
        self._position += len(line)
        return self._position

    def _replace(self) -> None:
        content = b"".join(self._content())
        for remaining in reversed(range(_ATTEMPTS)):
            try:
                self._replace_by(content)
            except FileNotFoundError:
                if not remaining:
                    raise
                self._disk.make_directory(self._directory)
            else:
                break

    def _replace_by(self, content: bytes) -> None:
        temporary = os.path.join(self._directory, f".{os.path.basename(self.path)}.{self._machine.token()}")
        file = self._disk.create(temporary)
        try:
            if not self._disk.lock(file):  # somebody who looks for what the dead have left was faster
                raise FileNotFoundError(errno.ENOENT, "it was taken for a dead writer's", temporary)
            write_all(self._disk, file, content)
            self._disk.flush(file)
            self._give_name(temporary)
        except BaseException:
            with contextlib.suppress(OSError):
                self._disk.unlink(temporary)
            self._disk.close(file)
            raise
        before, self._file = self._file, file
        if before >= 0:
            self._disk.close(before)
        self._written, self._rotate_at = len(content), _ROTATE_BYTES
        self._is_sound = False
        self._disk.flush_directory(self._directory)
        self._is_sound, self._synced = True, self._position

    def _give_name(self, temporary: str) -> None:
        if self._file >= 0 and self._disk.is_at(self._file, self.path):
            self._disk.rename(temporary, self.path)
            return
        try:
            self._disk.link(temporary, self.path)
        except FileExistsError:
            if self._file < 0:
                raise
            # Our name was lost, and given to another file: it may hold what somebody has confirmed.
            self.path = f"{self.path.removesuffix(SUFFIX)}-{self._machine.token()}{SUFFIX}"
            self._disk.link(temporary, self.path)
        with contextlib.suppress(FileNotFoundError):  # where there are no links
            self._disk.unlink(temporary)

    def _content(self) -> Iterable[bytes]:
        yield self._header
        sent, records = self._waiting()
        if sent:
            yield encode("C", b"%d %d" % (sent.seq_start, sent.seq_end))
        for seq, line in enumerate(records.lines, records.seq_start):
            yield encode("R", b"%d %s" % (seq, line))


# --- lines and names, which leftovers.py reads ------------------------------------------------------------------------


def encode(kind: str, rest: bytes, *, is_old: bool = False) -> bytes:
    """A line of a journal; ``is_old``: of one before format 3."""
    return b"%s%s%s\n" % (kind.encode(), _checksum(kind.encode(), rest, is_old), rest)


def decode(raw: bytes, *, is_old: bool = False) -> bytes | None:
    """What follows the checksum in a line without its newline; None where that is wrong."""
    rest = raw[10:]
    return rest if raw[1:10] == _checksum(raw[:1], rest, is_old) else None


def _checksum(letter: bytes, rest: bytes, is_old: bool) -> bytes:
    return b"%08x " % zlib.crc32(rest, 0 if is_old else zlib.crc32(letter))


def name_prefix(store: str, ref: TranscriptRef) -> str:
    """How the names of a transcript's journals begin; after a dot, those of files that are to become one."""
    return sha256(f"{store}\n{ref.prefix}".encode())[:16] + "-"


def write_all(disk: Disk, file: int, data: bytes) -> None:
    """Append all of some data."""
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[disk.write(file, remaining) :]
