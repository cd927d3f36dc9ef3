"""The program: its commands, and how every error ends as one message and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

import transcript_backends as tb
from transcript_backends.cli import (
    compacting,
    copying,
    importing,
    showing,
    stats,
    tailing,
    tending,
    validating,
    verifying,
    viewing,
)
from transcript_backends.cli.explaining import show_error
from transcript_backends.cli.session import Session, examples, store_option

_CLOSED_PIPE = 141

_EPILOG = f"""\
\b
REF names a transcript: agent/session or tenant/agent/session.

{examples("transcripts import session.jsonl demo/agent/s1", "transcripts --store s3://bucket/prefix ls")}

\b
Exit codes:
    0  ok
    1  a failed check, a transcript that failed while others went on, or an error not named here
    2  wrong usage or bad input
    3  not found
    4  conflict: other content is there already
    5  access denied
    6  the store is unavailable or answered unexpectedly
    7  partly deleted; run it again
  130  interrupted
"""


class _Program(click.Group):
    """A group whose errors are ours to show."""

    def main(self, args: Sequence[str] | None = None, *_: Any, **__: Any) -> Any:
        arguments = list(sys.argv[1:] if args is None else args) or ["--help"]
        session = Session(json="--json" in arguments)
        try:
            code = super().main(arguments, "transcripts", standalone_mode=False, obj=session) or 0
        except Exception as error:
            code = show_error(error, session)
        _finish_output()
        sys.exit(code)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _endings():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> None:
        with _endings():
            super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()


@contextlib.contextmanager
def _endings() -> Iterator[None]:
    """Ctrl-C, and a reader of the output that has had enough: no accidents, and not for click to answer."""
    try:
        yield
    except KeyboardInterrupt:
        if sys.stderr is not None and sys.stderr.isatty():
            click.echo(err=True)  # after the terminal's ^C
        raise click.Abort from None
    except BrokenPipeError:
        raise click.exceptions.Exit(_CLOSED_PIPE) from None


def _finish_output() -> None:
    """See that nothing is left to be written, and to fail, when the interpreter shuts down."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())


@click.group(cls=_Program, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@store_option
@click.version_option(tb.__version__, message="%(prog)s %(version)s")
def program() -> None:
    """Transcripts of agents on object storage, in a bucket or a directory."""


for _command in (
    importing.import_,
    importing.append,
    showing.ls,
    showing.cat,
    tailing.tail,
    viewing.show,
    viewing.context,
    copying.cp,
    copying.sync,
    compacting.compact,
    verifying.verify,
    validating.validate,
    stats.stats,
    tending.rm,
    tending.doctor,
):
    program.add_command(_command)
