"""File systems that lack something, made of this machine's: calls fail, or names fold."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest


def failing(code: int) -> Callable[..., Any]:
    """A call that always fails."""

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def fold_names(monkeypatch: pytest.MonkeyPatch, root: str) -> None:
    """Below a directory, names that differ in case or in their Unicode form are one; each is listed as it was first given."""
    listdir = os.listdir

    def spelled(path: Any) -> Any:
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path).startswith(root + "/"):
            return path
        found = root
        for part in os.fspath(path)[len(root) + 1 :].split("/"):
            try:
                names = listdir(found)
            except OSError:
                names = []
            found = f"{found}/{next((name for name in names if _folded(name) == _folded(part)), part)}"
        return found

    def folding(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: call(*map(spelled, args), **kwargs)

    for name in ("open", "stat", "lstat", "mkdir", "link", "replace", "rename", "unlink", "scandir", "listdir"):
        monkeypatch.setattr(os, name, folding(getattr(os, name)))


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()
