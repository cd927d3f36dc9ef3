"""``compact``: small segments become large ones."""

from __future__ import annotations

import click

from transcript_backends import CompactionEstimate, CompactionPolicy, CompactionResult, TranscriptRef
from transcript_backends.cli.choosing import Choice, choosing, go_through
from transcript_backends.cli.session import Session, count, examples, json_option, size, store_option, warn

_USUAL = CompactionPolicy()


@click.command(
    epilog=examples(
        "transcripts compact demo/agent/s1",
        "transcripts compact --full demo/agent/s1 demo/agent/s2",
        "transcripts compact --all --tenant acme --dry-run",
        "transcripts compact --all --shard 2/5 --jobs 8",
    )
)
@choosing
@click.option("--full", is_flag=True, help="As few segments as possible: for sessions that have ended.")
@click.option(
    "--min-segments",
    metavar="N",
    type=click.IntRange(min=2),
    default=_USUAL.min_segments,
    show_default=True,
    help="Merge so many neighbours of similar size, or more.",
)
@click.option(
    "--target-bytes",
    metavar="N",
    type=click.IntRange(min=1),
    default=_USUAL.target_bytes,
    show_default=True,
    help="The size of a merged segment; one as large as this is not touched.",
)
@click.option(
    "--min-age",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=_USUAL.min_age,
    show_default=True,
    help="Leave younger segments alone.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done, and how many requests it would take.")
@json_option
@store_option
@click.pass_obj
def compact(
    session: Session, choice: Choice, full: bool, min_segments: int, target_bytes: int, min_age: float, dry_run: bool
) -> None:
    """Merge small segments of REF..., or of --all transcripts, into large ones.

    What readers see does not change, and writers go on meanwhile. It may be interrupted and run again at any time, here or
    elsewhere. A transcript that fails does not stop the others.
    """
    store = session.open_store()
    policy = CompactionPolicy(min_segments, target_bytes, min_age, full)
    report = _Report(session, choice)
    session.remark = "" if dry_run else "what is merged stays merged; run it again for the rest"
    if dry_run:

        def estimated(ref: TranscriptRef) -> CompactionEstimate | None:
            found = store.estimate_compaction(ref, policy)
            return found if found.segments_before else None

        outcome = go_through(session, store, choice, estimated, report.plan)
    else:

        def compacted(ref: TranscriptRef) -> CompactionResult | None:
            result = store.compact(ref, policy)
            return result if result.segments_before or result.left else None

        outcome = go_through(session, store, choice, compacted, report.result)
    session.remark = ""
    report.total(dry_run=dry_run)
    outcome.end(session)


class _Report:
    """Shows what is done to each transcript, and adds it up."""

    def __init__(self, session: Session, choice: Choice) -> None:
        self._session, self._is_named = session, bool(choice.named)
        self._transcripts = self._changed = 0
        self._sum = CompactionEstimate(0, 0)

    def result(self, ref: TranscriptRef, result: CompactionResult) -> None:
        before, after, written, merged, left = result
        self._add(CompactionEstimate(before, after, written), changed=bool(merged) or before != after)
        if self._session.json:
            self._session.show(
                "",
                ref=str(ref),
                segments_before=before,
                segments_after=after,
                bytes_written=written,
                left=[{"key": key, "reason": reason} for key, reason in left],
            )
            return
        if merged or before != after:
            click.echo(f"{ref}: {_change(before, after)}, {size(written)} written")
        elif self._is_named:
            click.echo(f"{ref}: {count(before, 'segment')}, nothing to merge")
        for key, reason in left:
            warn(f"{ref}: {key} is left as it is: {reason}")

    def plan(self, ref: TranscriptRef, plan: CompactionEstimate) -> None:
        changed = plan.puts > 0
        self._add(plan, changed=changed)
        if self._session.json:
            self._session.show("", ref=str(ref), **plan._asdict())
        elif changed:
            click.echo(f"{ref}: {_change(*plan[:2])}, {size(plan.bytes_written)} to write, {_requests(plan)}")
        elif self._is_named:
            click.echo(f"{ref}: {count(plan.segments_before, 'segment')}, nothing to merge")

    def total(self, *, dry_run: bool) -> None:
        if self._session.json:
            return
        text = f"{count(self._transcripts, 'transcript')}, {self._changed} {'to compact' if dry_run else 'compacted'}: "
        text += f"{_change(*self._sum[:2])}, {size(self._sum.bytes_written)} {'to write' if dry_run else 'written'}"
        click.echo(f"{text}, {_requests(self._sum)}" if dry_run else text)

    def _add(self, more: CompactionEstimate, *, changed: bool) -> None:
        self._transcripts += 1
        self._changed += changed
        self._sum = CompactionEstimate(*map(sum, zip(self._sum, more, strict=True)))


def _change(before: int, after: int) -> str:
    return f"{count(before, 'segment')} -> {after}"


def _requests(plan: CompactionEstimate) -> str:
    numbers = (plan.gets, "get"), (plan.puts, "put"), (plan.lists, "list"), (plan.deletes, "delete")
    return ", ".join(count(number, name) for number, name in numbers)
