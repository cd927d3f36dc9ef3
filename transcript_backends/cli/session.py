"""What the commands share: the chosen store, the form of the output, and the arguments that several of them take."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from transcript_backends import InvalidURLError, ObjectTranscriptStore, Skipped, SkippedCount, TranscriptRef, open_store

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass
class Session:
    """One run of the command; click's ``ctx.obj``.

    Attributes:
        json: whether the output is for machines.
        url: what ``--store`` says.
        remark: what to add to the message, should an error end the command now.
    """

    json: bool = False
    url: str | None = None
    remark: str = ""

    def open_store(self) -> ObjectTranscriptStore:
        """The chosen store, closed when the command is done."""
        store = click.get_current_context().with_resource(open_store(self.url))
        if store.placeholders:
            names = ", ".join(f"{{{name}}}" for name in store.placeholders)
            raise InvalidURLError(f"the URL of {store} has placeholders ({names}); write a value in place of each")
        return store

    def show(self, text: str, **members: object) -> None:
        """Print one line: ``text`` for people, the members as a JSON object for machines."""
        click.echo(json.dumps(members) if self.json else text)


class NoSuchTranscriptError(click.ClickException):
    """A transcript that was named holds nothing."""

    exit_code = 3

    def __init__(self, *refs: TranscriptRef) -> None:
        super().__init__(f"no such transcript: {', '.join(map(str, refs))} ('transcripts ls' shows those there are)")


class NothingThereError(click.ClickException):
    """A command goes through all transcripts of a store, a tenant or an agent, and there are none."""

    exit_code = 3


def all_refs(
    store: ObjectTranscriptStore,
    tenant: str | None = None,
    agent: str | None = None,
    *,
    on_skipped: Callable[[Skipped], object],
    only_look: bool = False,
) -> Iterator[TranscriptRef]:
    """The transcripts of a store, of a tenant or of an agent.

    Args:
        store, tenant, agent, on_skipped: as for ``list_refs``.
        only_look: whether other objects in place of transcripts are worth a warning only.

    Raises:
        NothingThereError: the place is not there; it holds other objects and no transcript; or the tenant or the agent has
            no transcript.
    """
    ref = None
    for ref in store.list_refs(tenant, agent, on_skipped=on_skipped):
        yield ref
    if ref is not None:
        return
    seen = store.glance()
    if not seen.is_there:
        raise NothingThereError(f"{store} is not there: nothing is stored below this prefix")
    if seen.other:
        text = f"no transcripts in {store}, though other objects are there, {seen.other!r} say: check the prefix"
        if not only_look:
            raise NothingThereError(text)
        warn(text)
    elif tenant is not None or agent is not None:
        who = " and ".join([f"tenant {tenant!r}"] * (tenant is not None) + [f"agent {agent!r}"] * (agent is not None))
        raise NothingThereError(f"no transcripts of {who} in {store} ('transcripts ls' shows those there are)")


def ref_argument(metavar: str = "REF", *, required: bool = True, several: bool = False) -> Callable[[_Command], _Command]:
    """The argument ``ref``, or ``refs`` where there may be several; its errors stay the library's."""

    def parse(_ctx: click.Context, _parameter: click.Parameter, given: Any) -> Any:
        if several:
            return [TranscriptRef.parse(text) for text in given]
        return None if given is None else TranscriptRef.parse(given)

    name, number = ("refs", -1) if several else ("ref", 1)
    return click.argument(name, metavar=metavar, nargs=number, required=required, callback=parse)


def store_option(command: _Command) -> _Command:
    """``--store``, which the program and each of its commands take; the one nearer to the end wins."""

    def keep(ctx: click.Context, _: click.Parameter, url: str | None) -> None:
        if url is not None:
            ctx.ensure_object(Session).url = url

    text = "The store (default: $TRANSCRIPT_STORE_URL, else a directory of your own)."
    return click.option("--store", metavar="URL", expose_value=False, callback=keep, help=text)(command)


def json_option(command: _Command) -> _Command:
    """``--json``. The program has looked for it already, since errors in the other arguments are shown as JSON too."""
    return click.option("--json", is_flag=True, expose_value=False, help="One JSON object a line, errors too.")(command)


def examples(*lines: str) -> str:
    """An epilog for a command's help."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def count(number: int, thing: str) -> str:
    """``1 line``, ``2 lines``."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def span(first: int, last: int) -> str:
    """``7-9``, or ``7`` alone."""
    return f"{first}-{last}" if first != last else str(first)


def size(number: int) -> str:
    """Bytes for people, three digits of them: ``30 bytes``, ``1.3 MB``, ``990 kB``."""
    from rich.filesize import decimal

    amount, unit = decimal(number).split(" ")
    whole = amount.partition(".")[0]
    return f"{amount if len(whole) < 3 else whole} {unit}"


def warn(text: str) -> None:
    """Say on standard error what does not end the command."""
    click.echo(f"{click.style('transcripts: warning:', fg='yellow')} {visible(text)}", err=True)


def warn_of(skipped: SkippedCount, session: Session) -> None:
    """Say what a listing of transcripts has left out."""
    for message in skipped.messages:
        if session.json:
            click.echo(json.dumps({"warning": message, "skipped": len(skipped)}), err=True)
        else:
            warn(message)


def visible(text: str) -> str:
    """Text from a store or an error, without what a terminal would obey or a table would break at."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
