"""Whatever optional module is missing, for whatever scheme or command: the error names the extra that brings it."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import fsspec
import pytest

import transcript_backends
from transcript_backends import MissingExtraError, TranscriptStoreError, open_store, registry
from transcript_backends.drivers import engines
from transcript_backends.extras import needed_by

PACKAGE = Path(transcript_backends.__file__).parent
CLOUDS = [scheme for scheme, opens in registry._BUILT_IN.items() if opens not in (registry._local, registry._memory)]
MODULES = {registry._s3: "s3", registry._gcs: "gcs", registry._azure: "azure", registry._fsspec: "fsspec"}
OPTIONS = {
    "https": ("https://account.blob.core.windows.net/con/p", {"account_key": "aw=="}),
    "s3": ("s3://bucket/p", {"access_key_id": "A", "secret_access_key": "S"}),
    "gcs": ("gs://bucket/p", {"anon": True}),
    "azure": ("az://con@account/p", {"account_key": "aw=="}),
}


def imports_of(module: str, seen: set[str] | None = None) -> set[str]:
    """The roots of the optional modules that a driver, and each driver that it imports, imports when it is loaded."""
    seen = set() if seen is None else seen
    seen.add(module)
    found: set[str] = set()
    for node in ast.parse((PACKAGE / f"{module}.py").read_text()).body:
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
            if node.module == "transcript_backends.drivers":
                names = [f"{node.module}.{each.name}" for each in node.names]
        for name in names:
            inner = name.removeprefix("transcript_backends.").replace(".", "/")
            if name.startswith("transcript_backends.drivers.") and inner not in seen:
                found |= imports_of(inner, seen)
            elif not name.startswith("transcript_backends"):
                found.add(name.partition(".")[0])
    return found - sys.stdlib_module_names


@cache
def brought_by(extra: str) -> set[str]:
    """The modules that an extra of this package brings, with all that it needs, by their roots."""
    dists: set[str] = set()

    def add(name: str) -> None:
        name = re.sub(r"[-_.]+", "-", name).lower()
        if name in dists:
            return
        dists.add(name)
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            return
        for each in needs:
            if "extra ==" not in each:
                add(re.match(r"[\w.-]+", each)[0])

    for each in importlib.metadata.requires("transcript-backends") or []:
        if f"extra == '{extra}'" in each.replace('"', "'"):
            add(re.match(r"[\w.-]+", each)[0])
    owners = importlib.metadata.packages_distributions()
    return {module for module, owned in owners.items() if {re.sub(r"[-_.]+", "-", each).lower() for each in owned} & dists}


def block(monkeypatch: pytest.MonkeyPatch, root: str) -> None:
    """Make a module unavailable, and forget our drivers, which have imported it."""
    for name in list(sys.modules):
        if name == root or name.startswith(f"{root}."):
            monkeypatch.setitem(sys.modules, name, None)
        elif name.startswith("transcript_backends.drivers.") and not name.endswith((".driver", ".engines")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, root, None)


CASES = [
    (scheme, MODULES[registry._BUILT_IN[scheme]], root)
    for scheme in CLOUDS
    for root in sorted(imports_of(f"drivers/{MODULES[registry._BUILT_IN[scheme]]}"))
]


def test_there_is_something_to_miss() -> None:
    assert {"requests", "urllib3", "azure"} <= {root for scheme, _, root in CASES if scheme == "az"}
    assert {"boto3", "botocore"} <= {root for scheme, _, root in CASES if scheme == "s3"}
    assert {"google", "requests"} <= {root for scheme, _, root in CASES if scheme == "gs"}


@pytest.mark.parametrize(("scheme", "extra", "root"), CASES)
def test_a_scheme_without_a_module_names_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, scheme: str, extra: str, root: str
) -> None:
    url, options = OPTIONS[scheme if scheme == "https" else extra]
    block(monkeypatch, root)
    with pytest.raises(MissingExtraError, match=re.escape(f"pip install 'transcript-backends[{extra}]'")) as caught:
        open_store(re.sub(r"^[a-z0-9]+", scheme, url), **options)
    assert root in brought_by(extra)
    assert caught.value.name


@pytest.mark.parametrize("root", sorted(imports_of("drivers/fsspec")))
def test_fsspec_s_schemes_name_theirs(monkeypatch: pytest.MonkeyPatch, root: str) -> None:
    block(monkeypatch, root)
    for url in ("fsspec+memory://x/p", "fsspec+s3://x/p"):
        with pytest.raises(MissingExtraError, match=r"pip install 'transcript-backends\[fsspec\]'"):
            open_store(url)
    with pytest.raises(TranscriptStoreError, match=r"fsspec may serve it, and is not installed: .*\[fsspec\]"):
        open_store("webhdfs://x/p")


@pytest.mark.parametrize("name", ["s3", "gcs", "azure"])
def test_obstore_that_is_missing_or_damaged_is_named_where_it_was_asked_for_and_else_done_without(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    url, options = OPTIONS[name]
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    options = {**options, "endpoint_url": "http://127.0.0.1:1"} if name == "gcs" else options
    with pytest.raises(MissingExtraError, match=rf"pip install 'transcript-backends\[{name},fast\]'"):
        open_store(url, engine="obstore", **options)
    with open_store(url, **options) as store:
        assert "Obstore" not in type(store._container.driver).__name__
    assert not engines._is_installed()


def test_a_module_that_is_too_old_is_told_from_one_that_is_missing() -> None:
    wanted = r"too old, or damaged.*pip install 'transcript-backends\[s3\]'"
    with pytest.raises(MissingExtraError, match=wanted), needed_by("this store", "s3", "boto3"):
        from boto3 import nothing_of_this_name  # noqa: F401


def test_a_module_of_ours_that_is_missing_is_a_bug() -> None:
    with pytest.raises(ModuleNotFoundError) as caught, needed_by("this store", "s3", "boto3"):
        importlib.import_module("transcript_backends.nothing")
    assert not isinstance(caught.value, TranscriptStoreError)


@pytest.mark.parametrize("name", ["S3TranscriptStore", "GCSTranscriptStore", "AzureTranscriptStore"])
def test_stores_of_ready_clients_name_it_too(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    block(monkeypatch, "botocore" if name.startswith("S3") else "requests")
    with pytest.raises(MissingExtraError, match=rf"{name} needs .*pip install 'transcript-backends\["):
        getattr(transcript_backends, name)(object(), "bucket")


class Lazy(fsspec.AbstractFileSystem):
    """Imports what it needs when it is made, or used."""

    protocol = "lazy"
    when = ""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        if self.when == "made":
            raise ModuleNotFoundError("No module named 'their_sdk'", name="their_sdk")

    def ls(self, path: str, detail: bool = True, **more: object) -> list[object]:
        raise ModuleNotFoundError("No module named 'their_sdk'", name="their_sdk")


@pytest.mark.parametrize("when", ["made", "used"])
def test_a_filesystem_that_misses_a_package_late_is_no_bug(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    monkeypatch.setattr(Lazy, "when", when)
    fsspec.register_implementation("lazy", Lazy, clobber=True)
    with pytest.raises(MissingExtraError, match=r"Lazy needs a package that is not installed: .*their_sdk"):
        list(open_store("fsspec+lazy://x/p").list_refs())


def test_a_backend_of_another_package_that_misses_a_module_is_no_bug_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def opens(url: object, settings: object) -> object:
        raise ModuleNotFoundError("No module named 'their_sdk'", name="their_sdk")

    monkeypatch.setitem(registry._BUILT_IN, "theirs", lambda: registry.Backend(opens))
    with pytest.raises(MissingExtraError, match=r"theirs://x can't be opened: No module named 'their_sdk'; install what"):
        open_store("theirs://x")


def test_the_suites_name_what_they_need() -> None:
    code = "import sys; sys.modules['pytest'] = None; import transcript_backends.testing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingExtraError: transcript_backends.testing needs pytest" in done.stderr


FACES = ["aio", "hopping", "state.aio", "events.aio"]


def test_the_asynchronous_faces_name_theirs() -> None:
    code = f"""if True:
        import importlib, sys
        sys.modules["anyio"] = None
        for name in {FACES!r}:
            try:
                importlib.import_module(f"transcript_backends.{{name}}")
            except ImportError as error:
                print(type(error).__name__, error)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("pip install 'transcript-backends[aio]'") == len(FACES)
    assert done.stdout.count("MissingExtraError") == len(FACES)
