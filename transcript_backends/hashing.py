"""The sha256 by which content is known."""

from __future__ import annotations

import hashlib

_PIECE = 2047  # bytes: for more hashlib lets other threads go first, and waits for its turn again
_SMALL_BYTES = 64 * 1024


def sha256(content: bytes) -> str:
    """In hexadecimal. Of small content without giving way to other threads, which takes longer than the sum where many are."""
    if len(content) > _SMALL_BYTES:
        return hashlib.sha256(content).hexdigest()
    digest = hashlib.sha256()
    for start in range(0, len(content), _PIECE):
        digest.update(content[start : start + _PIECE])
    return digest.hexdigest()
