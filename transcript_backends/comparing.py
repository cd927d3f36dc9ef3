"""Whether two transcripts hold the same records."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import NamedTuple

from transcript_backends.records import Record


class Digest:
    """How many records, and the sha256 over all of them."""

    def __init__(self) -> None:
        self.count = 0
        self._sha256 = hashlib.sha256()

    @property
    def value(self) -> tuple[int, str]:
        return self.count, self._sha256.hexdigest()

    def add(self, seq: int, writer_id: str, line: bytes) -> None:
        self.count += 1
        self._sha256.update(b"%d %b %d\n" % (seq, writer_id.encode(errors="surrogatepass"), len(line)))
        self._sha256.update(line)

    def add_all(self, records: Iterable[Record]) -> None:
        for record in records:
            self.add(*record)


class Comparison(NamedTuple):
    """Records of two transcripts: in both, how many are missing in the second, the first of them, how many are only there."""

    common: Digest
    missing: int
    first: Record | None
    beside: int


def compare(wanted: Iterable[Record], held: Iterable[Record], counts: Callable[[Record], bool] = lambda _: True) -> Comparison:
    """Compare records in order, each once.

    Args:
        wanted, held: of the first and of the second transcript.
        counts: whether one of the first counts, as common or as missing.
    """
    common, missing, beside = Digest(), 0, 0
    first: Record | None = None
    others = groupby(held, key=lambda each: each[:2])
    other = next(others, None)
    for identity, group in groupby(wanted, key=lambda each: each[:2]):
        while other and other[0] < identity:
            beside += sum(1 for _ in other[1])
            other = next(others, None)
        lines: set[bytes] = set()
        if other and other[0] == identity:
            lines = {each.line for each in other[1]}
            other = next(others, None)
        for record in group:
            if record.line in lines:
                lines.remove(record.line)
                if counts(record):
                    common.add(*record)
            elif counts(record):
                first = first or record
                missing += 1
        beside += len(lines)
    while other:
        beside += sum(1 for _ in other[1])
        other = next(others, None)
    return Comparison(common, missing, first, beside)
