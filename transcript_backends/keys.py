"""The key grammar: the only place that builds or takes apart a storage key. Never does I/O.

::

    <root>/<tenant>/<agent>/<session>/events/<seqStart>-<seqEnd>-<writerId>.jsonl    a segment
    <root>/<tenant>/<agent>/<session>/events/deleting-<n>, deleted-<n>               deletion markers
    <root>/<tenant>/<agent>/<session>/index/<segment name>.json                      a segment index
    <root>/<tenant>/<agent>/<session>/payloads/<sha256>                              an offloaded payload

What does not match belongs to somebody else: parsing it gives None, and nobody touches it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from transcript_backends.errors import InvalidRefError, InvalidSegmentError
from transcript_backends.hashing import sha256

MAX_SEQ = 2**63 - 1
MAX_KEY_BYTES = 1024
MAX_ID_BYTES = 255
_SEQ_DIGITS = 19
_LONGEST_WRITER_ID = 64

EVENTS, INDEX, PAYLOADS = "events/", "index/", "payloads/"

# Never \d or int() alone: both take digits of other scripts, int() also blanks, signs and _, and refuses very long numbers.
_NUMBER = f"0*([0-9]{{1,{_SEQ_DIGITS}}})"
_SEGMENT = re.compile(rf"{_NUMBER}-{_NUMBER}-([^./]+)\.jsonl")
_COMPACTED = re.compile(r"compacted-(0|[1-9][0-9]{0,18})-([0-9a-f]{16})")
_MARKER = re.compile(r"(deleting|deleted)-([1-9][0-9]{0,18})")
_PAYLOAD = re.compile(r"[0-9a-f]{64}")
_WRITER_ID = re.compile(rf"[A-Za-z0-9_-]{{1,{_LONGEST_WRITER_ID}}}")
_LONGEST_NAME = EVENTS + "9" * _SEQ_DIGITS + "-" + "9" * _SEQ_DIGITS + "-" + "w" * _LONGEST_WRITER_ID + ".jsonl"


# --- ids <-> path segments --------------------------------------------------------------------------------------------

Ids = Literal["escaped", "raw"]

_ESCAPE = re.compile(rb"=([0-9A-F]{2})")


class Spelling:
    """How ids are written as path segments: each id in one way, and what is written otherwise is nobody's id.

    Bytes of the UTF-8 form are written ``=XX`` (upper-case hex): in ``escaped`` those outside ``[A-Za-z0-9_.-]``, a leading dot
    and a trailing dot, so segments are pure ASCII and fit everywhere. In ``raw`` only what a path can't hold everywhere:
    slashes, backslashes, control characters, ``.`` and ``..``, and a ``=`` that would read as an escape, or as the place of
    state documents, ``=state``. All else stands for itself, and nothing is normalised: so most ids are written as programs
    write them that escape nothing.

    Args:
        ids: which of them.
        unfit: a pattern of what else no segment can hold on a service.
    """

    def __init__(self, ids: Ids, unfit: str = "") -> None:
        self.ids = ids
        # Not $, which also matches before a final newline. U+FFFE and U+FFFF are no XML, which listings are written in.
        patterns = {
            "escaped": r"[^A-Za-z0-9_.-]+|\A\.|\.\Z",
            "raw": r"[\x00-\x1f\x7f-\x9f/\\\ufffe\uffff]+|=(?=[0-9A-F]{2})|\A=(?=state\Z)|\A\.{1,2}\Z",
        }
        self._to_escape = re.compile("|".join(filter(None, (patterns[ids], unfit))))
        self.escape = lru_cache(maxsize=1024)(self._escape)
        self.read = lru_cache(maxsize=1024)(self._read)

    def _escape(self, text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRefError(
                f"{text!r} can't be part of a key: it holds a lone surrogate (half a character); repair the text first"
            ) from error
        return self._to_escape.sub(lambda found: "".join(f"={each:02X}" for each in found.group().encode()), text)

    def write(self, value: object, what: str) -> str:
        """An id as a path segment, or an `InvalidRefError` that says what is wrong with it."""
        if not isinstance(value, str):
            raise InvalidRefError(f"the {what} must be text, not {type(value).__name__}")
        if not value.strip():
            raise InvalidRefError(f"the {what} is blank: {value!r}; give it at least one visible character")
        segment = self.escape(value)
        size = len(segment.encode())
        if size > MAX_ID_BYTES:
            raise InvalidRefError(
                f"the {what} {value[:40]!r}... takes {size} bytes as it is written (ids={self.ids}), {MAX_ID_BYTES} is the "
                "limit; use a shorter id (a hash of it, for one)"
            )
        return segment

    def _read(self, segment: str) -> str | None:
        """The id that a segment stands for; None where no id is written so."""
        try:
            text = _ESCAPE.sub(lambda found: bytes.fromhex(found.group(1).decode()), segment.encode()).decode()
            return text if self.write(text, "id") == segment else None
        except (UnicodeError, InvalidRefError):
            return None

    def prefix(self, tenant: str, agent_id: str, session_id: str) -> str:
        """Where a transcript is below a store's root, with a final ``/``.

        Raises:
            InvalidRefError: an id is too long in this spelling.
        """
        ids = (self.write(tenant, "tenant"), self.write(agent_id, "agent id"), self.write(session_id, "session id"))
        return "/".join(ids) + "/"


ESCAPED = Spelling("escaped")
RAW = Spelling("raw")


def escape(text: str) -> str:
    """One id as one path segment: pure ASCII, reversible, no two ids alike.

    Raises:
        InvalidRefError: the text holds a lone surrogate, which has no UTF-8 form.
    """
    return ESCAPED.escape(text)


def unescape(segment: str) -> str:
    """The id a path segment stands for; characters that need no escape may stand for themselves.

    Raises:
        InvalidRefError: a ``=`` that starts no escape, or bytes that are no UTF-8.
    """
    try:
        raw = segment.encode()
        if b"=" in _ESCAPE.sub(b"", raw):
            raise InvalidRefError(f"{segment!r} holds a '=' that starts no =XX escape: write a literal '=' as =3D")
        return _ESCAPE.sub(lambda found: bytes.fromhex(found.group(1).decode()), raw).decode()
    except UnicodeError as error:
        raise InvalidRefError(f"{segment!r} is no escaped UTF-8 text") from error


def check_id(value: object, what: str) -> str:
    """``value`` as an escaped path segment, or an `InvalidRefError` that says what is wrong with it."""
    return ESCAPED.write(value, what)


# --- segments ---------------------------------------------------------------------------------------------------------


class SegmentName(NamedTuple):
    """The numbers and the writer in a segment's name; ``str()`` gives the canonical, zero-padded name."""

    seq_start: int
    seq_end: int
    writer_id: str

    def __str__(self) -> str:
        return f"{self.seq_start:0{_SEQ_DIGITS}d}-{self.seq_end:0{_SEQ_DIGITS}d}-{self.writer_id}.jsonl"

    @property
    def generation(self) -> int | None:
        """As `generation_of`."""
        return generation_of(self.writer_id)


def generation_of(writer_id: str) -> int | None:
    """The generation in the name of a compacted segment, None for any other segment."""
    found = _COMPACTED.fullmatch(writer_id) if writer_id.startswith("compacted-") else None
    return int(found.group(1)) if found else None


def parse_segment_name(name: str, at: int = 0) -> SegmentName | None:
    """Read a segment's name, padded or not, from a place on; None where it is no segment's."""
    found = _SEGMENT.fullmatch(name, at)
    if not found:
        return None
    first, last, writer_id = found.groups()
    start = int(first)
    end = start if last == first else int(last)  # one number takes less memory
    return SegmentName(start, end, writer_id) if start <= end <= MAX_SEQ else None


def check_writer_id(writer_id: object) -> str:
    """``writer_id`` unchanged, or an `InvalidSegmentError`. It is never rewritten: two rewritten ids could meet in one key."""
    if not isinstance(writer_id, str) or not _WRITER_ID.fullmatch(writer_id):
        raise InvalidSegmentError(f"writer id {writer_id!r:.100} must be 1 to 64 of the characters A-Z a-z 0-9 _ -")
    if writer_id.startswith("compacted-"):
        raise InvalidSegmentError(f"writer id {writer_id!r} starts with 'compacted-', which is kept for compacted segments")
    return writer_id


def writer_id_in(generation: int, writer_id: str) -> str:
    """The name under which a writer with an id of its own writes in a generation of a transcript.

    After a delete the same id and seqs would make the same keys again, and a request of the previous generation that is
    carried out late would remove what is stored under them. So the generation takes part in the name: ``mine`` writes as
    ``mine-g2`` after the second delete. Where that is too long for a writer id, a digest takes the place of its middle.
    """
    if not generation:
        return writer_id
    suffix = f"-g{generation}"
    if len(writer_id) + len(suffix) > _LONGEST_WRITER_ID:
        suffix = f"-{sha256(writer_id.encode())[:16]}{suffix}"
    return writer_id[: _LONGEST_WRITER_ID - len(suffix)] + suffix


def check_range(seq_start: object, seq_end: object) -> int:
    """The number of records in an inclusive range, or an `InvalidSegmentError`."""
    for name, seq in (("seq_start", seq_start), ("seq_end", seq_end)):
        if not isinstance(seq, int) or isinstance(seq, bool):
            raise InvalidSegmentError(f"{name} must be an integer, not {type(seq).__name__}")
        if not 0 <= seq <= MAX_SEQ:
            shown = seq if seq.bit_length() < 100 else f"of {seq.bit_length()} bits"  # str() refuses very long numbers
            raise InvalidSegmentError(f"{name} {shown} is outside 0 ... {MAX_SEQ} (2^63-1)")
    assert isinstance(seq_start, int)
    assert isinstance(seq_end, int)
    if seq_start > seq_end:
        raise InvalidSegmentError(f"seq_start {seq_start} is greater than seq_end {seq_end}; the range is inclusive")
    return seq_end - seq_start + 1


# --- whole keys -------------------------------------------------------------------------------------------------------


class MarkerKey(NamedTuple):
    """The key of a deletion marker; ``done`` tells ``deleted`` from ``deleting``."""

    done: bool
    number: int


class IndexKey(NamedTuple):
    """The key of a segment index."""

    segment: SegmentName


class PayloadKey(NamedTuple):
    """The key of an offloaded payload."""

    sha256: str


ParsedKey = SegmentName | MarkerKey | IndexKey | PayloadKey


def parse_object(key: str, at: int = 0) -> ParsedKey | None:
    """Read what follows a session's prefix, which ends at a place in the key; None for somebody else's object."""
    if key.startswith(EVENTS, at):
        at += len(EVENTS)
        name = parse_segment_name(key, at)
        if name:
            return name
        marker = _MARKER.fullmatch(key, at)
        return MarkerKey(marker.group(1) == "deleted", int(marker.group(2))) if marker else None
    if key.startswith(INDEX, at) and key.endswith(".json"):
        name = parse_segment_name(key[: -len(".json")], at + len(INDEX))
        return IndexKey(name) if name and name.generation is not None else None
    if key.startswith(PAYLOADS, at) and _PAYLOAD.fullmatch(key, at + len(PAYLOADS)):
        return PayloadKey(key[at + len(PAYLOADS) :])
    return None


class TranscriptKeys:
    """The keys of one transcript below one root.

    Args:
        root: the store's root inside its container, empty or ending in ``/``.
        ref_prefix: `Spelling.prefix` of its ids.

    Raises:
        InvalidRefError: the longest key of this transcript would pass 1,024 bytes.
    """

    __slots__ = ("prefix",)

    def __init__(self, root: str, ref_prefix: str) -> None:
        self.prefix = root + ref_prefix
        longest = len(self.prefix.encode()) + len(_LONGEST_NAME)
        if longest > MAX_KEY_BYTES:
            raise InvalidRefError(
                f"keys of transcript {ref_prefix[:60]!r}... would take up to {longest} bytes, {MAX_KEY_BYTES} is the limit; "
                "use shorter ids or a shorter prefix in the store URL"
            )

    def segment(self, seq_start: int, seq_end: int, writer_id: str) -> str:
        return f"{self.prefix}{EVENTS}{SegmentName(seq_start, seq_end, writer_id)}"

    def index(self, segment: SegmentName) -> str:
        return f"{self.prefix}{INDEX}{segment}.json"

    def payload(self, sha256: str) -> str:
        return f"{self.prefix}{PAYLOADS}{sha256}"

    def deleting(self, number: int) -> str:
        return f"{self.prefix}{EVENTS}deleting-{number}"

    def deleted(self, number: int) -> str:
        return f"{self.prefix}{EVENTS}deleted-{number}"

    def parse(self, key: str) -> ParsedKey | None:
        return parse_object(key, len(self.prefix)) if key.startswith(self.prefix) else None


_SEGMENT_BELOW = re.compile(rf"(.*)/{EVENTS}([^/]+)", re.DOTALL)


class Located(NamedTuple):
    """Where a key is below a root.

    Attributes:
        path: ``tenant/agent/session``, as it is written; for a segment in another depth, what there is.
        parsed: what the key is there.
    """

    path: str
    parsed: ParsedKey

    @property
    def names_three(self) -> bool:
        """Whether the path is of three segments, as a transcript's is, and not at another depth."""
        return self.path.count("/") == 2


def split_key(root: str, key: str) -> Located | None:
    """Take a key below ``root`` apart; None for somebody else's object."""
    if not key.startswith(root):
        return None
    parts = key[len(root) :].split("/", 3)
    if len(parts) == 4 and (parsed := parse_object(parts[3])):
        return Located("/".join(parts[:3]), parsed)
    elsewhere = _SEGMENT_BELOW.fullmatch(key, len(root))
    name = parse_segment_name(elsewhere.group(2)) if elsewhere else None
    return Located(elsewhere.group(1), name) if elsewhere and name else None


@lru_cache(maxsize=1024)
def read_path(spelling: Spelling, path: str) -> tuple[str, str, str] | None:
    """Tenant, agent and session of a path; None where this spelling writes no ids like that."""
    match [spelling.read(each) for each in path.split("/")]:
        case [str(tenant), str(agent), str(session)]:
            return tenant, agent, session
    return None


def may_hold(root: str, spelling: Spelling, directory: str) -> bool:
    """Whether a transcript can have objects in a directory below ``root``, both ending in ``/``."""
    ids = directory.removeprefix(root).split("/")[:3]
    return all(spelling.read(each) is not None for each in ids if each)


# --- roots ------------------------------------------------------------------------------------------------------------

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def placeholders(root: str) -> list[str]:
    """The names of the placeholders in a root, in order; each is a whole path segment, ``{name}``."""
    return [found.group(1) for part in root.split("/") if (found := _PLACEHOLDER.fullmatch(part))]


def fill(root: str, values: Mapping[str, str], spelling: Spelling = ESCAPED) -> str:
    """A root with its placeholders filled, each value written as one path segment."""
    parts = (
        spelling.write(values[found.group(1)], found.group(1)) if (found := _PLACEHOLDER.fullmatch(part)) else part
        for part in root.split("/")
    )
    return "/".join(parts)
