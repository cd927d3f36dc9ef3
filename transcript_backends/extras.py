"""Optional packages: where an import fails that needs one, the error names the extra that brings it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from transcript_backends.errors import MissingExtraError


@contextlib.contextmanager
def needed_by(what: str, extra: str, package: str) -> Iterator[None]:
    """Around the imports of an optional package, and of whatever comes with it.

    Args:
        what: needs it, for the message.
        extra: of ours, which installs it; several with commas.
        package: its name where it is installed from.

    Raises:
        MissingExtraError: a module is missing, or too old to have what is asked of it. One of ours that is missing is a bug.
    """
    try:
        yield
    except ImportError as error:
        if isinstance(error, MissingExtraError) or is_ours(error):
            raise
        missing = isinstance(error, ModuleNotFoundError)
        module = "" if not error.name or error.name == package else f" (the module {error.name})"
        raise MissingExtraError(
            f"{what} needs {package}, which {'is not installed' if missing else 'is too old, or damaged'}{module}: "
            f"pip install 'transcript-backends[{extra}]'",
            name=package,
        ) from error


def is_ours(error: ImportError) -> bool:
    """Whether it is a module of this package that can't be imported."""
    return (error.name or "").partition(".")[0] == __name__.partition(".")[0]
