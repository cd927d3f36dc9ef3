"""``cp`` and ``sync``: transcripts go from one store into another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import click

from transcript_backends import CopyResult, ObjectTranscriptStore, TranscriptRef, copy_transcript
from transcript_backends.cli.choosing import Choice, go_through
from transcript_backends.cli.session import Session, count, examples, json_option, ref_argument, size, visible, warn

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _options(command: _Command) -> _Command:
    """What both commands take, besides the two stores."""
    number = click.IntRange(min=1)
    for option in (
        json_option,
        click.option("--dry-run", is_flag=True, help="Only show what would be copied."),
        click.option("--no-verify", is_flag=True, help="Do not read back what was copied."),
        click.option("--jobs", metavar="N", type=number, default=4, show_default=True, help="How many at once."),
    ):
        command = option(command)
    return command


@click.command(
    epilog=examples(
        "transcripts cp file:///var/lib/transcripts s3://bucket/prefix",
        "transcripts cp s3://old/prefix 's3://new?region=eu-west-1' demo/agent/s1",
    )
)
@click.argument("source", metavar="SRC_URL")
@click.argument("destination", metavar="DST_URL")
@ref_argument("[REF]...", several=True, required=False)
@_options
@click.pass_obj
def cp(
    session: Session,
    source: str,
    destination: str,
    refs: Sequence[TranscriptRef],
    jobs: int,
    no_verify: bool,
    dry_run: bool,
) -> None:
    """Copy REF..., or all transcripts, from one store into another.

    Records keep their seq, their writer and every byte. All of what is copied is read on both sides and compared. It may be
    interrupted and run again: what is there is not copied again. A transcript that fails does not stop the others.
    """
    choice = Choice(list(dict.fromkeys(refs)), None, None, (1, 1), jobs)
    _copy(session, source, destination, choice, verify="off" if no_verify else "all", dry_run=dry_run)


@click.command(epilog=examples("transcripts sync s3://bucket/prefix /var/backups/transcripts"))
@click.argument("source", metavar="SRC_URL")
@click.argument("destination", metavar="DST_URL")
@_options
@click.pass_obj
def sync(session: Session, source: str, destination: str, jobs: int, no_verify: bool, dry_run: bool) -> None:
    """Bring a copy of a whole store up to date, reading only what is new.

    As cp does, but what the listings of both stores show to be there is neither read nor compared again. Nothing is ever
    deleted from the destination.
    """
    choice = Choice([], None, None, (1, 1), jobs)
    _copy(session, source, destination, choice, verify="off" if no_verify else "new", dry_run=dry_run)


def _copy(
    session: Session,
    source_url: str,
    destination_url: str,
    choice: Choice,
    *,
    verify: Literal["all", "new", "off"],
    dry_run: bool,
) -> None:
    ctx = click.get_current_context()
    if session.url is not None:
        raise click.UsageError("--store has no meaning here: the two stores are arguments", ctx)
    source, destination = Session(url=source_url).open_store(), Session(url=destination_url).open_store()
    if str(source) == str(destination) and urlsplit(source_url).query == urlsplit(destination_url).query:
        raise click.UsageError(f"{source} is both source and destination; name another store to copy to", ctx)
    report = _Report(session, source, destination, is_named=bool(choice.named), dry_run=dry_run)

    def copied(ref: TranscriptRef) -> CopyResult | None:
        try:
            result = copy_transcript(source, destination, ref, verify=verify, dry_run=dry_run)
        except Exception:
            report.failed.append(ref)
            raise
        return result if result.segments_found else None

    session.remark = "" if dry_run else "what is copied stays copied; run the same command again for the rest"
    outcome = go_through(session, source, choice, copied, report.result)
    session.remark = ""
    report.total()
    outcome.end(session)


class _Report:
    """Shows what is done to each transcript, and adds it up."""

    def __init__(
        self,
        session: Session,
        source: ObjectTranscriptStore,
        destination: ObjectTranscriptStore,
        *,
        is_named: bool,
        dry_run: bool,
    ) -> None:
        self._session, self._source, self._destination = session, source, destination
        self._is_named, self._verb = is_named, "to copy" if dry_run else "copied"
        self._transcripts = self._changed = 0
        self._sum = CopyResult()
        self.failed: list[TranscriptRef] = []

    def result(self, ref: TranscriptRef, result: CopyResult) -> None:
        changed = bool(result.segments or result.payloads)
        self._transcripts += 1
        self._changed += changed
        self._sum = CopyResult(*map(sum, zip(self._sum, result, strict=True)))
        if self._session.json:
            self._session.show("", ref=str(ref), **result._asdict())
        else:
            if changed:
                click.echo(f"{ref}: {self._amount(result)}{_verified(result)}")
            elif self._is_named:
                click.echo(f"{ref}: nothing to copy{_verified(result)}")
            if result.beside:
                warn(f"{ref}: {self._destination} holds {count(result.beside, 'record')} that {self._source} does not")

    def total(self) -> None:
        if self._session.json:
            return
        if not (self._transcripts or self.failed or self._is_named):
            click.echo(f"no transcripts in {self._source}")
            return
        amount = self._amount(self._sum) if self._changed else "nothing to copy"
        click.echo(f"{count(self._transcripts, 'transcript')}, {self._changed} {self._verb}: {amount}{_verified(self._sum)}")
        if self.failed:
            mark = click.style("transcripts: error:", fg="red")
            names = ", ".join(sorted(map(str, self.failed)))
            click.echo(f"{mark} {count(len(self.failed), 'transcript')} failed: {visible(names)}", err=True)

    def _amount(self, result: CopyResult) -> str:
        parts = [f"{count(result.records, 'record')} {self._verb}, {count(result.segments, 'segment')}"]
        parts += [count(result.payloads, "payload")] * bool(result.payloads)
        return ", ".join([*parts, size(result.bytes_written)])


def _verified(result: CopyResult) -> str:
    return f"; {count(result.verified, 'record')} verified" if result.verified else ""
