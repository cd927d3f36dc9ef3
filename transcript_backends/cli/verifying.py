"""``verify``: whether every byte of a transcript is what it should be."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from transcript_backends import TranscriptRef, VerifyReport
from transcript_backends.cli.choosing import Choice, choosing, go_through
from transcript_backends.cli.session import Session, count, examples, json_option, size, store_option, visible


@click.command(
    epilog=examples(
        "transcripts verify demo/agent/s1", "transcripts verify --all --json", "transcripts verify --repair demo/agent/s1"
    )
)
@choosing
@click.option("--repair", is_flag=True, help="Remove what crashes have left: only what is redundant, or was being deleted.")
@json_option
@store_option
@click.pass_obj
def verify(session: Session, choice: Choice, repair: bool) -> None:
    """Read and check every byte of REF..., or of --all transcripts.

    What is found is shown as a table on a terminal; elsewhere as lines with tabs between kind, key and detail. A line for each
    transcript sums up. The exit code is 1 where a record may be lost or changed; what is harmless is shown, and no error.
    """
    store = session.open_store()
    sound = True

    def verified(ref: TranscriptRef) -> VerifyReport | None:
        report = store.verify(ref, repair=repair)
        return report if report.segments or report.problems or report.repaired else None

    def show(ref: TranscriptRef, report: VerifyReport) -> None:
        nonlocal sound
        sound = sound and report.ok
        if session.json:
            session.show(
                "",
                ref=str(ref),
                ok=report.ok,
                segments=report.segments,
                records=report.records,
                size=report.size,
                problems=[{**each._asdict(), "harmless": each.harmless} for each in report.problems],
                repaired=report.repaired,
            )
            return
        rows = [tuple(map(visible, each)) for each in report.problems]
        rows += (("repaired", visible(key), "removed") for key in report.repaired)
        show_rows(("kind", "key", "detail"), rows)
        click.echo(f"{ref}: {_sum_up(report)}")

    outcome = go_through(session, store, choice, verified, show)
    outcome.end(session, ok=sound)


def _sum_up(report: VerifyReport) -> str:
    harmless = sum(each.harmless for each in report.problems)
    harmful = len(report.problems) - harmless
    parts = [click.style("ok", fg="green") if report.ok else click.style("NOT OK", fg="red")]
    parts += [count(harmful, "problem")] * (harmful > 0)
    parts += [count(harmless, "harmless finding")] * (harmless > 0)
    parts += [f"{count(len(report.repaired), 'object')} removed"] * bool(report.repaired)
    parts.append(f"{count(report.records, 'record')} in {count(report.segments, 'segment')}")
    return ", ".join([*parts, size(report.size)])


def show_rows(columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    """A table on a terminal; elsewhere lines with tabs between the columns, without a heading."""
    if not rows:
        return
    if not sys.stdout.isatty():
        for row in rows:
            click.echo("\t".join(row))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD)
    table.add_column(columns[0], no_wrap=True)
    for column in columns[1:]:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(highlight=False)
    with console.capture() as captured:  # printed by click, which keeps it clear of the progress display
        console.print(table)
    click.echo(captured.get(), nl=False)
