"""Errors as people and machines are shown them: one message, one exit code."""

from __future__ import annotations

import contextlib
import json
import os
import traceback

import click

import transcript_backends as tb
from transcript_backends.cli.session import Session, visible
from transcript_backends.extras import is_ours

_INTERRUPTED = 130
_EXIT_CODES: tuple[tuple[int, tuple[type[tb.TranscriptStoreError], ...]], ...] = (
    (2, (tb.InvalidURLError, tb.InvalidRefError, tb.InvalidSegmentError, tb.InvalidEntryError, tb.InvalidEventError)),
    (3, (tb.SegmentNotFoundError, tb.ContainerNotFoundError)),
    (4, (tb.SegmentConflictError, tb.VersionConflictError)),
    (5, (tb.AccessDeniedError,)),
    (6, (tb.StoreUnavailableError, tb.UnexpectedResponseError)),
    (7, (tb.PartialDeleteError,)),
)


def show_error(error: BaseException, session: Session, ref: tb.TranscriptRef | None = None) -> int:
    """Show an error, and the transcript it is about; gives the exit code it ends the program with."""
    name, message, code = _explain(error)
    message = "; ".join(filter(None, (message, session.remark)))
    with contextlib.suppress(OSError):
        if session.json:
            about = {"ref": str(ref)} if ref else {}
            click.echo(json.dumps({**about, "error": name, "message": message}), err=True)
        else:
            text = f"{ref}: {message}" if ref else message
            click.echo(f"{click.style('transcripts: error:', fg='red')} {visible(text)}", err=True)
    return code


def _explain(error: BaseException) -> tuple[str, str, int]:
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
    if isinstance(error, ImportError) and not is_ours(error):
        return name, f"{error}: a package is missing or too old (pip install -U 'transcript-backends[all]')", 1
    if isinstance(error, OSError):
        place = click.format_filename(error.filename) if error.filename else "input or output failed"
        return name, f"{place}: {error.strerror or error}", 1
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return name, f"{name}: {error} ({os.path.basename(frame.filename)}:{frame.lineno}); this is a bug, please report it", 1
