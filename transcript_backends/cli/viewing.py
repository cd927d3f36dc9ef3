"""``show`` and ``context``: a session for people to read, and what the model sees of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from transcript_backends import Record, TranscriptRef
from transcript_backends.cli.session import NoSuchTranscriptError, Session, count, examples, ref_argument, store_option, warn
from transcript_backends.cli.showing import lines_options, print_text, printer, resolve_option

if TYPE_CHECKING:
    from transcript_backends.entries import SessionTree  # needs msgspec, which takes 30 ms to import

_leaf = click.option("--leaf", metavar="ID", help="Only the branch that ends in this entry.")


def _read(session: Session, ref: TranscriptRef, leaf: str | None, *, resolve: bool) -> SessionTree:
    from transcript_backends.entries import SessionTree

    store = session.open_store()
    tree = SessionTree()
    tree.feed(store.records(ref, resolve=resolve))
    if not tree.nodes and not tree.problems() and not store.list_segments(ref):
        raise NoSuchTranscriptError(ref)
    if leaf is not None:
        try:
            tree.path(leaf)
        except KeyError as error:
            raise click.UsageError(f"--leaf: {error.args[0]}", click.get_current_context()) from None
    return tree


@click.command(
    epilog=examples(
        "transcripts show demo/agent/s1", "transcripts show demo/agent/s1 --lines 0 | less", "transcripts show s/1 --leaf m7"
    )
)
@ref_argument()
@_leaf
@click.option(
    *("--lines", "most"),
    metavar="N",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="How many lines of each text; 0 for all.",
)
@resolve_option
@store_option
@click.pass_obj
def show(session: Session, ref: TranscriptRef, leaf: str | None, most: int, resolve: bool) -> None:
    """Show REF as a conversation: turns, tool calls with their results, compactions, branches.

    Each text has its seq and time (UTC) beside it. Entries of types that are not known are one line each, as shown by cat.
    """
    from transcript_backends.cli.conversation import Conversation
    from transcript_backends.cli.rendering import Renderer

    tree = _read(session, ref, leaf, resolve=resolve)
    chosen = None if leaf is None else set(map(id, tree.path(leaf)))
    nodes = [node for node in tree.nodes if chosen is None or id(node.entry) in chosen]
    draw = Renderer(sys.stdout).draw
    for line in Conversation(tree, nodes, tree.tool_calls(leaf), most_lines=most or None):
        print_text(draw(line))
    _warn_of_problems(tree, ref, leaf)


def _warn_of_problems(tree: SessionTree, ref: TranscriptRef, leaf: str | None) -> None:
    sys.stdout.flush()
    if leaf is not None and (missing := tree.gap(leaf)) is not None:
        first = tree.path(leaf)[0].id
        warn(f"the path to {leaf!r} is not whole: it begins with {first!r}, whose parent {missing!r} is not there before it")
    if problems := tree.problems():
        warn(f"{count(len(problems), 'problem')} in the entries of {ref}; 'transcripts validate {ref}' lists them")


@click.command(epilog=examples("transcripts context demo/agent/s1", "transcripts context demo/agent/s1 | jq -r .content"))
@ref_argument()
@_leaf
@lines_options
@store_option
@click.pass_obj
def context(session: Session, ref: TranscriptRef, leaf: str | None, form: str | None, resolve: bool) -> None:
    """Print what the model sees of REF: all entries, or after a compaction its summary and the messages from the first kept on.

    They are shown as by cat: in a pipe their lines, byte for byte. Entries of types that are not known are left out, with a
    warning.
    """
    from transcript_backends.entries import RawEntry, encode

    tree = _read(session, ref, leaf, resolve=resolve)
    places = {id(node.entry): node for node in tree.nodes}
    nodes = (places[id(entry)] for entry in tree.context(leaf))
    printer(form)(*(Record(node.seq, node.writer_id, encode(node.entry)) for node in nodes))
    _warn_of_problems(tree, ref, leaf)
    chosen = tree.entries if leaf is None else tree.path(leaf)
    if unknown := sum(isinstance(each, RawEntry) for each in chosen):
        entries = "1 entry" if unknown == 1 else f"{unknown} entries"
        warn(f"{entries} of {len(chosen)} left out, of types that are not known: what the model saw of them can't be told")
