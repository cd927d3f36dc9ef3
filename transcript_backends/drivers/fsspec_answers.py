"""What fsspec's filesystems answer, each in its own words: facts of files, and errors."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

from transcript_backends.drivers.driver import Failure, Meaning, ObjectInfo
from transcript_backends.drivers.refusals import of_credentials
from transcript_backends.filesystem import OUTAGES

TEMPORARY = ".tmp-"

_TIMES = ("LastModified", "last_modified", "mtime", "modified", "updated", "modificationTime", "created", "creation_time")
_VERSIONS = ("generation", "ETag", "etag", "ino")
_OF_CREDENTIALS = re.compile("Credential|Token|SSO|Login|Auth[a-zA-Z]*Error")  # families of the SDKs' exceptions
_DENIAL = re.compile("^Forbidden:|not found in known_hosts$")  # gcsfs and paramiko say it in no other way
_MEANINGS_BY_STATUS = {
    401: Meaning.EXPIRED,
    403: Meaning.DENIED,
    404: Meaning.NOT_FOUND,
    408: Meaning.TRY_AGAIN,
    409: Meaning.TRY_AGAIN,  # S3: another request is under way; where it means "exists", gcsfs and adlfs say so
    412: Meaning.PRECONDITION,
    429: Meaning.TRY_AGAIN,
    501: Meaning.UNSUPPORTED,
}
_MEANINGS_BY_ERRNO: dict[int | None, Meaning] = {
    None: Meaning.TRY_AGAIN,  # paramiko tells none where a connection is lost
    errno.EROFS: Meaning.DENIED,
    errno.ENOSYS: Meaning.UNSUPPORTED,
    errno.ENOTSUP: Meaning.UNSUPPORTED,
    errno.ENAMETOOLONG: Meaning.NO_NAME,
    errno.EILSEQ: Meaning.NO_NAME,
    **dict.fromkeys(OUTAGES, Meaning.TRY_AGAIN),
}


class RefusedError(Exception):
    """What the driver itself refuses, and what that means."""

    def __init__(self, meaning: Meaning, detail: str) -> None:
        super().__init__(detail)
        self.meaning = meaning


# --- facts ------------------------------------------------------------------------------------------------------------


def name_in(directory: str, told: Mapping[str, Any]) -> str:
    """An entry's name, with a slash after a directory's; empty for what is not in there, or temporary."""
    above, _, name = str(told["name"]).strip("/").rpartition("/")
    if above != directory.strip("/") or (name.startswith(".") and TEMPORARY in name):
        return ""
    return f"{name}/" if told["type"] == "directory" else name


def object_info(key: str, told: Mapping[str, Any]) -> ObjectInfo:
    """The facts of a file.

    Raises:
        FileNotFoundError: it is none.
        RefusedError: its time is not told.
    """
    if told["type"] != "file":
        raise FileNotFoundError(errno.ENOENT, "not a file")
    created_at = _time(told)
    version = next((str(told[name]) for name in _VERSIONS if told.get(name)), "")
    if not version or "ino" in told:
        version = f"{version}-{created_at.timestamp()}-{told['size']}"
    return ObjectInfo(key, told["size"], created_at, version)


def _time(told: Mapping[str, Any]) -> datetime:
    """When a file was written, in UTC. None is made up: by it, what a compaction has merged is told from what came later."""
    time = next((told[name] for name in _TIMES if told.get(name)), None)
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time.replace("Z", "+00:00"))
        except ValueError:
            time = parsedate_to_datetime(str(time))
    elif isinstance(time, (int, float)):
        time = datetime.fromtimestamp(time / 1000 if time > 1e11 else time, timezone.utc)
    if not isinstance(time, datetime):
        raise RefusedError(
            Meaning.OTHER, f"the filesystem does not tell when a file was written, only {', '.join(sorted(told))}"
        )
    return time.replace(tzinfo=time.tzinfo or timezone.utc).astimezone(timezone.utc)


# --- errors -----------------------------------------------------------------------------------------------------------


def classify(error: Exception) -> Failure | None:
    """What an exception of a filesystem, or of the SDK below it, means. Its text is not repeated: it may hold a URL."""
    if isinstance(error, RefusedError):
        return Failure(error.meaning, str(error))
    status = _status(error) or _status(error.__cause__)  # s3fs makes an OSError of what botocore raised
    meaning = of_credentials(_code(error) or _code(error.__cause__)) or _meaning(error, status)
    if meaning is None:
        return None
    told = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else type(error).__name__
    return Failure(meaning, f"{told}, HTTP {status}" if status else told)


def _meaning(error: Exception, status: int) -> Meaning | None:
    if isinstance(error, FileExistsError):
        return Meaning.PRECONDITION
    if isinstance(error, FileNotFoundError):
        return Meaning.NOT_FOUND
    if isinstance(error, PermissionError) or _DENIAL.search(str(error)):
        return Meaning.DENIED
    if isinstance(error, (TimeoutError, asyncio.TimeoutError, ConnectionError, EOFError)):
        return Meaning.TRY_AGAIN
    if status:
        return _MEANINGS_BY_STATUS.get(status) or (Meaning.TRY_AGAIN if status >= 500 else Meaning.OTHER)
    if isinstance(error, OSError):
        return _MEANINGS_BY_ERRNO.get(error.errno, Meaning.OTHER)
    if isinstance(error, json.JSONDecodeError):
        return Meaning.NO_ANSWER
    if isinstance(error, (NotImplementedError, ValueError)):
        return Meaning.UNSUPPORTED
    if type(error).__module__ == "builtins":
        return None
    name = type(error).__name__  # of an SDK of which nothing is known
    if re.search("Transport|Time-?out|Connect", name, re.IGNORECASE):
        return Meaning.TRY_AGAIN
    if any(_OF_CREDENTIALS.search(each.__name__) for each in type(error).__mro__):
        return Meaning.UNAUTHENTICATED
    return Meaning.DENIED if re.search("Auth|HostKey", name) else Meaning.TRY_AGAIN


def _code(error: BaseException | None) -> str:
    """The service's word for what it refused, where an SDK's exception tells it; else empty."""
    answer = getattr(error, "response", None)
    told = answer.get("Error") if isinstance(answer, Mapping) else None
    return str(told.get("Code", "") if isinstance(told, Mapping) else getattr(error, "error_code", None) or "")


def _status(error: BaseException | None) -> int:
    """The HTTP status that an SDK's exception tells, 0 for none."""
    answer = getattr(error, "response", None)
    if isinstance(answer, Mapping):
        return int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    for name in ("status_code", "status", "code"):
        status = getattr(error, name, None)
        if isinstance(status, int):
            return status
    return 0
