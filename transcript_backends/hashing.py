"""The hashes by which content is known, in hexadecimal.

Small content is hashed without giving way to other threads, which takes longer than the hash where many are at work.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash

_PIECE = 2047  # bytes: for more hashlib lets other threads go first, and waits for its turn again
_SMALL_BYTES = 64 * 1024


def sha256(content: bytes) -> str:
    """Ours."""
    return _digest(hashlib.sha256(), content)


def md5(content: bytes) -> str:
    """S3's."""
    return _digest(hashlib.md5(usedforsecurity=False), content)


def _digest(state: _Hash, content: bytes) -> str:
    piece = _PIECE if len(content) <= _SMALL_BYTES else len(content)
    for start in range(0, len(content), piece):
        state.update(content[start : start + piece])
    return state.hexdigest()
