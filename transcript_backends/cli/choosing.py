"""Which transcripts ``compact`` and ``verify`` go through, and going through several at once."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from typing import Any, NamedTuple, TypeVar

import click

from transcript_backends import ObjectTranscriptStore, Skipped, SkippedCount, TranscriptRef
from transcript_backends.cli.explaining import show_error
from transcript_backends.cli.progress import tally
from transcript_backends.cli.session import NoSuchTranscriptError, Session, all_refs, ref_argument, warn_of

_Result = TypeVar("_Result")


class Choice(NamedTuple):
    """Transcripts by name, or all that are there, narrowed.

    Attributes:
        named: those named, each once; empty for all.
        tenant, agent: None for any.
        shard: which part, 1 being the first, of how many.
        jobs: how many to work on at once.
    """

    named: Sequence[TranscriptRef]
    tenant: str | None
    agent: str | None
    shard: tuple[int, int]
    jobs: int

    def refs(self, store: ObjectTranscriptStore, on_skipped: Callable[[Skipped], object]) -> Iterable[TranscriptRef]:
        """The transcripts, as the listing gives them."""
        return self.named or filter(self._in_shard, all_refs(store, self.tenant, self.agent, on_skipped=on_skipped))

    def _in_shard(self, ref: TranscriptRef) -> bool:
        number, shards = self.shard
        return int(hashlib.sha256(ref.prefix.encode()).hexdigest(), 16) % shards == number - 1


def _shard(_ctx: click.Context, _parameter: click.Parameter, given: str | None) -> tuple[int, int] | None:
    if given is None:
        return None
    found = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", given)
    number, shards = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= shards:
        raise click.BadParameter(f"{given!r} is not I/N with I from 1 to N, 2/5 say")
    return number, shards


def choosing(command: Callable[..., None]) -> Callable[..., None]:
    """REF... or ``--all``, and what goes with it: the command gets one argument, ``choice``."""
    options = (
        ref_argument("[REF]...", several=True, required=False),
        click.option("--all", "every", is_flag=True, help="All transcripts of the store, in place of REFs."),
        click.option("--tenant", metavar="ID", help="With --all: only this tenant's."),
        click.option("--agent", metavar="ID", help="With --all: only this agent's."),
        click.option(
            "--shard", metavar="I/N", callback=_shard, help="With --all: the I-th of N parts, each for another machine."
        ),
        click.option("--jobs", metavar="N", type=click.IntRange(min=1), default=4, show_default=True, help="How many at once."),
    )

    @functools.wraps(command)
    def chosen(
        *,
        refs: Sequence[TranscriptRef],
        every: bool,
        tenant: str | None,
        agent: str | None,
        shard: tuple[int, int] | None,
        jobs: int,
        **others: Any,
    ) -> None:
        ctx = click.get_current_context()
        if bool(refs) == every:
            raise click.UsageError("give REFs, or --all for all transcripts" + " but not both" * every, ctx)
        if not every and (tenant is not None or agent is not None or shard is not None):
            raise click.UsageError("--tenant, --agent and --shard choose among --all; REFs name transcripts", ctx)
        command(choice=Choice(list(dict.fromkeys(refs)), tenant, agent, shard or (1, 1), jobs), **others)

    for option in reversed(options):
        chosen = option(chosen)
    return chosen


class Outcome(NamedTuple):
    """How going through transcripts has ended: whether one failed, and those named that are not there."""

    failed: bool
    missing: Sequence[TranscriptRef]

    def end(self, session: Session, *, ok: bool = True) -> None:
        """End the program as it says: exit code 1 for a failure, here or by ``ok``, else 3 where a transcript is missing."""
        code = show_error(NoSuchTranscriptError(*self.missing), session) if self.missing else 0
        if self.failed or not ok:
            code = 1
        if code:
            raise click.exceptions.Exit(code)


def go_through(
    session: Session,
    store: ObjectTranscriptStore,
    choice: Choice,
    work: Callable[[TranscriptRef], _Result | None],
    show: Callable[[TranscriptRef, _Result], None],
) -> Outcome:
    """Do some work on each transcript, on several at once, and show what comes of each; one that fails stops no other.

    Args:
        session: this run.
        store: where they are.
        choice: which, and how many at once.
        work: called in threads; None where there is no such transcript.
        show: called in this thread, in the order in which they get done.
    """
    failed = False
    missing: list[TranscriptRef] = []
    skipped = SkippedCount()
    refs = choice.refs(store, skipped)
    with tally("transcripts done", shown=not session.json) as one_more, closing(_in_threads(work, refs, choice.jobs)) as done:
        for ref, future in done:
            error = future.exception()
            if error is not None:
                failed = True
                show_error(error, session, ref)
            elif (result := future.result()) is not None:
                show(ref, result)
            elif choice.named:
                missing.append(ref)
            one_more()
    warn_of(skipped, session)
    return Outcome(failed, missing)


def _in_threads(
    work: Callable[[TranscriptRef], _Result], given: Iterable[TranscriptRef], jobs: int
) -> Generator[tuple[TranscriptRef, Future[_Result]], None, None]:
    """What is done, as it gets done. The next transcript is asked for when a thread is free, and only then.

    Where the listing fails, what is under way is finished first. Where the caller has had enough (Ctrl-C, say), nobody waits
    for the threads: their next request fails when the store is closed.
    """
    pool = ThreadPoolExecutor(jobs)
    under_way: dict[Future[_Result], TranscriptRef] = {}
    problem: Exception | None = None
    try:
        refs = iter(given)
        while True:
            while len(under_way) < jobs and problem is None:
                try:
                    ref = next(refs, None)
                except Exception as error:
                    problem = error
                    break
                if ref is None:
                    break
                under_way[pool.submit(work, ref)] = ref
            if not under_way:
                break
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                yield under_way.pop(future), future
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    if problem is not None:
        raise problem
