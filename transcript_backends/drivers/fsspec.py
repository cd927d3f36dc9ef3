"""Any filesystem fsspec knows, by the interface that all of them share.

fsspec's ``pipe_file(mode="create")`` promises little: where a filesystem does not say otherwise it looks and then writes, so
of two creators both may win, and a file may show its name before its bytes. It is used only where a filesystem brings its
own (s3fs, gcsfs, adlfs and the like), which must then prove itself. Over SFTP a temporary file is written beside the target
and renamed, which fails where the name is taken; a directory of this machine is left to `LocalObjectStore`. Other
filesystems can't create, and say so. What was tried: docs/backends/fsspec.md.

Metadata is not kept, and no version can be replaced conditionally. Directories are never removed, since another process may
be about to use them.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any

import fsspec  # type: ignore[import-untyped]
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from transcript_backends.drivers import fsspec_answers
from transcript_backends.drivers.driver import (
    Body,
    Capabilities,
    Failure,
    Head,
    IfMatch,
    Meaning,
    ObjectInfo,
    Page,
    PutMode,
    Unread,
)
from transcript_backends.drivers.fsspec_answers import TEMPORARY, RefusedError, name_in, object_info
from transcript_backends.drivers.fsspec_instances import Instances
from transcript_backends.drivers.local import LocalObjectStore
from transcript_backends.drivers.walks import See, Walks, walk
from transcript_backends.errors import InvalidURLError, MissingExtraError
from transcript_backends.urls import DIRECTORY_SCHEMES, FSSPEC, Setting, StoreURL, looks_secret

SETTINGS = (Setting("storage_options", "object"),)

_BLOCK_BYTES = 4 * 1024 * 1024


class FsspecObjectStore:
    """Files below one path of a filesystem.

    Args:
        filesystem: its class.
        options: what instances are made with.
        path: where the keys begin. A bucket or a directory there must exist; empty for the filesystem's root.
        location: shown in messages.
        arguments: what instances are made with, by position.
    """

    details = ""

    def __init__(
        self, filesystem: type[Any], options: Mapping[str, Any], path: str, location: str, arguments: Sequence[Any] = ()
    ) -> None:
        self.location = location
        self._kind = filesystem.__name__
        self._path = path.rstrip("/")
        self._implied = issubclass(filesystem, MemoryFileSystem)  # directories are there with the first file in them
        self._directory = LocalObjectStore(path) if filesystem is LocalFileSystem else None
        is_here = self._implied or self._directory is not None
        self._sftp = filesystem.__module__ == "fsspec.implementations.sftp"  # which imports a package of its own
        self._renames = not filesystem.async_impl and filesystem.mv is not fsspec.AbstractFileSystem.mv
        pipe_file = filesystem._pipe_file if filesystem.async_impl else filesystem.pipe_file
        own = not pipe_file.__module__.startswith("fsspec.")
        self._creates = own or self._sftp or is_here
        self._instances = Instances(filesystem, options, arguments)
        self._walks = Walks(partial(walk, self._look_into))
        self.capabilities = Capabilities(create_only="yes" if is_here else "probe", one_pass=False, unfit_in_names=r"\A\.")
        self.identity = f"{location} {_public(options)} {arguments[:1]}" if options or arguments else location

    # --- write --------------------------------------------------------------------------------------------------------

    def put(self, key: str, body: bytes, *, mode: PutMode, metadata: Mapping[str, str]) -> str:
        if isinstance(mode, IfMatch):
            raise RefusedError(Meaning.UNSUPPORTED, "fsspec has no way to replace just one version of a file")
        if mode == "create" and not self._creates:
            raise RefusedError(Meaning.UNSUPPORTED, f"{self._kind} can't create a file only where it is absent")
        if self._directory is not None:
            return self._directory.put(key, body, mode=mode, metadata=metadata)
        path = self._at(key)
        with self._asking() as fs:
            if mode == "create" and self._sftp:
                _write_beside(fs, path, body, _rename_new)
            elif mode == "create":
                _pipe_new(fs, path, body)
            elif self._renames:
                _write_beside(fs, path, body, _move)
            else:
                fs.pipe_file(path, body)
            try:
                return object_info(key, fs.info(path)).version
            except FileNotFoundError:
                return "gone"  # merged or deleted since

    def delete_many(self, keys: Sequence[str]) -> Mapping[str, Exception]:
        if self._directory is not None:
            return self._directory.delete_many(keys)
        failed: dict[str, Exception] = {}
        for key in keys:
            try:
                with self._asking() as fs:
                    fs.rm_file(self._at(key))
            except FileNotFoundError:
                continue
            except Exception as error:
                failed[key] = error
        return failed

    # --- read ---------------------------------------------------------------------------------------------------------

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> Body:
        if self._directory is not None:
            return self._directory.get(key, start=start, end=end)
        info = self.head(key).info
        stop = info.size if end is None else min(end, info.size)
        return Body(info, _Blocks(self, info, start, stop), {})

    def head(self, key: str) -> Head:
        if self._directory is not None:
            return self._directory.head(key)
        with self._asking() as fs:
            return Head(object_info(key, fs.info(self._at(key))), {})

    def _read_block(self, key: str, start: int, end: int, *, is_last: bool) -> bytes:
        """The bytes of a range, all of them; where they are the file's last, one more is asked for: it may have grown."""
        with self._asking() as fs:
            block: bytes = fs.cat_file(self._at(key), start=start, end=end + is_last)
        if len(block) != end - start:
            raise RefusedError(Meaning.TRY_AGAIN, f"{len(block)} bytes came in place of {end - start}")
        return block

    def list_page(self, prefix: str, *, start_after: str = "", token: str | None = None) -> Page:
        if self._directory is not None:
            return self._directory.list_page(prefix, start_after=start_after, token=token)
        return self._walks.page(prefix, start_after, token, datetime.now(timezone.utc) if self._implied else None)

    def _look_into(self, prefix: str) -> tuple[list[str], See]:
        """As `walks.LookInto`."""
        directory = self._at(prefix).rstrip("/")
        try:
            with self._asking() as fs:
                entries = {name_in(directory, entry): entry for entry in fs.ls(directory or "/", detail=True)}
        except (FileNotFoundError, NotADirectoryError):
            entries = {}

        def see(name: str) -> ObjectInfo | Unread | None:
            entry = entries[name]
            if entry["type"] == "file":
                return object_info(prefix + name, entry)
            return self._linked_directory(prefix + name)

        return [name for name in entries if name], see

    def _linked_directory(self, key: str) -> Unread | None:
        with self._asking() as fs:
            if not fs.isdir(self._at(key)):
                return None
        detail = f"{key!r} is a link to a directory, which is not followed: move the directory here"
        return Unread(f"{key}/", RefusedError(Meaning.DENIED, detail))

    # --- the rest -----------------------------------------------------------------------------------------------------

    def _at(self, key: str) -> str:
        return f"{self._path}/{key}"

    @contextlib.contextmanager
    def _asking(self) -> Iterator[Any]:
        """An instance to ask; where it finds nothing, the bucket or directory itself may be missing."""
        with self._instances.lend() as fs:
            try:
                yield fs
            except Exception as error:
                failure = self.classify(error)
                if failure and failure.meaning is Meaning.NOT_FOUND and self._path and not self._implied:
                    self._see_container(fs, error)
                raise

    def _see_container(self, fs: Any, error: Exception) -> None:
        try:
            fs.info(self._path)
        except FileNotFoundError:
            raise RefusedError(Meaning.CONTAINER_NOT_FOUND, f"{self._path!r} does not exist") from error
        except Exception:  # it can't be looked at: what was missing is all that is known
            return

    def classify(self, error: Exception) -> Failure | None:
        told = self._directory.classify(error) if self._directory is not None and not isinstance(error, RefusedError) else None
        return told or fsspec_answers.classify(error)

    @property
    def remarks(self) -> list[str]:
        """As `LocalObjectStore.remarks`."""
        return self._directory.remarks if self._directory is not None else []

    @property
    def is_there(self) -> bool:
        """As `LocalObjectStore.is_there`; of another filesystem a listing tells."""
        return self._directory is None or self._directory.is_there

    def renew(self) -> bool:
        self._instances.renew()
        return True

    def close(self) -> None:
        self._instances.renew()  # fsspec has no close: an instance ends its connections when nobody holds it any more


# --- files ------------------------------------------------------------------------------------------------------------


def _pipe_new(fs: Any, path: str, body: bytes) -> None:
    try:
        fs.pipe_file(path, body, mode="create")
    except (TypeError, NotImplementedError) as error:
        raise RefusedError(Meaning.UNSUPPORTED, f"{type(fs).__name__} refuses mode='create'") from error


def _write_beside(fs: Any, path: str, body: bytes, give_name: Callable[[Any, str, str], None]) -> None:
    """Write a temporary file in the same directory, whole, and give it its name."""
    directory, _, name = path.rpartition("/")
    temporary = f"{directory}/.{name[:150]}{TEMPORARY}{os.urandom(8).hex()}"
    try:
        try:
            fs.pipe_file(temporary, body)
        except FileNotFoundError:
            _make(fs, directory)
            fs.pipe_file(temporary, body)
        give_name(fs, temporary, path)
    except BaseException:
        with contextlib.suppress(Exception):
            fs.rm_file(temporary)
        raise


def _make(fs: Any, directory: str) -> None:
    """Make a directory and its parents, while others may do the same."""
    if directory and not fs.isdir(directory):
        _make(fs, directory.rpartition("/")[0])
        try:
            fs.mkdir(directory, create_parents=False)
        except OSError:
            if not fs.isdir(directory):
                raise


def _rename_new(fs: Any, source: str, target: str) -> None:
    """SFTP's own rename, which fails where the name is taken (draft-ietf-secsh-filexfer-02, 6.5); fsspec's ``mv`` replaces."""
    try:
        fs.ftp.rename(source, target)
    except OSError as error:
        if not error.errno and fs.exists(target):  # all that the server says is "failure"
            raise FileExistsError(errno.EEXIST, "the name is taken") from error
        raise


def _move(fs: Any, source: str, target: str) -> None:
    fs.mv(source, target)


class _Blocks:
    """The bytes of a file from one offset up to another, fetched in blocks: no connection is held between two reads."""

    def __init__(self, driver: FsspecObjectStore, info: ObjectInfo, start: int, stop: int) -> None:
        self._driver, self._info, self._position, self._stop = driver, info, start, stop
        self._block = io.BytesIO()
        self._fetch()

    def _fetch(self) -> None:
        end = min(self._position + _BLOCK_BYTES, self._stop)
        if end > self._position:
            block = self._driver._read_block(self._info.key, self._position, end, is_last=end == self._info.size)
            self._block = io.BytesIO(block)
            self._position = end

    def read(self, size: int, /) -> bytes:
        chunk = self._block.read(size)
        if not chunk and self._position < self._stop:
            self._fetch()
            if self._driver.head(self._info.key).info != self._info:
                raise RefusedError(Meaning.TRY_AGAIN, "the file was replaced while it was being read")
            chunk = self._block.read(size)
        return chunk

    def close(self) -> None:
        self._stop, self._block = 0, io.BytesIO()


def _public(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that are no secrets: what tells one server from another."""
    return {
        name: _public(value) if isinstance(value, Mapping) else value
        for name, value in sorted(options.items())
        if isinstance(value, (str, int, Mapping)) and not looks_secret(name)
    }


# --- from an instance -------------------------------------------------------------------------------------------------


def as_set_up(filesystem: Any, path: str) -> FsspecObjectStore:
    """A driver for a filesystem that a program has set up: instances of its own are made with the same options.

    Raises:
        InvalidURLError: the filesystem can't be made again.
    """
    if not getattr(filesystem, "global_store", True):
        raise InvalidURLError("a filesystem in memory with a store of its own can't be made again; leave global_store out")
    path = filesystem._strip_protocol(path)
    location = FSSPEC + filesystem.unstrip_protocol(path)
    return FsspecObjectStore(type(filesystem), filesystem.storage_options, path, location, filesystem.storage_args)


# --- from a URL -------------------------------------------------------------------------------------------------------


def protocols() -> list[str]:
    """What fsspec has a filesystem for, though the filesystem's own package may be missing."""
    return sorted({*fsspec.available_protocols(), *fsspec.registry})


def is_shared(scheme: str) -> bool:
    """Whether another process finds the same files."""
    return scheme.removeprefix(FSSPEC) != "memory"


def open_url(url: StoreURL, settings: Mapping[str, Any]) -> FsspecObjectStore:
    """A driver for ``fsspec+protocol://container``; nothing is contacted.

    Raises:
        InvalidURLError: fsspec has no such protocol, or ``storage_options`` is no dict.
        MissingExtraError: the filesystem's own package is not installed.
    """
    protocol = url.scheme.removeprefix(FSSPEC)
    options = settings.get("storage_options", {})
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise InvalidURLError("storage_options must be a dict of the filesystem's own options by name")
    filesystem = _filesystem(protocol)
    place = f"{protocol}://{url.container}"
    path = url.container if url.scheme in DIRECTORY_SCHEMES else filesystem._strip_protocol(place)
    return FsspecObjectStore(
        filesystem, {**filesystem._get_kwargs_from_urls(place), **options}, path, f"{url.scheme}://{url.container}"
    )


def _filesystem(protocol: str) -> type[Any]:
    if protocol not in protocols():
        raise InvalidURLError(f"fsspec has no filesystem {protocol!r}; it has {', '.join(protocols())}")
    try:
        found: type[Any] = fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        raise MissingExtraError(
            f"fsspec's {protocol!r} needs a package that is not installed: {error}", name=error.name
        ) from error
    return found
