"""Inputs: files and standard input as one stream of lines that can be read twice, and is the same both times."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

import click

from transcript_backends import InvalidSegmentError, check_jsonl
from transcript_backends.offloading import LONG_BYTES, MAX_ENTRY_BYTES, too_long

_BLOCK_BYTES = 1024 * 1024
_MEASURED_BYTES = 1024 * 1024 * 1024  # a line is read so far to tell how long it is
DIGEST_BYTES = 16  # of `line_digest`


class _TooLongError(Exception):
    """A line that no store takes: the whole lines before it in its block, and how long it is."""

    def __init__(self, before: int, size: str) -> None:
        self.before, self.size = before, size


class Source(NamedTuple):
    """One input. What can't be read twice has been copied to a temporary file, ``copy``."""

    name: str
    path: str
    size: int
    copy: BinaryIO | None = None

    def blocks(self) -> Iterator[bytes]:
        """The input in blocks of whole lines, cut at the same places each time."""
        with self._opened() as stream:
            while block := stream.read(_BLOCK_BYTES):
                yield block if block.endswith(b"\n") else block + _rest_of_line(block, stream)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        with _readable(self.name):
            if self.copy is None:
                with open(self.path, "rb") as stream:
                    yield stream
            else:
                self.copy.seek(0)
                yield self.copy


def _rest_of_line(block: bytes, stream: BinaryIO) -> bytes:
    begun = len(block) - block.rfind(b"\n") - 1
    rest = stream.readline(MAX_ENTRY_BYTES)
    if begun + len(rest.rstrip(b"\r\n")) <= MAX_ENTRY_BYTES:
        return rest
    size, last = begun + len(rest), rest
    while not last.endswith(b"\n") and size < _MEASURED_BYTES and (last := stream.readline(_BLOCK_BYTES)):
        size += len(last)
    size -= last.endswith(b"\n")
    raise _TooLongError(block.count(b"\n"), f"more than {size}" if size >= _MEASURED_BYTES else f"{size}")


@contextlib.contextmanager
def _readable(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidSegmentError(f"{name} can't be read: {error.strerror or error}") from error


@contextlib.contextmanager
def sources(paths: Sequence[str]) -> Iterator[list[Source]]:
    """Open inputs; ``-`` is standard input. Temporary files go at the end."""
    with contextlib.ExitStack() as stack:
        yield [_source(path, stack) for path in paths]


def _source(path: str, stack: contextlib.ExitStack) -> Source:
    name = "standard input" if path == "-" else click.format_filename(path)
    with _readable(name):
        if path != "-":
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode):
                return Source(name, path, status.st_size)
        copy = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        with contextlib.nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as stream:
            if stream.isatty():
                click.echo("reading lines from the terminal; end with Ctrl-D", err=True)
            shutil.copyfileobj(stream, copy)
        return Source(name, path, copy.tell(), copy)


class Lines:
    """The lines of all sources in order, checked and normalised when this is made.

    Args:
        inputs: where they come from.
        advance: told the number of bytes read.

    Attributes:
        count: how many; at least one.
        sha256: hexadecimal, of all of them.

    Raises:
        InvalidSegmentError: names the input, the line in it and what is wrong.
    """

    def __init__(self, inputs: Sequence[Source], advance: Callable[[int], None]) -> None:
        self._inputs = inputs
        self._marks: list[bytes] = []  # what the hash is after each block
        self.count = 0
        digest = hashlib.sha256()
        for source in inputs:
            number = 1
            for block in _measured(source, lambda: number):
                lines = _checked(block, source.name, number)
                self.count += lines.count(b"\n")
                number += lines.count(b"\n")
                digest.update(lines)
                self._marks.append(digest.digest())
                advance(len(block))
        if not self.count:
            raise InvalidSegmentError(f"no lines in {', '.join(source.name for source in inputs)}; there is nothing to store")
        self.sha256 = digest.hexdigest()

    def digests(self) -> bytes:
        """The `line_digest` of each, in order; reads the lines."""
        return b"".join(map(line_digest, self))

    def __iter__(self) -> Iterator[bytes]:
        """Each line with its newline, read anew; none comes from a block that is not what it was.

        Raises:
            InvalidSegmentError: an input has changed.
        """
        digest = hashlib.sha256()
        marks = iter(self._marks)
        for source in self._inputs:
            for block in _measured(source, lambda: 1):
                try:
                    lines = check_jsonl(block, longest=MAX_ENTRY_BYTES)
                except InvalidSegmentError:
                    raise _changed(source) from None
                digest.update(lines)
                if digest.digest() != next(marks, None):
                    raise _changed(source)
                start = 0
                while end := lines.find(b"\n", start) + 1:
                    yield lines[start:end]
                    start = end
        if next(marks, None) is not None:
            raise _changed(*self._inputs)


def line_digest(line: bytes) -> bytes:
    """What `Lines.digests` holds of a line, which may end in its newline."""
    return hashlib.blake2b(line.removesuffix(b"\n"), digest_size=DIGEST_BYTES).digest()


def _measured(source: Source, number: Callable[[], int]) -> Iterator[bytes]:
    """The blocks of a source; a line that is too long is named by its number: that of its block's first line is ``number``."""
    try:
        yield from source.blocks()
    except _TooLongError as error:
        raise InvalidSegmentError(
            f"{source.name}: line {number() + error.before} is {error.size} bytes long, {MAX_ENTRY_BYTES} is the limit"
        ) from None


def _checked(block: bytes, name: str, number: int) -> bytes:
    try:
        lines = check_jsonl(block, first_line=number, longest=MAX_ENTRY_BYTES)
        if len(lines) > 2 * _BLOCK_BYTES:
            for line_number, line in enumerate(lines.split(b"\n"), number):
                if why := too_long(line, LONG_BYTES):
                    raise InvalidSegmentError(f"line {line_number} {why}")
    except InvalidSegmentError as error:
        raise InvalidSegmentError(f"{name}: {error}") from None
    return lines


def _changed(*inputs: Source) -> InvalidSegmentError:
    return InvalidSegmentError(
        f"{', '.join(source.name for source in inputs)} changed while it was being read; import a file that nobody writes to"
    )
