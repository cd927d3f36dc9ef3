"""The names of state documents: the only place that builds or takes apart a key of one. Never does I/O.

::

    <root>/<user>/<session>/<key>.json     a value
    <root>/<user>/<session>/<key>.jsonl    a list, an item a line
    <root>/<user>/<session>/<key>.hash     what the Java implementation stores beside its lists

Each document is one object, whoever writes it, and it is written where it is. A new one gets the name that the Java
implementation gives it: ids of other characters than ``A-Z a-z 0-9 _ - .`` in base64, the key as it is. Where that name would
read as another id's (base64 can't be told from an id that looks like it), or no path can hold it, the id or the key is
escaped as in transcripts. What was written under the other names of the same ids is found as well.
"""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterable
from typing import NamedTuple

from transcript_backends import keys
from transcript_backends.errors import InvalidRefError

SHARED = "=state/"
"""Where documents are below the root of a store of transcripts. No id is written like this: ``=st`` is no escape."""

VALUE, LIST, HASH = ".json", ".jsonl", ".hash"
_ANONYMOUS = "__anon__"
_LITERAL_IN_JAVA = re.compile(r"[A-Za-z0-9_.-]+")
_BASE64 = re.compile(r"[A-Za-z0-9_-]+")
_KEYS = keys.Spelling("raw", r"\A\.")  # names with a dot first are somebody else's


def session_prefixes(root: str, user: str | None, session: str) -> tuple[str, ...]:
    """Where the documents of a session are, one prefix or two; new ones in the first.

    Raises:
        InvalidRefError: an id is blank, too long, or not text.
    """
    ours = f"{root}{_user_segment(user)}/{_segment(session, 'session id')}/"
    user_in_java, session_in_java = _user_in_java(user), _in_java(session)
    javas = f"{root}{user_in_java}/{session_in_java}/"
    if ours == javas or not user_in_java or not session_in_java:
        return (ours,)
    can_be_ours = _is_sound(user_in_java, _ANONYMOUS if user_in_java == _ANONYMOUS else user) and _is_sound(
        session_in_java, session
    )
    return (javas, ours) if can_be_ours else (ours, javas)


def user_prefixes(root: str, user: str | None) -> list[str]:
    """Where the sessions of a user are, one prefix or two."""
    return [f"{root}{each}/" for each in dict.fromkeys((_user_segment(user), _user_in_java(user))) if each]


def documents(prefixes: Iterable[str], key: str, suffix: str) -> list[str]:
    """The storage keys that a document may have below a session's prefixes; a new one gets the first.

    Raises:
        InvalidRefError: ``key`` is blank or not text, or the first of the names, or the whole of it, gets too long.
    """
    first, *others = dict.fromkeys(
        (prefix, name) for prefix in prefixes for name in (_KEYS.write(key, "key"), keys.escape(key))
    )
    places = [_document(*first, suffix)]
    for each in others:
        with contextlib.suppress(InvalidRefError):  # nothing can be there
            places.append(_document(*each, suffix))
    return places


def _document(prefix: str, name: str, suffix: str) -> str:
    longest = len(name.encode()) + len(LIST)
    if longest > keys.MAX_ID_BYTES or len(prefix.encode()) + longest > keys.MAX_KEY_BYTES:
        raise InvalidRefError(
            f"the key {name[:40]!r}... makes a name of {longest} bytes below {len(prefix.encode())} of prefix; "
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


def _is_sound(in_java: str, text: str | None) -> bool:
    """Whether an id as Java writes it is found by every listing, on every backend, and read as that id."""
    return _read(in_java) == text and not in_java.startswith(".") and not in_java.endswith(".")


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
