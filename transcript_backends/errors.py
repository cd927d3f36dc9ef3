"""Every error the package raises on purpose.

::

    TranscriptStoreError
    ├── InvalidURLError                      also ValueError
    ├── InvalidRefError                      also ValueError
    ├── InvalidSegmentError                  also ValueError
    ├── InvalidEntryError                    also ValueError
    ├── InvalidEventError                    also ValueError
    ├── StoreClosedError                     also ValueError
    ├── SegmentNotFoundError                 also FileNotFoundError
    ├── ContainerNotFoundError               also FileNotFoundError
    ├── SegmentConflictError                 also FileExistsError
    ├── VersionConflictError
    ├── AccessDeniedError                    also PermissionError
    ├── StoreUnavailableError                also ConnectionError
    ├── UnexpectedResponseError              also ConnectionError
    ├── ConditionalWritesUnsupportedError
    ├── CorruptSegmentError
    ├── JournalError                         also OSError
    ├── PartialDeleteError
    └── MissingExtraError                    also ImportError

A message says what was tried, on which key, and what to do about it. The exception of the cloud's SDK, where there is
one, is the ``__cause__``. No message holds a secret.
"""

from __future__ import annotations

from collections.abc import Mapping


class TranscriptStoreError(Exception):
    """The base of every error of this package."""

    # The built-in OSError family formats and pickles by (errno, strerror); ours is one message.
    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class InvalidURLError(TranscriptStoreError, ValueError):
    """The store URL or an option beside it can't be used; nothing was contacted."""


class InvalidRefError(TranscriptStoreError, ValueError):
    """A transcript can't be named like this; nothing was contacted."""


class InvalidSegmentError(TranscriptStoreError, ValueError):
    """A segment's range, writer id, key or payload breaks the rules; nothing was written."""


class InvalidEventError(TranscriptStoreError, ValueError):
    """An event, a session object or a change of one breaks the rules of the session API; nothing was stored.

    Attributes:
        index: of the event among those that were given; None where it is not about one of several.
        path: the member, as ``content[0].text``; empty for the whole.
        reason: what is wrong with it.
    """

    def __init__(self, message: str, index: int | None = None, path: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.index, self.path, self.reason = index, path, reason

    def __reduce__(self) -> tuple[type[InvalidEventError], tuple[object, ...]]:
        return type(self), (str(self), self.index, self.path, self.reason)


class InvalidEntryError(TranscriptStoreError, ValueError):
    """A line is no session entry, or not what its type demands.

    Attributes:
        member: which of its members; empty where it is the line as a whole.
    """

    def __init__(self, message: str, member: str = "") -> None:
        super().__init__(message)
        self.member = member

    def __reduce__(self) -> tuple[type[InvalidEntryError], tuple[str, str]]:
        return type(self), (str(self), self.member)


class StoreClosedError(TranscriptStoreError, ValueError):
    """The store was used after ``close()``."""


class SegmentNotFoundError(TranscriptStoreError, FileNotFoundError):
    """No such object in a container that answers."""


class ContainerNotFoundError(TranscriptStoreError, FileNotFoundError):
    """The bucket, container or directory itself is missing. Never reported as an empty transcript."""


class SegmentConflictError(TranscriptStoreError, FileExistsError):
    """The key holds different content already. Nothing was overwritten."""


class VersionConflictError(TranscriptStoreError):
    """A document is not, or no more, the version that was to be replaced. Nothing was written."""


class AccessDeniedError(TranscriptStoreError, PermissionError):
    """The credentials are missing, expired or not allowed to do this."""


class StoreUnavailableError(TranscriptStoreError, ConnectionError):
    """The store did not answer, or kept asking to try later, until the retries were used up."""


class UnexpectedResponseError(TranscriptStoreError, ConnectionError):
    """Something answered, but not like the object store it should be (a proxy's page, a wrong endpoint)."""


class ConditionalWritesUnsupportedError(TranscriptStoreError):
    """The store does not honour create-only writes, so two writers could overwrite one another."""


class CorruptSegmentError(TranscriptStoreError):
    """Stored data isn't what it should be; the message names the object and the place."""


class JournalError(TranscriptStoreError, OSError):
    """A writer's journal can't be written. What `TranscriptWriter.append` was called with was not taken."""


class PartialDeleteError(TranscriptStoreError):
    """Some objects of a transcript could not be deleted. Calling ``delete`` again goes on with them.

    Attributes:
        failed: key -> reason, for every object that is still there.
    """

    def __init__(self, message: str, failed: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.failed: dict[str, str] = dict(failed or {})

    def __reduce__(self) -> tuple[type[PartialDeleteError], tuple[str, dict[str, str]]]:
        return type(self), (str(self), self.failed)


class MissingExtraError(TranscriptStoreError, ImportError):
    """A package that this backend or command needs is not installed; the message gives the ``pip install``."""
