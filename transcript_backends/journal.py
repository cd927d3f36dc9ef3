"""A writer's journal: records on this machine's disk until the store has them, so that a killed process loses none.

One file for each writer, in a directory of the user's. A line each: a letter, the CRC-32 of the rest, the rest.

- ``H``: what it is the journal of, as JSON;
- ``R``: a record: its seq and its line;
- ``C``: a batch that may be under way, by its first and last seq: it is sent like this or not at all;
- ``D``: everything up to this seq is stored.

A line cut short ends the journal. The file is locked as long as its writer lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import zlib
from collections.abc import Generator, Iterator
from typing import NamedTuple

from transcript_backends.errors import CorruptSegmentError
from transcript_backends.hashing import sha256
from transcript_backends.refs import TranscriptRef

_FORMAT = 1
_SUFFIX = ".journal"
_ROTATE_BYTES = 4 * 1024 * 1024


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


class Journal:
    """The journal of one writer, made anew.

    Args:
        directory: made where it is missing.
        store: the store's location.
        ref: the transcript.
        writer_id: of the writer.
        offload_bytes: of the writer.

    Raises:
        FileExistsError: there is one of this writer.
        OSError: the directory can't be written.
    """

    def __init__(
        self, directory: str, store: str, ref: TranscriptRef, writer_id: str, offload_bytes: int | None = None
    ) -> None:
        os.makedirs(directory, exist_ok=True)
        self._path = os.path.join(directory, f"{_prefix(store, ref)}{writer_id}{_SUFFIX}")
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        header = {"format": _FORMAT, "store": store, "ref": list(_ids(ref)), "writer": writer_id, "offload": offload_bytes}
        self._header = _line("H", json.dumps(header).encode())
        self._written = self._synced = 0
        self._syncing = threading.Lock()
        self._write(self._header)
        self.sync()
        _flush_directory(directory)

    def add(self, seq: int, line: bytes) -> None:
        """Write a record down; `sync` makes it durable. Calls must not overlap."""
        self._write(_line("R", b"%d %s" % (seq, line)))

    def cut(self, batch: Batch) -> None:
        """Fix the bounds of a batch, durably, before it is sent."""
        self._write(_line("C", b"%d %d" % (batch.seq_start, batch.seq_end)))
        self.sync()

    def done(self, seq: int, *, empty: bool) -> None:
        """Everything up to a seq is stored; ``empty``: nothing else was added."""
        if empty and self._written > _ROTATE_BYTES:
            os.ftruncate(self._file, len(self._header))
            self._written, self._synced = len(self._header), 0
        else:
            self._write(_line("D", b"%d" % seq))

    def sync(self) -> None:
        """Wait until all that was written is on disk; threads that wait together share one flush."""
        wanted = self._written
        with self._syncing:
            if self._synced < wanted:
                reached = self._written
                os.fsync(self._file)
                self._synced = reached

    def close(self, *, remove: bool) -> None:
        """Unlock it; ``remove`` it where nothing is left to send. A second call does nothing."""
        file, self._file = self._file, -1  # the number may soon be another file's
        if file < 0:
            return
        if remove:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
        os.close(file)

    def _write(self, line: bytes) -> None:
        remaining = memoryview(line)
        try:
            while remaining:
                remaining = remaining[os.write(self._file, remaining) :]
        except OSError:
            os.ftruncate(self._file, self._written)  # a line cut short would end the journal
            raise
        self._written += len(line)


class Leftover(NamedTuple):
    """What a writer that is gone has not been able to send.

    Attributes:
        path: its journal.
        writer_id: whose records they are.
        batches: to send as they are, in order.
        offload_bytes: of the writer: a batch that was sent has its payloads by this.
    """

    path: str
    writer_id: str
    batches: list[Batch]
    offload_bytes: int | None


@contextlib.contextmanager
def leftovers(directory: str, store: str, ref: TranscriptRef, most_bytes: int) -> Iterator[Iterator[Leftover]]:
    """The journals of writers of this transcript that are gone, each locked until the next one is asked for.

    A journal is removed when the next one is asked for: by then its batches are stored.
    """
    with contextlib.closing(_leftovers(directory, store, ref, most_bytes)) as found:
        yield found


def _leftovers(directory: str, store: str, ref: TranscriptRef, most_bytes: int) -> Generator[Leftover, None, None]:
    prefix = _prefix(store, ref)
    names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    for name in names:
        if not (name.startswith(prefix) and name.endswith(_SUFFIX)):
            continue
        path = os.path.join(directory, name)
        try:
            file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with open(file, "rb", closefd=False) as stream:
                writer_id, offload_bytes, batches, whole, uncut = _parse(stream.read(), path, most_bytes)
            os.ftruncate(file, whole)
            for batch in uncut:
                os.write(file, _line("C", b"%d %d" % (batch.seq_start, batch.seq_end)))
            os.fsync(file)
            yield Leftover(path, writer_id, [*batches, *uncut], offload_bytes)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        except BlockingIOError:  # its writer is alive
            continue
        finally:
            os.close(file)


def _parse(stored: bytes, path: str, most_bytes: int) -> tuple[str, int | None, list[Batch], int, list[Batch]]:
    """The writer and its limit, the batches cut and not known to be stored, how much is whole, and batches of the rest."""
    writer_id, offload_bytes = "", None
    records: dict[int, bytes] = {}
    cuts: list[tuple[int, int]] = []
    whole = 0
    for raw in stored.split(b"\n")[:-1]:
        kind, rest = raw[:1], raw[10:]
        if raw[1:10] != b"%08x " % zlib.crc32(rest):
            break
        if kind == b"H":
            header = json.loads(rest)
            if header["format"] != _FORMAT:
                raise CorruptSegmentError(f"journal {path!r} has format {header['format']!r}, this version reads {_FORMAT}")
            writer_id, offload_bytes = header["writer"], header.get("offload")
        elif kind == b"R":
            seq, _, line = rest.partition(b" ")
            records[int(seq)] = line
        elif kind == b"C":
            first, last = map(int, rest.split())
            cuts.append((first, last))
        elif kind == b"D":
            cuts = [cut for cut in cuts if cut[0] > int(rest)]
            records = {seq: line for seq, line in records.items() if seq > int(rest)}
        whole += len(raw) + 1
    batches = [Batch(first, [records.pop(seq) for seq in range(first, last + 1)]) for first, last in cuts]
    return writer_id, offload_bytes, batches, whole, list(_cut(records, most_bytes))


def _cut(records: dict[int, bytes], most_bytes: int) -> Iterator[Batch]:
    batch: Batch | None = None
    size = 0
    for seq in sorted(records):
        line = records[seq]
        if batch is not None and (size + len(line) > most_bytes or seq != batch.seq_end + 1):
            yield batch
            batch = None
        if batch is None:
            batch, size = Batch(seq, []), 0
        batch.lines.append(line)
        size += len(line) + 1
    if batch is not None:
        yield batch


def _line(kind: str, rest: bytes) -> bytes:
    return b"%s%08x %s\n" % (kind.encode(), zlib.crc32(rest), rest)


def _prefix(store: str, ref: TranscriptRef) -> str:
    return sha256(f"{store}\n{ref.prefix}".encode())[:16] + "-"


def _ids(ref: TranscriptRef) -> tuple[str, str, str]:
    return ref.tenant, ref.agent_id, ref.session_id


def _flush_directory(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
