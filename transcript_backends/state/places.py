"""The names of state documents: the only place that builds or takes apart a key of one. Never does I/O.

::

    <root>/<user>/<session>/<key>.json     a value
    <root>/<user>/<session>/<key>.jsonl    a list, an item a line
    <root>/<user>/<session>/<key>.hash     what the Java implementation stores beside its lists

An id is written as in the keys of transcripts. The Java implementation writes those that need it in base64, in which an id
can't be told from the text it stands for; so we write an id that looks like that with an escape more. What it has written
is found under the same ids, and what looks like base64 of such an id is taken for that.
"""

from __future__ import annotations

import base64
import re
from typing import NamedTuple

from transcript_backends import keys
from transcript_backends.errors import InvalidRefError

SHARED = "=state/"
"""Where documents are below the root of a store of transcripts. No id is written like this: ``=st`` is no escape."""

VALUE, LIST, HASH = ".json", ".jsonl", ".hash"
_ANONYMOUS = "__anon__"
_LITERAL_IN_JAVA = re.compile(r"[A-Za-z0-9_.-]+")
_BASE64 = re.compile(r"[A-Za-z0-9_-]+")


def session_prefixes(root: str, user: str | None, session: str) -> tuple[str, ...]:
    """Where the documents of a session are: what we write, and then, where it has another name, what Java has written.

    Raises:
        InvalidRefError: an id is blank, too long, or not text.
    """
    ours = f"{root}{_user_segment(user)}/{_segment(session, 'session id')}/"
    user_in_java, session_in_java = _user_in_java(user), _in_java(session)
    javas = f"{root}{user_in_java}/{session_in_java}/"
    return (ours,) if ours == javas or not user_in_java or not session_in_java else (ours, javas)


def user_prefixes(root: str, user: str | None) -> list[str]:
    """Where the sessions of a user are, one prefix or two."""
    return [f"{root}{each}/" for each in dict.fromkeys((_user_segment(user), _user_in_java(user))) if each]


def document(prefix: str, key: str, suffix: str) -> str:
    """The storage key of a document below a session's prefix.

    Raises:
        InvalidRefError: ``key`` is blank or not text, or the name or the whole gets too long.
    """
    name = keys.check_id(key, "key")
    longest = len(name) + len(LIST)
    if longest > keys.MAX_ID_BYTES or len(prefix.encode()) + longest > keys.MAX_KEY_BYTES:
        raise InvalidRefError(
            f"the key {key[:40]!r}... makes a name of {longest} bytes below {len(prefix.encode())} of prefix; "
            f"{keys.MAX_ID_BYTES} and {keys.MAX_KEY_BYTES} in all are the limits: use shorter ids, or a shorter store URL"
        )
    return prefix + name + suffix


def hash_of(list_key: str) -> str:
    """The storage key of what the Java implementation stores beside a list."""
    return list_key.removesuffix(LIST) + HASH


class File(NamedTuple):
    """A value or a list (``is_document``), or what goes along with one; a user of None is the anonymous one."""

    user: str | None
    session: str
    is_document: bool


def parse(rest: str) -> File | None:
    """Read what follows the root in a storage key; None for somebody else's object."""
    user_segment, *more = rest.split("/")
    if len(more) != 2 or more[1].startswith(".") or not more[1].endswith((VALUE, LIST, HASH)):
        return None
    user, session = _read(user_segment), _read(more[0])
    if user is None or session is None:
        return None
    return File(None if user_segment == _ANONYMOUS else user, session, not more[1].endswith(HASH))


def may_hold(rest: str) -> bool:
    """Whether documents can be in a directory, of which this follows the root."""
    return all(_read(each) is not None for each in rest.split("/") if each)


# --- ids --------------------------------------------------------------------------------------------------------------


def _user_segment(user: str | None) -> str:
    if user is None or (isinstance(user, str) and not user.strip()):
        return _ANONYMOUS
    segment = _segment(user, "user id")
    return _escape_first(segment) if segment == _ANONYMOUS else segment


def _segment(text: str, what: str) -> str:
    segment = keys.check_id(text, what)
    return segment if _decoded(segment) is None else _escape_first(segment)


def _escape_first(segment: str) -> str:
    return f"={ord(segment[0]):02X}{segment[1:]}"


def _user_in_java(user: str | None) -> str | None:
    if user is None or not user.strip():
        return _ANONYMOUS
    return None if user == _ANONYMOUS else _in_java(user)


def _in_java(text: str) -> str | None:
    """An id as the Java implementation writes it; None for what is no place of its own there."""
    if not _LITERAL_IN_JAVA.fullmatch(text):
        segment = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        return segment if len(segment) <= keys.MAX_ID_BYTES else None  # no directory has a longer name
    return None if text in (".", "..") or _decoded(text) is not None else text


def _decoded(segment: str) -> str | None:
    """The id of which a segment is the base64 that the Java implementation writes; None where it is an id as it stands."""
    if not _BASE64.fullmatch(segment):
        return None
    try:
        text = base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4)).decode()
    except ValueError:
        return None
    plausible = text.isprintable() and text.strip() and not _LITERAL_IN_JAVA.fullmatch(text)
    return text if plausible and _in_java(text) == segment else None


def _read(segment: str) -> str | None:
    """The id that a segment stands for; None for somebody else's."""
    if (text := _decoded(segment)) is not None:
        return text
    try:
        text = keys.unescape(segment)
        ours = text.strip() and segment in (_segment(text, "id"), _in_java(text), _escape_first(_ANONYMOUS))
    except InvalidRefError:
        return None
    return text if ours else None
