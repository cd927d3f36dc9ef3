"""From a URL to a store: which backend serves a scheme, ours or another package's, and what is missing where none does."""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from transcript_backends import urls
from transcript_backends.container import Container, RetryPolicy
from transcript_backends.drivers import engines
from transcript_backends.drivers.driver import ObjectStore
from transcript_backends.errors import AccessDeniedError, InvalidURLError, MissingExtraError, TranscriptStoreError
from transcript_backends.extras import is_ours, needed_by
from transcript_backends.object_store import ObjectTranscriptStore
from transcript_backends.urls import Setting, StoreURL

ENTRY_POINT_GROUP = "transcript_backends.backends"
URL_VARIABLE = "TRANSCRIPT_STORE_URL"

COMMON_SETTINGS = (
    Setting("ids", choices=("escaped", "raw")),
    Setting("conditional_writes", choices=("on", "off")),
    Setting("max_attempts", "int"),
    Setting("retry_deadline", "seconds"),
    Setting("hedge", "bool"),
    Setting("clock", "object"),
)


class Backend(NamedTuple):
    """What serves a URL scheme. Another package registers one under the entry-point group `ENTRY_POINT_GROUP`, by scheme.

    Attributes:
        open: makes the driver from a parsed URL and its settings by canonical name.
        settings: what it takes besides the common settings.
        shared: whether another process that opens the same URL finds the same objects.
        engine: says which of several clients serves a URL and its settings, and why; None where there is only one.
        around: returns what the environment and the files of the cloud's own tools say of common settings; these come last.
    """

    open: Callable[[StoreURL, Mapping[str, Any]], ObjectStore]
    settings: tuple[Setting, ...] = ()
    shared: bool = True
    engine: Callable[[StoreURL, Mapping[str, Any]], str] | None = None
    around: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None


def _local() -> Backend:
    from transcript_backends.drivers.local import LocalObjectStore

    return Backend(lambda url, settings: LocalObjectStore(url.container))


def _memory() -> Backend:
    from transcript_backends.drivers import memory

    return Backend(lambda url, settings: memory.named(url.container), shared=False)


def _s3() -> Backend:
    s3 = _import_extra("transcript_backends.drivers.s3", extra="s3", package="boto3")
    return _with_engines(s3, engines.S3)._replace(around=s3.around)


def _gcs() -> Backend:
    gcs = _import_extra("transcript_backends.drivers.gcs", extra="gcs", package="google-cloud-storage")
    return _with_engines(gcs, engines.GCS)


def _azure() -> Backend:
    azure = _import_extra("transcript_backends.drivers.azure", extra="azure", package="azure-storage-blob")
    return _with_engines(azure, engines.AZURE)


def _with_engines(sdk: Any, cloud: engines.Cloud) -> Backend:
    def engine(url: StoreURL, settings: Mapping[str, Any]) -> str:
        choice = engines.choose(cloud, url, settings, os.environ)
        return f"{choice.engine}, since {choice.reason}"

    return Backend(engines.opener(cloud, sdk.open_url, os.environ), (*sdk.SETTINGS, engines.ENGINE), engine=engine)


def _fsspec(scheme: str) -> Backend:
    driver = _fsspec_driver()
    return Backend(driver.open_url, driver.SETTINGS, shared=driver.is_shared(scheme))


def _fsspec_schemes() -> tuple[list[str], str]:
    """Its schemes; none, and how to install it, where it is not there."""
    try:
        return list(_fsspec_driver().protocols()), ""
    except MissingExtraError as error:
        return [], f"; fsspec may serve it, and is not installed: {str(error).rpartition(': ')[2]}"


def _fsspec_driver() -> Any:
    return _import_extra("transcript_backends.drivers.fsspec", extra="fsspec", package="fsspec")


_BUILT_IN: dict[str, Callable[[], Backend]] = {
    "s3": _s3,
    "s3a": _s3,
    "gs": _gcs,
    "gcs": _gcs,
    "az": _azure,
    "azure": _azure,
    "abfs": _azure,
    "abfss": _azure,
    "https": _azure,
    "file": _local,
    "local": _local,
    "memory": _memory,
}


def _import_extra(module: str, *, extra: str, package: str) -> Any:
    with needed_by("this store", extra, package):
        return importlib.import_module(module)


def find_backend(scheme: str) -> Backend:
    """The backend of a scheme: ours, so that no package can replace them by accident; then other packages'; then fsspec's.

    Raises:
        InvalidURLError: nobody serves it.
        MissingExtraError: it needs a package that is not installed.
    """
    if scheme in _BUILT_IN:
        return _BUILT_IN[scheme]()
    if scheme.startswith(urls.FSSPEC):
        return _fsspec(scheme)
    from importlib.metadata import entry_points

    found = {each.name: each for each in entry_points(group=ENTRY_POINT_GROUP)}
    if scheme not in found:
        fsspecs, remark = _fsspec_schemes()
        if scheme in fsspecs:
            return _fsspec(scheme)
        known = sorted(_BUILT_IN.keys() | found.keys())
        near = difflib.get_close_matches(scheme, sorted({*known, *fsspecs})) or known
        raise InvalidURLError(
            f"no backend serves {scheme}://; did you mean {', '.join(f'{each}://' for each in near)}? Packages add schemes "
            f"through the entry-point group {ENTRY_POINT_GROUP}{remark}"
        )
    try:
        backend = found[scheme].load()
    except Exception as error:
        if isinstance(error, TranscriptStoreError):
            raise
        kind = MissingExtraError if isinstance(error, ImportError) else TranscriptStoreError
        raise kind(
            f"the entry point {found[scheme].value!r} for {scheme}:// can't be loaded: {type(error).__name__}: {error}; "
            "reinstall that package with all that it needs, or tell its authors"
        ) from error
    if not isinstance(backend, Backend):
        raise TranscriptStoreError(
            f"the entry point {found[scheme].value!r} for {scheme}:// is a {type(backend).__name__}, not a Backend; "
            "tell the authors of that package"
        )
    return backend


def open_store(url: str | None = None, /, **options: Any) -> ObjectTranscriptStore:
    """Open the store a URL names. Nothing is contacted or made: object stores are on first use, a directory by the first write.

    Args:
        url: see docs/urls.md. None: the environment variable ``TRANSCRIPT_STORE_URL``, else a directory in the user's data
            directory.
        **options: settings, by the names of the URL's parameters; they win over the URL. Secrets and ready objects can be
            given here only.

    Raises:
        InvalidURLError: the URL or a setting is wrong.
        MissingExtraError: the backend's package is not installed.
        AccessDeniedError: a directory can't be looked at, or is none.
    """
    url = url if url is not None else _configured_url()
    parsed, backend, settings = _understood(url, options)
    try:
        driver = backend.open(parsed, settings)
    except ImportError as error:
        if isinstance(error, TranscriptStoreError) or is_ours(error):
            raise
        raise MissingExtraError(
            f"{parsed} can't be opened: {error}; install what the backend of {parsed.scheme}:// needs", name=error.name
        ) from error
    except OSError as error:
        if isinstance(error, TranscriptStoreError):
            raise
        raise AccessDeniedError(
            f"can't open {parsed}: {error.strerror or error}; check the path and its permissions"
        ) from error
    if settings.get("hedge"):
        from transcript_backends.drivers.hedging import HedgedObjectStore

        driver = HedgedObjectStore(driver)
    retry = RetryPolicy()
    container = Container(
        driver,
        retry=RetryPolicy(
            max_attempts=settings.get("max_attempts", retry.max_attempts),
            deadline=settings.get("retry_deadline", retry.deadline),
        ),
        clock=settings.get("clock"),
        conditional_writes=settings.get("conditional_writes", "on"),
    )
    private = {each.name for each in (*COMMON_SETTINGS, *backend.settings) if each.secret or each.kind == "object"}
    portable = backend.shared and not private & settings.keys()
    reopen = (_open_again, (url, options)) if portable else None
    return ObjectTranscriptStore(container, parsed.root, ids=settings.get("ids", "escaped"), reopen=reopen)


def engine_of(url: str | None = None, /, **options: Any) -> str:
    """Which client serves such a store, and why; empty where there is only one. Nothing is opened.

    Args:
        url: as for `open_store`.
        **options: as for `open_store`.
    """
    parsed, backend, settings = _understood(url if url is not None else _configured_url(), options)
    return backend.engine(parsed, settings) if backend.engine else ""


def _configured_url() -> str:
    return os.environ.get(URL_VARIABLE) or default_url()


def _understood(url: str, options: Mapping[str, Any]) -> tuple[StoreURL, Backend, dict[str, Any]]:
    parsed = urls.parse(url)
    backend = find_backend(parsed.scheme)
    settings = urls.settings(parsed, options, (*COMMON_SETTINGS, *backend.settings), os.environ)
    return parsed, backend, {**backend.around(settings), **settings} if backend.around else settings


def _open_again(url: str, options: Mapping[str, Any]) -> ObjectTranscriptStore:
    return open_store(url, **options)


def default_url() -> str:
    """The store used where nothing is configured: a directory of the user's own."""
    import platformdirs

    return str(urls.parse(os.path.join(platformdirs.user_data_dir("transcript-backends", appauthor=False), "store")))
