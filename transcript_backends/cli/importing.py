"""``import`` and ``append``: lines from files and standard input become segments."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import NamedTuple

import click

from transcript_backends import InvalidSegmentError, ObjectTranscriptStore, SegmentConflictError, TranscriptRef
from transcript_backends.cli.inputs import Lines, sources
from transcript_backends.cli.progress import steps
from transcript_backends.cli.session import Session, count, examples, json_option, ref_argument, span, store_option


class _Place(NamedTuple):
    """Where lines go: the seq of the first, under which writer, and how many of them are there already."""

    writer_id: str
    first_seq: int
    present: int = 0


class _Way(NamedTuple):
    """How ``import`` and ``append`` differ: where the lines go, what is said of them, and what to do when it is cut short."""

    find_place: Callable[[ObjectTranscriptStore, Lines], _Place]
    verb: str
    advice: str


class _Cut(NamedTuple):
    """How lines are cut into segments: at most so many lines and bytes each, but one line at least."""

    most_lines: int
    most_bytes: int

    def __call__(self, lines: Iterable[bytes]) -> Iterator[list[bytes]]:
        segment: list[bytes] = []
        size = 0
        for line in lines:
            if segment and (len(segment) == self.most_lines or size + len(line) > self.most_bytes):
                yield segment
                segment, size = [], 0
            segment.append(line)
            size += len(line)
        if segment:
            yield segment


def _cut_options(command: Callable[..., None]) -> Callable[..., None]:
    number = click.IntRange(min=1)
    options = (
        ("--segment-lines", 1000, "The most lines a segment holds."),
        ("--segment-bytes", 1024 * 1024, "The most bytes a segment holds; a larger line is a segment of its own."),
    )
    for name, default, text in reversed(options):
        command = click.option(name, type=number, default=default, show_default=True, metavar="N", help=text)(command)
    return command


@click.command(
    "import",
    epilog=examples(
        "transcripts import session.jsonl demo/agent/s1",
        "transcripts import part-1.jsonl part-2.jsonl demo/agent/s2",
        "zcat old.jsonl.gz | transcripts import - acme/coder/old",
    ),
)
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)
@ref_argument()
@_cut_options
@json_option
@store_option
@click.pass_obj
def import_(session: Session, files: Sequence[str], ref: TranscriptRef, segment_lines: int, segment_bytes: int) -> None:
    """Store the lines of JSONL files, at the end of REF.

    The files are one stream of lines, in the order given; - is standard input. All of it is checked before anything is
    written. After an interruption the same command goes on where it stopped: what is imported already is not imported
    again, whatever the size of the segments.
    """
    if files.count("-") > 1:
        raise click.UsageError("'-' is given twice; standard input can be read once", click.get_current_context())
    way = _Way(partial(_resume, ref), "imported into", "run the same command again to go on")
    _store(session, files, ref, _Cut(segment_lines, segment_bytes), way)


@click.command(epilog=examples("""echo '{"type":"note","text":"done"}' | transcripts append demo/agent/s1"""))
@ref_argument()
@_cut_options
@json_option
@store_option
@click.pass_obj
def append(session: Session, ref: TranscriptRef, segment_lines: int, segment_bytes: int) -> None:
    """Store the lines of standard input at the end of REF.

    All of the input is read and checked before anything is written. Each run appends anew; use import for what may have to
    be run again.
    """
    advice = f"see with 'transcripts ls {ref}' what is there, and append the rest only"
    way = _Way(partial(_at_end, ref), "appended to", advice)
    _store(session, ["-"], ref, _Cut(segment_lines, segment_bytes), way)


def _at_end(ref: TranscriptRef, store: ObjectTranscriptStore, _: Lines) -> _Place:
    return _Place(f"cli-{os.urandom(6).hex()}", store.next_seq(ref))


def _resume(ref: TranscriptRef, store: ObjectTranscriptStore, lines: Lines) -> _Place:
    """Where an import of these lines goes on. The writer id is made from them, so an earlier run's segments are known by it.

    After a delete it is another, so that no late request of before the delete can remove what is imported; earlier versions of
    this program have used the first one then, too.
    """
    plain = f"import-{lines.sha256[:16]}"
    writer_id = store.own_writer_id(ref, plain)
    runs = _first_runs(ref, store, {writer_id, plain})
    if not runs:
        return _Place(writer_id, store.next_seq(ref))
    if writer_id not in runs:
        writer_id = plain
    first_seq, next_seq = runs[writer_id]
    present = next_seq - first_seq
    with closing(store.records(ref, start_seq=first_seq, end_seq=first_seq)) as records:
        first = next((each.line for each in records if each.writer_id == writer_id), b"")
    if present > lines.count or first + b"\n" != lines.first:
        raise SegmentConflictError(
            f"{ref} holds the rest of an import of these lines whose beginning is gone (a delete was cut short, say); "
            f"'transcripts rm {ref}' removes the rest"
        )
    return _Place(writer_id, first_seq, present)


def _first_runs(ref: TranscriptRef, store: ObjectTranscriptStore, writer_ids: Collection[str]) -> dict[str, tuple[int, int]]:
    """Of each of some writers: the first seq, and one past the last that follows it without a gap."""
    segments = store.list_segments(ref)
    runs: dict[str, tuple[int, int]] = {}

    def add(writer_id: str, first: int, last: int) -> None:
        start, stop = runs.get(writer_id, (first, first))
        if writer_id in writer_ids and first <= stop:
            runs[writer_id] = start, max(stop, last + 1)

    if any(each.writer_id.startswith("compacted") for each in segments):  # such a segment holds records of any writers
        with closing(store.records(ref)) as records:
            for record in records:
                add(record.writer_id, record.seq, record.seq)
    else:
        for segment in segments:
            add(segment.writer_id, segment.seq_start, segment.seq_end)
    return runs


def _store(session: Session, paths: Sequence[str], ref: TranscriptRef, cut: _Cut, way: _Way) -> None:
    """Check the lines, store them where they belong, and say so."""
    store = session.open_store()
    session.remark = "nothing was written"
    with sources(paths) as inputs, steps(shown=not session.json) as step:
        lines = Lines(inputs, step("checking", sum(source.size for source in inputs)))
        place = way.find_place(store, lines)
        advance = step("storing", lines.count)
        advance(place.present)
        done, segments = place.present, 0
        try:
            for segment in cut(islice(lines, place.present, None)):
                session.remark = f"{done} of {lines.count} lines are stored; {way.advice}"
                seq = place.first_seq + done
                store.append_segment(ref, seq, seq + len(segment) - 1, place.writer_id, b"".join(segment))
                done += len(segment)
                segments += 1
                advance(len(segment))
        except InvalidSegmentError:  # an input is not what it was
            there = (
                f"of what it was, {count(done, 'line')} are stored (seq {span(place.first_seq, place.first_seq + done - 1)})"
            )
            session.remark = there if done else "nothing was written"
            raise
    session.remark = ""
    _report(session, f"{way.verb} {ref}", ref, lines.count, place, segments)


def _report(session: Session, what: str, ref: TranscriptRef, lines: int, place: _Place, segments: int) -> None:
    first, last = place.first_seq, place.first_seq + lines - 1
    new, present = lines - place.present, place.present
    if not new:
        text = f"nothing to do: {ref} holds all {count(lines, 'line')} of this import already (seq {span(first, last)})"
    else:
        text = f"{count(new, 'line')} {what} ({count(segments, 'segment')}, seq {span(first + present, last)})"
        text += f"; {present} before them were there already" if present else ""
    session.show(
        text,
        ref=str(ref),
        writer_id=place.writer_id,
        lines=lines,
        imported=new,
        already=present,
        segments=segments,
        seq_start=first,
        seq_end=last,
    )
