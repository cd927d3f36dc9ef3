from __future__ import annotations

import os
import pickle
import re
import sys

import pytest
from unit.setups import REF, ServerClock, append, make

from transcript_backends import (
    AccessDeniedError,
    InvalidRefError,
    InvalidSegmentError,
    InvalidURLError,
    MissingExtraError,
    RuntimeContext,
    TranscriptRef,
    TranscriptStoreError,
    open_store,
)
from transcript_backends.keys import escape

# --- which store ------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_url(monkeypatch):
    monkeypatch.delenv("TRANSCRIPT_STORE_URL", raising=False)


def test_without_anything_the_store_is_in_the_users_data_directory(monkeypatch, tmp_path, no_url):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "my data"))
    with open_store() as store:
        append(store, 0, 0)
        assert str(store) == f"file://{tmp_path}/my data/transcript-backends/store"
    assert len(list((tmp_path / "my data" / "transcript-backends" / "store").rglob("*-w.jsonl"))) == 1


def test_an_empty_variable_is_none(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("TRANSCRIPT_STORE_URL", "")
    assert str(open_store()) == f"file://{tmp_path}/transcript-backends/store"


def test_the_environment_names_the_store_and_an_argument_wins(monkeypatch, tmp_path):
    monkeypatch.setenv("TRANSCRIPT_STORE_URL", "memory://from-environment/p")
    assert str(open_store()) == "memory://from-environment/p"
    assert str(open_store(None)) == "memory://from-environment/p"
    assert str(open_store("memory://other")) == "memory://other"


def test_a_bare_path_is_a_directory_taken_literally(tmp_path):
    with open_store(f"{tmp_path}/a%20b?") as store:
        append(store, 0, 0)
    assert (tmp_path / "a%20b?" / "acme").is_dir()


def test_a_directory_that_cant_be_made_is_refused_with_its_url(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(AccessDeniedError, match=f"can't open file://{tmp_path}/file/x: .*; check the path") as caught:
        open_store(f"file://{tmp_path}/file/x")
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("s3n://b", "no backend serves s3n://; did you mean s3://, s3a://?"),
        (
            "zzz://b",
            "no backend serves zzz://; did you mean abfs://, abfss://, az://, azure://, file://, gcs://, gs://, https://, ",
        ),
        ("wbdav://b", "no backend serves wbdav://; did you mean webdav://?"),
        ("file:///tmp/x?region=eu", "unknown setting 'region' in 'file:///tmp/x'; did you mean"),
    ],
)
def test_what_nobody_serves_is_refused_with_what_there_is(url, why):
    with pytest.raises(InvalidURLError, match=re.escape(why)):
        open_store(url)


def test_a_named_store_in_memory_is_one_for_the_process():
    one, other = open_store("memory://shared-name/p"), open_store("memory://shared-name")
    key = append(one, 0, 0)
    assert key.startswith("p/acme/")
    with other.read_segment(f"{append(other, 1, 1)}") as stream:
        assert stream.read()
    assert [each.key for each in open_store("memory://shared-name/p").list_segments(REF)] == [key]
    assert open_store("memory://another-name/p").list_segments(REF) == []


def test_an_unnamed_store_in_memory_is_always_a_new_one():
    append(open_store("memory://"), 0, 0)
    assert open_store("memory://").list_segments(REF) == []


def test_retries_follow_the_settings():
    retry = open_store("memory://?max_attempts=3", retry_deadline=2.5)._container.retry
    assert (retry.max_attempts, retry.deadline) == (3, 2.5)


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    for module in ("s3", "s3_client"):
        monkeypatch.delitem(sys.modules, f"transcript_backends.drivers.{module}", raising=False)
    with pytest.raises(MissingExtraError, match=re.escape("pip install 'transcript-backends[s3]'")) as caught:
        open_store("s3://bucket/p")
    assert caught.value.name == "boto3"
    assert isinstance(caught.value, ImportError)


# --- fsspec's filesystems ---------------------------------------------------------------------------------------------


def test_a_filesystem_of_fsspec_is_served_under_its_own_name_and_with_the_prefix(tmp_path):
    with open_store("fsspec+memory://registry/p") as store:
        key = append(store, 0, 0)
        assert str(store) == "fsspec+memory://registry/p"
        assert key.startswith("p/acme/")
    with open_store(f"fsspec+file://{tmp_path}/store/x", conditional_writes="on") as store:
        append(store, 0, 0)
        assert str(store) == f"fsspec+file://{tmp_path}/store/x"
        assert (tmp_path / "store" / "x" / "acme").is_dir()
    with open_store("webhdfs://namenode/p") as store:  # nothing is contacted yet
        assert str(store) == "webhdfs://namenode/p"


def test_views_of_a_directory_of_fsspec_begin_where_those_of_ours_do(tmp_path):
    store = open_store(f"fsspec+file://{tmp_path}/data/{{tenant}}")
    append(store.with_runtime_context(RuntimeContext(tenant="a/b")), 0, 0)
    assert os.listdir(tmp_path / "data") == ["a=2Fb"]


@pytest.mark.parametrize("scheme", ["memory", "file", "s3"])
def test_fsspec_takes_the_place_of_no_scheme_of_ours(scheme, tmp_path):
    location = f"{scheme}://{tmp_path}" if scheme == "file" else f"{scheme}://registry"
    assert "fsspec" not in type(open_store(location)._container.driver).__name__.lower()


def test_a_package_comes_before_fsspec(tmp_path, monkeypatch):
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[transcript_backends.backends]\nwebhdfs = their_webhdfs:backend\n")
    (tmp_path / "their_webhdfs.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    with open_store("webhdfs://box/p?colour=red") as store:
        assert str(store) == "memory://theirs-box/p"
    sys.modules.pop("their_webhdfs")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("fsspec+zzz://b", "fsspec has no filesystem 'zzz'; it has abfs, "),
        ("fsspec+://b", "fsspec has no filesystem ''; it has abfs, "),
        ("fsspec+s3", "is not a store URL"),
        ("fsspec+webhdfs:///p", "names no bucket or container; write fsspec+webhdfs://name/prefix"),
        ("fsspec+file://host/p", "names a host, 'host': a directory is written with three slashes"),
        ("fsspec+file://", "names no directory"),
        ("fsspec+sftp://user:c4n4ry@host/p", "holds user information"),
        ("fsspec+memory://b?storage_options=x", "unknown setting 'storage_options'"),
        ("fsspec+memory://b?region=x", "unknown setting 'region'"),
    ],
)
def test_a_url_of_fsspec_that_cant_be_used_says_why(url, why):
    with pytest.raises(InvalidURLError, match=re.escape(why)) as caught:
        open_store(url)
    assert "c4n4ry" not in str(caught.value)


@pytest.mark.parametrize("url", ["fsspec+sftp://host/p", "sftp://host/p"])
def test_a_filesystem_whose_package_is_missing_is_named_with_what_it_needs(url, monkeypatch):
    monkeypatch.setitem(sys.modules, "paramiko", None)
    with pytest.raises(MissingExtraError, match=r"fsspec's 'sftp' needs a package that is not installed: .*paramiko"):
        open_store(url)


def without_fsspec(monkeypatch):
    for name in [
        each for each in sys.modules if each == "fsspec" or each.startswith(("fsspec.", "transcript_backends.drivers.fsspec"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fsspec", None)


def test_without_fsspec_its_schemes_name_the_command_that_installs_it(monkeypatch):
    without_fsspec(monkeypatch)
    with pytest.raises(MissingExtraError, match=re.escape("pip install 'transcript-backends[fsspec]'")) as caught:
        open_store("fsspec+memory://b")
    assert caught.value.name == "fsspec"


def test_without_fsspec_a_scheme_nobody_knows_is_still_named_with_the_near_ones(monkeypatch):
    without_fsspec(monkeypatch)
    with pytest.raises(InvalidURLError, match=re.escape("no backend serves s3n://; did you mean s3://, s3a://?")):
        open_store("s3n://b")


# --- backends of other packages ---------------------------------------------------------------------------------------

MODULE = """
from transcript_backends import Backend
from transcript_backends.drivers.memory import named
from transcript_backends.urls import Setting

OPENED = []

def open_it(url, settings):
    OPENED.append((url.container, dict(settings)))
    return named("theirs-" + url.container)

backend = Backend(open_it, (Setting("colour", choices=("red", "blue")), Setting("licence_key", secret=True)))
no_backend = {"open": open_it}
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Another package that is installed beside ours."""
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[transcript_backends.backends]\nours-too = their_backend:backend\nbroken = their_backend:no_backend\n"
        "gone = their_backend:nothing\nlost = their_missing_module:backend\ns3 = their_backend:backend\n"
    )
    (tmp_path / "their_backend.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("their_backend", None)


def test_a_scheme_of_another_package_is_served(package):
    with open_store("ours-too://box/p?colour=red", licence_key="k", max_attempts=2) as store:
        assert append(store, 0, 0).startswith("p/acme/")
        assert len(list(store.records(REF))) == 1
    assert sys.modules["their_backend"].OPENED == [("box", {"colour": "red", "licence_key": "k", "max_attempts": 2})]


def test_its_settings_are_judged_like_ours(package):
    with pytest.raises(InvalidURLError, match=r"colour .* must be one of red, blue"):
        open_store("ours-too://box?colour=green")
    with pytest.raises(InvalidURLError, match=r"'licence_key' .* looks like a secret"):
        open_store("ours-too://box?licence_key=k")


def test_no_package_takes_the_place_of_a_scheme_of_ours(package):
    assert str(open_store("s3://bucket")) == "s3://bucket"
    assert "their_backend" not in sys.modules


@pytest.mark.parametrize(
    ("scheme", "why"),
    [
        ("broken", "'their_backend:no_backend' for broken:// is a dict, not a Backend; tell the authors"),
        ("gone", "'their_backend:nothing' for gone:// can't be loaded: AttributeError"),
        ("lost", "'their_missing_module:backend' for lost:// can't be loaded: ModuleNotFoundError"),
    ],
)
def test_a_broken_entry_point_is_named(package, scheme, why):
    with pytest.raises(TranscriptStoreError, match=re.escape(why)):
        open_store(f"{scheme}://box")


def test_a_near_miss_names_the_scheme_of_the_other_package(package):
    with pytest.raises(InvalidURLError, match="did you mean ours-too://"):
        open_store("ours-two://box")


# --- pickling ---------------------------------------------------------------------------------------------------------


def test_a_store_from_a_url_is_the_same_place_after_pickling(tmp_path):
    store = open_store(f"file://{tmp_path}/store", max_attempts=3)
    key = append(store, 0, 0)
    again = pickle.loads(pickle.dumps(store))
    assert str(again) == str(store)
    assert [each.key for each in again.list_segments(REF)] == [key]
    assert again._container.retry == store._container.retry


def test_a_store_from_the_environment_stays_where_it_was_after_pickling(monkeypatch, tmp_path):
    monkeypatch.setenv("TRANSCRIPT_STORE_URL", f"file://{tmp_path}/store")
    pickled = pickle.dumps(open_store())
    monkeypatch.setenv("TRANSCRIPT_STORE_URL", "memory://elsewhere")
    assert str(pickle.loads(pickled)) == f"file://{tmp_path}/store"


def test_a_view_is_the_same_view_after_pickling(tmp_path):
    rc = RuntimeContext(tenant="t/1", attributes={"region": "eu"})
    view = open_store(f"file://{tmp_path}/{{tenant}}/{{region}}").with_runtime_context(rc)
    key = append(view, 0, 0)
    again = pickle.loads(pickle.dumps(view))
    assert [each.key for each in again.list_segments(REF)] == [key]


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("memory://shared-within-the-process", {}),
        ("memory://", {}),
        ("memory://m", {"clock": ServerClock()}),
        ("s3://b", {"secret_access_key": "c4n4ry", "access_key_id": "c4n4ry"}),
        ("s3://b?session_token_env=CANARY", {}),
    ],
)
def test_a_store_with_an_object_or_a_secret_refuses_to_be_pickled(monkeypatch, url, options):
    monkeypatch.setenv("CANARY", "c4n4ry")
    with pytest.raises(TypeError, match=r"can't be pickled.*open the store in the other process") as caught:
        pickle.dumps(open_store(url, **options))
    assert "c4n4ry" not in str(caught.value)


def test_a_store_from_a_ready_driver_refuses_to_be_pickled():
    with pytest.raises(TypeError, match="can't be pickled"):
        pickle.dumps(make().store)


# --- views ------------------------------------------------------------------------------------------------------------

TEMPLATE = "memory://views/{tenant}/{user_id}/x"
OPERATIONS = {
    "append_segment": lambda store: append(store, 0, 0),
    "list_segments": lambda store: store.list_segments(REF),
    "read_segment": lambda store: store.read_segment("a/b/c/d/e/events/0-0-w.jsonl"),
    "records": lambda store: store.records(REF),
    "next_seq": lambda store: store.next_seq(REF),
    "list_refs": lambda store: store.list_refs(),
    "compact": lambda store: store.compact(REF),
    "delete": lambda store: store.delete(REF),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_store_with_unfilled_placeholders_refuses_every_operation(operation):
    with pytest.raises(InvalidRefError, match=r"has placeholders to fill \(tenant, user_id\): use store.with_runtime_context"):
        OPERATIONS[operation](open_store(TEMPLATE))


@pytest.mark.parametrize(
    "rc", [RuntimeContext(), RuntimeContext(tenant="t"), RuntimeContext(tenant="t", attributes={"user_id": "u"})]
)
def test_a_context_without_a_value_is_refused_by_its_name(rc):
    with pytest.raises(InvalidRefError, match=r"the runtime context has no .*user_id, which memory://views/.* needs; set it"):
        open_store(TEMPLATE).with_runtime_context(rc)


@pytest.mark.parametrize("value", ["", " ", 5, "\ud800", "x" * 256])
def test_a_value_that_can_be_no_segment_is_refused(value):
    with pytest.raises(InvalidRefError):
        open_store(TEMPLATE).with_runtime_context(RuntimeContext(tenant="t", user_id=value))


@pytest.mark.parametrize("value", ["..", "../u2", "a/b", "{tenant}", "日本", "=2F", "."])
def test_a_value_stays_inside_its_segment(value):
    view = open_store(TEMPLATE).with_runtime_context(RuntimeContext(tenant="t", user_id=value))
    assert append(view, 0, 0) == f"t/{escape(value)}/x/acme/coder/s1/events/{0:019d}-{0:019d}-w.jsonl"
    assert view.placeholders == []
    assert view.with_runtime_context(RuntimeContext()) is view
    assert list(view.list_refs()) == [REF]


def test_a_store_without_placeholders_is_its_own_view():
    store = make("p/").store
    assert store.with_runtime_context(RuntimeContext(tenant="t")) is store


def test_views_do_not_see_each_others_transcripts():
    setup = make("{user_id}/")
    one, other = (setup.store.with_runtime_context(RuntimeContext(user_id=each)) for each in ("u", "u-1"))
    key = append(one, 0, 0)
    assert other.list_segments(REF) == list(other.records(REF)) == list(other.list_refs()) == []
    assert other.delete(REF).deleted == 0
    assert [each.key for each in one.list_segments(REF)] == [key]
    for stranger in (key, "u-1/../" + key, "u-1/" + key, key.replace("u/", "/", 1)):
        with pytest.raises(
            InvalidSegmentError, match="is no key of a segment in memory://m/u-1; keys come from append_segment"
        ):
            other.read_segment(stranger)


def test_a_view_shares_the_stores_connections_and_its_end():
    store = open_store("memory://view-close/{tenant}")
    view = store.with_runtime_context(RuntimeContext(tenant="t"))
    store.close()
    with pytest.raises(ValueError, match="closed"):
        view.list_segments(TranscriptRef("a", "b", "c"))


def test_the_directory_of_views_is_the_part_before_the_first_placeholder(tmp_path):
    store = open_store(f"file://{tmp_path}/data/{{tenant}}/x")
    append(store.with_runtime_context(RuntimeContext(tenant="a/b")), 0, 0)
    assert os.listdir(tmp_path / "data") == ["a=2Fb"]
    assert os.listdir(tmp_path / "data" / "a=2Fb") == ["x"]
