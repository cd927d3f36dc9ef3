"""``validate``: whether the entries of a session are what they should be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from transcript_backends import TranscriptRef
from transcript_backends.cli.choosing import Choice, choosing, go_through
from transcript_backends.cli.session import Session, count, examples, json_option, size, store_option, visible
from transcript_backends.cli.verifying import show_rows

if TYPE_CHECKING:
    from transcript_backends.entries import SessionTree


@click.command(epilog=examples("transcripts validate demo/agent/s1", "transcripts validate --all --json"))
@choosing
@json_option
@store_option
@click.pass_obj
def validate(session: Session, choice: Choice) -> None:
    """List what is wrong with the entries of REF..., or of --all transcripts.

    Wrong or missing members, ids used twice, parents that are not there or go in a circle, results without calls, and so on: a
    table on a terminal, elsewhere lines with tabs between seq, writer, member and reason. A line for each transcript sums up.
    The exit code is 1 where there is any. verify checks the bytes; this checks what they say.
    """
    from transcript_backends.entries import SessionTree

    store = session.open_store()
    sound = True

    def validated(ref: TranscriptRef) -> SessionTree | None:
        tree = SessionTree()
        tree.feed(store.records(ref))
        return tree if tree.nodes or tree.problems() or store.list_segments(ref) else None

    def show(ref: TranscriptRef, tree: SessionTree) -> None:
        nonlocal sound
        problems, totals = tree.problems(), tree.totals
        sound = sound and not problems
        if session.json:
            found = [each._asdict() for each in problems]
            session.show("", ref=str(ref), ok=not problems, **totals._asdict(), problems=found)
            return
        show_rows(
            ("seq", "writer", "member", "reason"),
            [(str(seq), visible(writer), visible(member) or "-", visible(reason)) for seq, writer, member, reason in problems],
        )
        verdict = click.style("ok", fg="green") if not problems else click.style(count(len(problems), "problem"), fg="red")
        entries = "1 entry" if totals.entries == 1 else f"{totals.entries} entries"
        click.echo(f"{ref}: {verdict}, {entries}, {size(totals.bytes)}, about {count(totals.tokens, 'token')}")

    go_through(session, store, choice, validated, show).end(session, ok=sound)
