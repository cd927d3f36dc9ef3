"""``tail``: the end of a transcript, and what is added to it."""

from __future__ import annotations

import json
import os
import random
import select
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from transcript_backends import ObjectTranscriptStore, StoreUnavailableError, TranscriptRef
from transcript_backends.cli.session import NoSuchTranscriptError, Session, examples, ref_argument, store_option, warn
from transcript_backends.cli.showing import lines_options, printer
from transcript_backends.filesystem import FileSystem

if TYPE_CHECKING:
    from transcript_backends.following import Follower

_USUAL = 10
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.3, 10.0  # seconds between two looks
_SAVE_EVERY = 5.0  # seconds, while a look finds more and more


@click.command(
    epilog=examples(
        "transcripts tail demo/agent/s1",
        "transcripts tail -f -n 0 demo/agent/s1",
        "transcripts tail -f --cursor seen.json demo/agent/s1 | consumer",
    )
)
@ref_argument()
@click.option("-n", "number", metavar="N", type=click.IntRange(min=0), help=f"How many of those that are there ({_USUAL}).")
@click.option("-f", "--follow", is_flag=True, help="Go on with those that are added, until Ctrl-C.")
@click.option(
    "--cursor",
    "path",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Keep in FILE what was shown, and show only what is new the next time; the first time all, or the last N.",
)
@lines_options
@store_option
@click.pass_obj
def tail(
    session: Session, ref: TranscriptRef, number: int | None, follow: bool, path: str | None, form: str | None, resolve: bool
) -> None:
    """Print the last records of REF, oldest first, and with -f new ones as they appear.

    They are shown as by cat. With -f a transcript that does not exist yet is waited for, and so is a store that is
    unavailable for a while.
    """
    store = session.open_store()
    if path is None and number is None:
        number = _USUAL
    if path is None and not follow:
        records = store.tail(ref, number or 0, resolve=resolve)
        printer(form)(*records)
        if not records and not store.list_segments(ref):
            raise NoSuchTranscriptError(ref)
        return
    cursor_file = _CursorFile(path, ref) if path is not None else None
    tailing = _Tailing(store, ref, cursor_file, printer(form), resolve=resolve)
    if tailing.cursor is not None:
        number = None
    if not tailing.look(number) and not store.list_segments(ref):
        if not follow:
            raise NoSuchTranscriptError(ref)
        warn(f"no such transcript yet: {ref}; waiting for it")
    if follow:
        tailing.go_on()


class _Tailing:
    """Shows what a transcript holds and was not shown yet, in one look after the other.

    Attributes:
        cursor: of the last record shown; None before the first look of the first run.
    """

    def __init__(
        self,
        store: ObjectTranscriptStore,
        ref: TranscriptRef,
        file: _CursorFile | None,
        show: Callable[..., None],
        *,
        resolve: bool,
    ) -> None:
        self._store, self._ref, self._file, self._show, self._resolve = store, ref, file, show, resolve
        self.cursor = file.load() if file else None
        self._is_kept = self.cursor is not None

    def look(self, last: int | None = None) -> int:
        """Show what is new, or the last so many of that, and only then keep the cursor; gives how many were new."""
        count, due = 0, time.monotonic() + _SAVE_EVERY
        with self._follow(last) as follower:
            try:
                for record in follower:
                    self._show(record)
                    count += 1
                    if time.monotonic() >= due:
                        self._save(follower.cursor)
                        due = time.monotonic() + _SAVE_EVERY
            finally:
                self._is_kept = self._is_kept and not count
                self.cursor = follower.cursor
        if not self._is_kept:
            self._save(self.cursor)
            self._is_kept = True
        return count

    def go_on(self) -> None:
        """Look again and again, soon after something was new and ever more rarely while nothing is."""
        pause, away = _SHORTEST_PAUSE, False
        while True:
            _wait(pause * random.uniform(0.75, 1.25))  # noqa: S311
            try:
                count, away = self.look(), False
            except StoreUnavailableError as error:
                if not away:
                    warn(f"{error}; trying again")
                count, away = 0, True
            pause = _SHORTEST_PAUSE if count else min(2 * pause, _LONGEST_PAUSE)

    def _follow(self, last: int | None) -> Follower:
        """A follower that ends when it has given what is there."""
        try:
            return self._store.follow(
                self._ref, cursor=self.cursor, last=last, stop_when_idle=0, min_interval=0.001, resolve=self._resolve
            )
        except ValueError as error:
            raise click.UsageError(f"{self._file}: {error}; remove it to begin anew") from None

    def _save(self, cursor: str) -> None:
        """Keep a cursor when what it says was shown is written out; to the disk, where the output is a file."""
        sys.stdout.flush()
        if self._file is not None:
            output = sys.stdout.fileno()
            if stat.S_ISREG(os.fstat(output).st_mode):
                FileSystem().flush(output, "the output")
            self._file.save(cursor)


class _CursorFile:
    """Where the cursor of one transcript is kept between two runs. It is replaced as a whole, by a rename."""

    def __init__(self, path: str, ref: TranscriptRef) -> None:
        self._path, self._ref = os.path.realpath(path), str(ref)

    def __str__(self) -> str:
        return click.format_filename(self._path)

    def load(self) -> str | None:
        """The cursor; None where none was kept yet."""
        if not os.path.isdir(os.path.dirname(self._path)):
            raise click.UsageError(f"{self}: there is no such directory to keep the cursor in")
        try:
            with open(self._path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return None
        if not content.strip():
            return None
        try:
            members = json.loads(content)
            ref, cursor = members["ref"], members["cursor"]
        except (ValueError, TypeError, LookupError):
            ref = cursor = None
        if not isinstance(cursor, str):
            raise click.UsageError(f"{self} is no file that 'transcripts tail --cursor' has written; name another")
        if ref != self._ref:
            raise click.UsageError(f"{self} holds the cursor of {ref}, not of {self._ref}; each needs a file of its own")
        return cursor

    def save(self, cursor: str) -> None:
        """Keep a cursor, durably."""
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(self._path), prefix=".cursor-")
        try:
            with open(handle, "w") as file:
                json.dump({"ref": self._ref, "cursor": cursor}, file)
                file.write("\n")
                file.flush()
                FileSystem().flush(handle, self._path)
            os.replace(temporary, self._path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise


def _wait(seconds: float) -> None:
    """Wait, but no longer than there is somebody at the other end of standard output."""
    waiting = select.poll()
    waiting.register(sys.stdout, 0)
    if waiting.poll(seconds * 1000):
        raise BrokenPipeError
