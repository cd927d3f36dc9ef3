"""``ls`` and ``cat``: what a store holds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import click

from transcript_backends import Record, SegmentInfo, SkippedCount, TranscriptRef
from transcript_backends.cli.session import (
    NoSuchTranscriptError,
    Session,
    all_refs,
    count,
    examples,
    json_option,
    ref_argument,
    store_option,
    visible,
    warn_of,
)

_Command = TypeVar("_Command", bound=Callable[..., Any])
_SEQ = click.IntRange(0, 2**63 - 1)


@click.command(
    epilog=examples("transcripts ls", "transcripts ls --tenant acme --json", "transcripts ls demo/agent/s1 --keys"),
)
@ref_argument("[REF]", required=False)
@click.option("--tenant", metavar="ID", help="Only this tenant's transcripts.")
@click.option("--agent", metavar="ID", help="Only this agent's transcripts.")
@click.option("--keys", is_flag=True, help="Show the storage keys of REF's segments too.")
@json_option
@store_option
@click.pass_obj
def ls(session: Session, ref: TranscriptRef | None, tenant: str | None, agent: str | None, keys: bool) -> None:
    """List the transcripts, or the segments of REF.

    Transcripts are shown one a line, as tenant/agent/session. Segments are a table on a terminal; elsewhere lines of the same
    columns between tabs, without a heading: range of seq, writer, bytes, time (UTC), key.
    """
    if ref is None:
        if keys:
            raise click.UsageError("--keys needs a REF, whose segments are shown", click.get_current_context())
        _list_transcripts(session, tenant, agent)
    elif tenant is not None or agent is not None:
        raise click.UsageError("--tenant and --agent choose transcripts; a REF names one", click.get_current_context())
    else:
        _list_segments(session, ref, keys=keys)


def _list_transcripts(session: Session, tenant: str | None, agent: str | None) -> None:
    store = session.open_store()
    ref, skipped = None, SkippedCount()
    for ref in all_refs(store, tenant, agent, on_skipped=skipped, only_look=True):
        session.show(str(ref), ref=str(ref), tenant=ref.tenant, agent=ref.agent_id, session=ref.session_id)
    if ref is None and not session.json and sys.stdout.isatty():
        click.echo(f"no transcripts in {store}", err=True)
    warn_of(skipped, session)


def _list_segments(session: Session, ref: TranscriptRef, *, keys: bool) -> None:
    segments = session.open_store().list_segments(ref)
    if not segments:
        raise NoSuchTranscriptError(ref)
    if not session.json and sys.stdout.isatty():
        _draw(segments, keys=keys)
        return
    for key, first, last, writer_id, created_at, size in segments:
        columns = [f"{first}-{last}", visible(writer_id), str(size), _utc(created_at), *([visible(key)] if keys else [])]
        session.show(
            "\t".join(columns),
            seq_start=first,
            seq_end=last,
            writer_id=writer_id,
            size=size,
            created_at=_utc(created_at),
            key=key,
        )


def _draw(segments: Sequence[SegmentInfo], *, keys: bool) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.filesize import decimal
    from rich.table import Table
    from rich.text import Text

    size = sum(each.size for each in segments)
    table = Table(box=SIMPLE_HEAD, caption=f"{count(len(segments), 'segment')}, {decimal(size)}", caption_justify="left")
    table.add_column("seq", no_wrap=True)
    table.add_column("writer", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("created (UTC)", no_wrap=True)
    if keys:
        table.add_column("key", overflow="fold")
    for key, first, last, writer_id, created_at, size in segments:
        columns = [f"{first}-{last}", visible(writer_id), decimal(size), f"{created_at:%Y-%m-%d %H:%M:%S}"]
        table.add_row(*map(Text, [*columns, *([visible(key)] if keys else [])]))
    Console(highlight=False).print(table)


def _utc(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def lines_options(command: _Command) -> _Command:
    """How records are shown: the command gets ``form`` for `printer`, and ``resolve``."""
    forms = click.Choice(["raw", "pretty"])
    text = "raw: lines byte for byte; pretty: one short line for each record (default: pretty on a terminal, else raw)."
    return click.option("--format", "form", type=forms, help=text)(resolve_option(command))


def resolve_option(command: _Command) -> _Command:
    """``--no-resolve``: the command gets ``resolve``."""
    return click.option("--no-resolve", "resolve", flag_value=False, default=True, help="Leave payloads apart.")(command)


def printer(form: str | None) -> Callable[..., None]:
    """A function that writes records to standard output: ``raw``, ``pretty``, or as suits the output."""
    if form == "raw" or (form is None and not sys.stdout.isatty()):
        return _print_raw
    from transcript_backends.cli.rendering import Renderer

    render = Renderer(sys.stdout)

    def print_pretty(*records: Record) -> None:
        for text in render(*records):
            print_text(text)

    return print_pretty


def print_text(text: str) -> None:
    """Write what was drawn to standard output, whatever characters that can hold."""
    _write(text.encode(sys.stdout.encoding, "backslashreplace"))


def _print_raw(*records: Record) -> None:
    for record in records:
        _write(record.line + b"\n")


def _write(output: bytes) -> None:
    remaining = memoryview(output)
    while remaining:  # where Python's output is unbuffered (-u), a write may take a part only
        remaining = remaining[sys.stdout.buffer.write(remaining) :]


@click.command(
    epilog=examples(
        "transcripts cat demo/agent/s1",
        "transcripts cat demo/agent/s1 | jq .type | sort | uniq -c",
        "transcripts cat demo/agent/s1 --start 100 --end 199 --format pretty",
    )
)
@ref_argument()
@click.option("--start", metavar="SEQ", type=_SEQ, default=0, help="Leave out what is before.")
@click.option("--end", metavar="SEQ", type=_SEQ, help="Leave out what is after.")
@click.option("--limit", metavar="N", type=click.IntRange(min=0), help="Stop after so many.")
@click.option("--reverse", is_flag=True, help="The last one first.")
@lines_options
@store_option
@click.pass_obj
def cat(
    session: Session,
    ref: TranscriptRef,
    start: int,
    end: int | None,
    limit: int | None,
    reverse: bool,
    form: str | None,
    resolve: bool,
) -> None:
    """Print the records of REF in order.

    On a terminal each is one short line: seq, time (UTC), role or type, what it says, size. Elsewhere they are the lines of
    the transcript, byte for byte.
    """
    if end is not None and end < start:
        raise click.UsageError(f"--start {start} is after --end {end}", click.get_current_context())
    store = session.open_store()
    record, show = None, printer(form)
    for record in store.records(ref, start_seq=start, end_seq=end, limit=limit, reverse=reverse, resolve=resolve):
        show(record)
    if record is None and not store.list_segments(ref):
        raise NoSuchTranscriptError(ref)
