"""What writers that are dead have left in their journals, for the next writer of the transcript to send."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
from collections.abc import Generator, Iterator
from typing import NamedTuple

from transcript_backends import journal
from transcript_backends.journal import Batch, encode
from transcript_backends.keys import MAX_SEQ
from transcript_backends.machine import Machine
from transcript_backends.refs import TranscriptRef

_log = logging.getLogger(__name__)

_OLD_FORMATS = (1, 2)
_FORMATS = (*_OLD_FORMATS, journal.FORMAT)  # those that are read


class Leftover(NamedTuple):
    """What a writer that is dead has not been able to send.

    Attributes:
        path: its journal.
        writer_id: whose records they are.
        batches: to send as they are, in order.
        offload_bytes, says_so: of the writer: a batch that was sent has its payloads by these.
    """

    path: str
    writer_id: str
    batches: list[Batch]
    offload_bytes: int | None
    says_so: bool


@contextlib.contextmanager
def leftovers(
    machine: Machine, directory: str, store: str, identity: str, ref: TranscriptRef, most_bytes: int
) -> Iterator[Iterator[Leftover]]:
    """The journals of dead writers of this transcript of this store, each locked until the next one is asked for.

    A journal is removed when the next one is asked for: by then its batches are stored. One that is damaged keeps its
    content under another name. Journals of live writers, of other transcripts and of other stores are left alone.

    Args:
        machine: where they are.
        directory: which one.
        store, identity, ref: as in `journal.Header`.
        most_bytes: of a batch that was never sent.
    """
    with contextlib.closing(_leftovers(machine, directory, store, identity, ref, most_bytes)) as found:
        yield found


def _leftovers(
    machine: Machine, directory: str, store: str, identity: str, ref: TranscriptRef, most_bytes: int
) -> Generator[Leftover, None, None]:
    disk, prefix = machine.disk, journal.name_prefix(store, ref)
    for name in disk.names(directory):
        path = os.path.join(directory, name)
        is_temporary = name.startswith(f".{prefix}")
        if not (is_temporary or (name.startswith(prefix) and name.endswith(journal.SUFFIX))):
            continue
        try:
            file = disk.open(path)
        except FileNotFoundError:
            continue
        try:
            if not disk.lock(file) or not disk.is_at(file, path):  # its writer lives, or has replaced it just now
                continue
            if is_temporary:  # nobody was told that anything is in it
                with contextlib.suppress(FileNotFoundError):  # its maker lives, and makes another
                    disk.unlink(path)
                continue
            stored = _Stored(disk.read(file))
            if stored.header is None and not stored.records:  # killed before anybody was told of it
                disk.unlink(path)
                continue
            if stored.header is None or stored.header["format"] not in _FORMATS:
                found = "a damaged header" if stored.header is None else f"format {stored.header['format']!r}"
                _log.error("journal %s is left alone: it has %s, and may hold records that are not stored", path, found)
                continue
            if not stored.is_of(store, identity, ref):
                continue
            batches, is_whole = stored.batches(most_bytes)
            with contextlib.suppress(OSError):  # without its bounds a batch is cut anew where this is killed as well
                disk.truncate(file, stored.whole_bytes)
                for batch in batches:
                    bounds = b"%d %d" % (batch.seq_start, batch.seq_end)
                    journal.write_all(disk, file, encode("C", bounds, is_old=stored.is_old))
                disk.flush(file)
                disk.flush_directory(directory)  # or a power cut brings back the one that this has replaced, without bounds
            yield Leftover(path, stored.writer_id, batches, stored.offload_bytes, says_so=not stored.is_old)
            if is_whole:
                disk.unlink(path)
            else:
                _set_aside(machine, path, sum(len(batch.lines) for batch in batches))
            disk.flush_directory(directory)
        finally:
            disk.close(file)


def _set_aside(machine: Machine, path: str, stored: int) -> None:
    kept = f"{path}.damaged-{machine.token()}"
    machine.disk.rename(path, kept)
    _log.error(
        "journal %s was damaged: %d records in it were whole, and are stored; others may have been lost, and what is left of "
        "them is kept in %s",
        path,
        stored,
        kept,
    )


class _Stored:
    """A journal's content, as far as it is whole.

    Attributes:
        header: its members; None where no header is whole.
        records: by seq, those not known to be stored.
        whole_bytes: where a line that was cut short begins, or the end.
        is_old: whether it is of a format before the present one.
    """

    def __init__(self, content: bytes) -> None:
        self.header: dict[str, object] | None = None
        self.records: dict[int, bytes] = {}
        self._cuts: list[tuple[int, int]] = []
        self._is_damaged = False
        *lines, torn = content.split(b"\n")
        self.whole_bytes = len(content) - len(torn)
        self.is_old = any(
            (header := journal.decode(raw, is_old=True)) and json.loads(header)["format"] in _OLD_FORMATS
            for raw in lines
            if raw[:1] == b"H"
        )
        for raw in lines:
            rest = journal.decode(raw, is_old=self.is_old)
            if rest is None:
                self._is_damaged = True
            else:
                self._take(raw[:1], rest)

    def _take(self, kind: bytes, rest: bytes) -> None:
        if kind == b"H":
            self.header = json.loads(rest)
        elif kind == b"R":
            seq, _, line = rest.partition(b" ")
            self.records[int(seq)] = line
        elif kind == b"C":
            first, last = map(int, rest.split())
            self._cuts.append((first, last))
        elif kind == b"D":
            self._cuts = [cut for cut in self._cuts if cut[0] > int(rest)]
            self.records = {seq: line for seq, line in self.records.items() if seq > int(rest)}

    def is_of(self, store: str, identity: str, ref: TranscriptRef) -> bool:
        """Whether it is the journal of this transcript of this very store."""
        assert self.header is not None
        found = self.header["store"], self.header.get("identity", identity), self.header["ref"]
        return found == (store, identity, [ref.tenant, ref.agent_id, ref.session_id])

    @property
    def writer_id(self) -> str:
        assert self.header is not None
        return str(self.header["writer"])

    @property
    def offload_bytes(self) -> int | None:
        assert self.header is not None
        found = self.header.get("offload")
        return found if isinstance(found, int) else None

    def batches(self, most_bytes: int) -> tuple[list[Batch], bool]:
        """What to send, and whether that is all there was. Bounds that were sent are kept where all of a batch is whole."""
        records = {seq: line for seq, line in self.records.items() if seq <= MAX_SEQ}
        is_whole = not self._is_damaged and len(records) == len(self.records)
        found: list[Batch] = []
        for first, last in self._cuts:
            lines = {seq: records.pop(seq) for seq in range(first, last + 1) if seq in records}
            found += _in_batches(lines, math.inf)
        return found + list(_in_batches(records, most_bytes)), is_whole


def _in_batches(records: dict[int, bytes], most_bytes: float) -> Iterator[Batch]:
    """Records in batches of consecutive seqs, of so many bytes each."""
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
