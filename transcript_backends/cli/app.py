"""The program: its commands, and how every error ends as one message and an exit code."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import click

import transcript_backends as tb
from transcript_backends.cli import importing, showing, tending
from transcript_backends.cli.session import Session, examples, store_option, visible

_INTERRUPTED, _CLOSED_PIPE = 130, 141
_EXIT_CODES: tuple[tuple[int, tuple[type[tb.TranscriptStoreError], ...]], ...] = (
    (2, (tb.InvalidURLError, tb.InvalidRefError, tb.InvalidSegmentError)),
    (3, (tb.SegmentNotFoundError, tb.ContainerNotFoundError)),
    (4, (tb.SegmentConflictError,)),
    (5, (tb.AccessDeniedError,)),
    (6, (tb.StoreUnavailableError, tb.UnexpectedResponseError)),
    (7, (tb.PartialDeleteError,)),
)

_EPILOG = f"""\
\b
REF names a transcript: agent/session or tenant/agent/session.

{examples("transcripts import session.jsonl demo/agent/s1", "transcripts --store s3://bucket/prefix ls")}

\b
Exit codes:
    0  ok
    1  a failed check, or an error not named here
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
            code = _fail(error, session)
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


def _fail(error: Exception, session: Session) -> int:
    """Show what ended the program; gives the exit code."""
    name, message, code = _explain(error)
    message = "; ".join(filter(None, (message, session.remark)))
    with contextlib.suppress(OSError):
        if session.json:
            click.echo(json.dumps({"error": name, "message": message}), err=True)
        else:
            click.echo(f"{click.style('transcripts: error:', fg='red')} {visible(message)}", err=True)
    return code


def _explain(error: Exception) -> tuple[str, str, int]:
    """An error's name, message and exit code."""
    name = type(error).__name__
    if isinstance(error, tb.TranscriptStoreError):
        code = next((code for code, kinds in _EXIT_CODES if isinstance(error, kinds)), 1)
        cause = error.__cause__ if type(error) is tb.TranscriptStoreError else None
        return name, f"{error} ({type(cause).__name__}: {cause})" if cause else str(error), code
    if isinstance(error, click.Abort):
        return "Interrupted", "interrupted", _INTERRUPTED
    if isinstance(error, click.UsageError) and error.ctx:
        return name, f"{error.format_message()} (see '{error.ctx.command_path} --help')", error.exit_code
    if isinstance(error, click.ClickException):
        return name, error.format_message(), error.exit_code
    if isinstance(error, OSError):
        place = click.format_filename(error.filename) if error.filename else "input or output failed"
        return name, f"{place}: {error.strerror or error}", 1
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return name, f"{name}: {error} ({os.path.basename(frame.filename)}:{frame.lineno}); this is a bug, please report it", 1


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
    tending.rm,
    tending.doctor,
):
    program.add_command(_command)
