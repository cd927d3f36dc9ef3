"""Filesystems of fsspec's kind, each with one fault, or with the manners of one that is not installed here."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any, ClassVar

import fsspec
import pytest
from faults.setups import FakeClock
from fsspec.implementations.local import LocalFileSystem

from transcript_backends import ObjectTranscriptStore, open_store

Open = Callable[..., ObjectTranscriptStore]


class Buckets(fsspec.AbstractFileSystem):
    """Objects in buckets, in a dict of the class. Its ``pipe_file`` is its own and atomic; listings can be remembered."""

    protocol = "fake"
    objects: ClassVar[dict[str, tuple[bytes, datetime]]]
    lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, secret: str = "", **options: Any) -> None:
        super().__init__(**options)
        if secret == "wrong":
            raise ValueError(f"the secret {secret} is wrong")

    def _see_bucket(self, path: str) -> None:
        if not any(key.partition("/")[0] == path.partition("/")[0] for key in list(self.objects)):
            raise FileNotFoundError(path)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        self._see_bucket(path)
        with self.lock:
            if mode == "create" and path in self.objects:
                raise FileExistsError(path)
            self.objects[path] = (bytes(value), datetime.now(timezone.utc))

    def _told(self, path: str) -> dict[str, Any]:
        body, created = self.objects[path]
        return {"name": path, "size": len(body), "type": "file", "last_modified": created}

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        self._see_bucket(path)
        if path in self.objects:
            return self._told(path)
        if any(key.startswith(f"{path}/") for key in list(self.objects)):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = path.rstrip("/")
        self._see_bucket(path)
        if path in self.dircache:
            return list(self.dircache[path])
        names = {key[len(path) + 1 :].partition("/") for key in list(self.objects) if key.startswith(f"{path}/")}
        below = sorted({f"{path}/{name}" for name, _, _ in names})
        if not below:
            raise FileNotFoundError(path)
        self.dircache[path] = [self.info(each) for each in below]
        return [self.info(each) for each in below]

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        self._see_bucket(path)
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path][0][start:end]

    def rm_file(self, path: str) -> None:
        self._see_bucket(path)
        if self.objects.pop(path, None) is None:
            raise FileNotFoundError(path)


class FakeSFTP(LocalFileSystem):
    """SFTP as OpenSSH answers: its rename links, so it fails where the name is taken, and says no more than "Failure"."""

    protocol = "fake"

    def __init__(self, host: str) -> None:
        super().__init__()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).removeprefix("fake://host").rstrip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        return {"host": "host"}

    @property
    def ftp(self) -> Any:
        return SimpleNamespace(rename=self._rename)

    def _rename(self, source: str, target: str) -> None:
        try:
            os.link(source, target)
        except FileExistsError:
            raise OSError("Failure") from None
        os.unlink(source)


FakeSFTP.__module__ = "fsspec.implementations.sftp"  # by which the driver knows it

Register = Callable[..., type[Any]]


@pytest.fixture(name="register")
def a_registration(monkeypatch: pytest.MonkeyPatch) -> Register:
    """Makes a variant of a filesystem known to fsspec as ``fake``, with a bucket of its own, for one test."""

    def register(kind: type[Any] = Buckets, **members: Any) -> type[Any]:
        objects = {"b/.keep": (b"", datetime.now(timezone.utc))}
        variant = type(kind.__name__, (kind,), {"objects": objects, "__module__": kind.__module__, **members})
        monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "fake", variant)
        return variant

    return register


@pytest.fixture(name="open_fake")
def an_opener() -> Iterator[Open]:
    """Opens the store of the registered filesystem; pauses take no time."""
    opened: list[ObjectTranscriptStore] = []

    def open_it(url: str = "fsspec+fake://b/p", **options: Any) -> ObjectTranscriptStore:
        store = open_store(url, **{"clock": FakeClock(), "max_attempts": 4, **options})
        opened.append(store)
        return store

    yield open_it
    for store in opened:
        store.close()
