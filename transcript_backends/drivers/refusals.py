"""What services say when they refuse a request, read for what a message may repeat and for what is worth another try."""

from __future__ import annotations

import re

from transcript_backends.drivers.driver import Meaning

_DAMAGED = re.compile(
    r"digest|^incomplete|(md5|crc|sha|checksum)\w*mismatch|\b(md5|crc32c|hash)\b.*(doesn't|does not|did not) match",
    re.IGNORECASE,
)
_OWN_WORDS = (Meaning.DENIED, Meaning.UNAUTHENTICATED, Meaning.OTHER)  # those who ask can do something about it
_CREDENTIALS = re.compile(
    r"(?<!continuation)(?<!page)token|expired|access_?key|signature|credential|authentication|^InvalidSecurity$", re.IGNORECASE
)
_EXPIRED = re.compile(r"expired|refresh", re.IGNORECASE)
_ACTION = r"\b[a-z][a-z0-9-]{1,30}:[A-Z][A-Za-z]{2,60}\b"  # s3:PutObject, kms:GenerateDataKey
_WORD_OR_NOT = re.compile(rf"({_ACTION})|[A-Za-z0-9+/=_%-]{{16,}}")  # no other word of a service is as long as a key or a token
_LONGEST = 400


def came_damaged(code: str) -> bool:
    """Whether the word or sentence for a refusal says that the request's body did not arrive as it was sent."""
    return _DAMAGED.search(code) is not None


def in_its_words(meaning: Meaning, text: object) -> str:
    """The sentence of a service, where it is of use; else empty."""
    told = sentence(text) if meaning in _OWN_WORDS else ""
    return told if " " in told and told != "Access Denied" else ""


def of_credentials(code: str) -> Meaning | None:
    """What the word for a refusal means where it is about who asks, and not about what they may do; None for any other."""
    if not _CREDENTIALS.search(code):
        return None
    return Meaning.EXPIRED if _EXPIRED.search(code) else Meaning.UNAUTHENTICATED


def sentence(text: object) -> str:
    """The first line of what a service says, fit for a message: what may be a key, a token or a signature is left out.

    Empty where it says nothing, or sends a page.
    """
    first = next(iter(str(text or "").strip().splitlines()), "")
    if "<" in first:
        return ""
    words = " ".join(_WORD_OR_NOT.sub(lambda found: found[1] or "...", first).split()).rstrip(".")
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST]}..."
