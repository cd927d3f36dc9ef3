"""``import`` and ``append``: lines from files and standard input become segments."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import NamedTuple

import click

from transcript_backends import InvalidSegmentError, ObjectTranscriptStore, SegmentConflictError, TranscriptRef
from transcript_backends.cli.inputs import DIGEST_BYTES, Lines, line_digest, sources
from transcript_backends.cli.progress import steps
from transcript_backends.cli.session import Session, count, examples, json_option, ref_argument, span, store_option
from transcript_backends.offloading import LONG_BYTES

_PREFIX = "import-"  # of the writer ids of imports


class _Place(NamedTuple):
    """Where lines go: under which writer, the seq of the next one, how many are there already, and the seq of the first."""

    writer_id: str
    next_seq: int
    present: int
    first_seq: int

    def last_seq(self, count: int) -> int:
        """The seq of the last of so many lines."""
        return self.next_seq + count - self.present - 1


class _Run(NamedTuple):
    """What one import has stored: the seq of its first line, and the digests of the lines that follow it without a gap."""

    first_seq: int
    digests: bytearray

    @property
    def lines(self) -> int:
        return len(self.digests) // DIGEST_BYTES


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
@click.option("--all-lines", is_flag=True, help="Also those at the beginning that an import of fewer lines has stored.")
@json_option
@store_option
@click.pass_obj
def import_(
    session: Session, files: Sequence[str], ref: TranscriptRef, segment_lines: int, segment_bytes: int, all_lines: bool
) -> None:
    """Store the lines of JSONL files, at the end of REF.

    The files are one stream of lines, in the order given; - is standard input. All of it is checked before anything is
    written. What earlier imports have stored of the first lines is not stored again: so the same command goes on after an
    interruption, and adds what is new where a file has grown.
    """
    if files.count("-") > 1:
        raise click.UsageError("'-' is given twice; standard input can be read once", click.get_current_context())
    way = _Way(partial(_resume, ref, all_lines), "imported into", "run the same command again to go on")
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
    next_seq = store.next_seq(ref)
    return _Place(f"cli-{os.urandom(6).hex()}", next_seq, 0, next_seq)


def _resume(ref: TranscriptRef, all_lines: bool, store: ObjectTranscriptStore, lines: Lines) -> _Place:
    """Where an import of these lines goes on.

    Its writer id is made from all of them, so that an earlier run of the same import is known and gone on with; what others
    have stored is known by its lines. After a delete the id is another, so that no late request of before the delete can
    remove what is imported; earlier versions of this program have used the first one then, too.
    """
    name = f"{_PREFIX}{lines.sha256[:16]}"
    runs = _runs(ref, store, name if all_lines else _PREFIX)
    chain, present = _chain(memoryview(lines.digests()), runs) if runs else ([], 0)
    if chain and (present == lines.count or chain[-1].startswith(name)):
        last = runs[chain[-1]]
        before = sum(runs[each].lines for each in chain[:-1])
        return _Place(chain[-1], last.first_seq + present - before, present, runs[chain[0]].first_seq)
    if any(each.startswith(name) and each not in chain for each in runs):
        raise SegmentConflictError(
            f"{ref} holds the rest of an import of these lines whose beginning is gone (a delete was cut short, say); "
            f"'transcripts rm {ref}' removes the rest"
        )
    next_seq = store.next_seq(ref)
    is_free = not any(each.startswith(name) for each in chain)
    writer_id = store.own_writer_id(ref, name if is_free else f"{name}-{present}")
    return _Place(writer_id, next_seq, present, runs[chain[0]].first_seq if chain else next_seq)


def _runs(ref: TranscriptRef, store: ObjectTranscriptStore, prefix: str) -> dict[str, _Run]:
    """What imports whose writer ids begin so have stored; reads the transcript if there may be any."""
    runs: dict[str, _Run] = {}
    # A compacted segment holds records of any writers.
    if any(each.writer_id.startswith((prefix, "compacted")) for each in store.list_segments(ref)):
        with closing(store.records(ref)) as records:
            for record in records:
                if record.writer_id.startswith(prefix):
                    run = runs.setdefault(record.writer_id, _Run(record.seq, bytearray()))
                    if record.seq == run.first_seq + run.lines:
                        run.digests.extend(line_digest(record.line))
    return runs


def _chain(wanted: memoryview, runs: Mapping[str, _Run]) -> tuple[list[str], int]:
    """The imports that together have stored the first lines, in order, and how many lines those are.

    Args:
        wanted: the digests of all lines.
        runs: of each import, by writer id.
    """
    chain: list[str] = []
    position = 0
    left = sorted(runs, key=lambda each: -runs[each].lines)  # the one that goes farthest counts
    while position < len(wanted):
        for each in left:
            size = min(len(runs[each].digests), len(wanted) - position)
            if wanted[position : position + size] == runs[each].digests[:size]:
                break
        else:
            break
        chain.append(each)
        left.remove(each)
        position += size
    return chain, position // DIGEST_BYTES


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
                seq = place.next_seq + done - place.present
                store.append_segment(
                    ref, seq, seq + len(segment) - 1, place.writer_id, b"".join(segment), offload_bytes=LONG_BYTES
                )
                done += len(segment)
                segments += 1
                advance(len(segment))
        except InvalidSegmentError:  # an input is not what it was
            there = f"of what it was, {count(done, 'line')} are stored (seq {span(place.first_seq, place.last_seq(done))})"
            session.remark = there if done else "nothing was written"
            raise
    session.remark = ""
    _report(session, f"{way.verb} {ref}", ref, lines.count, place, segments)


def _report(session: Session, what: str, ref: TranscriptRef, lines: int, place: _Place, segments: int) -> None:
    first, last = place.first_seq, place.last_seq(lines)
    new, present = lines - place.present, place.present
    if not new:
        text = f"nothing to do: {ref} holds all {count(lines, 'line')} of this import already (seq {span(first, last)})"
    else:
        text = f"{count(new, 'line')} {what} ({count(segments, 'segment')}, seq {span(place.next_seq, last)})"
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
