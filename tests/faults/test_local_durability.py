"""Appends to a directory survive crashes, full disks and odd file systems; nothing outside of it is touched."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from faults.file_systems import failing
from faults.setups import NAME, REF, FakeClock

from transcript_backends import (
    AccessDeniedError,
    ContainerNotFoundError,
    ObjectTranscriptStore,
    SegmentConflictError,
    SegmentNotFoundError,
    TranscriptRef,
    TranscriptStoreError,
    copy_transcript,
    open_store,
)
from transcript_backends.drivers import local
from transcript_backends.drivers.driver import IfMatch

LINE = b'{"a":1}\n'
OTHER = b'{"a":2}\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def store(root: Path) -> ObjectTranscriptStore:
    root.mkdir()
    return open_store(f"file://{root}", clock=FakeClock())


@pytest.fixture
def events(root: Path) -> Path:
    return root / "acme/coder/s1/events"


def append(store: ObjectTranscriptStore, line: bytes = LINE) -> str:
    return store.append_segment(REF, 0, 0, "w", line)


def files(root: Path) -> dict[str, bytes]:
    return {str(each.relative_to(root)): each.read_bytes() for each in root.rglob("*") if each.is_file()}


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    """Run a program in a new interpreter; `REF`, `os` and `store`, opened at the first argument, are at hand."""
    head = (
        "import os, sys, signal\nfrom transcript_backends import TranscriptRef, open_store\n"
        "REF = TranscriptRef('acme', 'coder', 's1')\nstore = open_store('file://' + sys.argv[1])\n"
    )
    return subprocess.run(
        [sys.executable, "-c", head + program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.getcwd()}, capture_output=True, timeout=60,
    )  # fmt: skip


# --- order on the disk ------------------------------------------------------------------------------------------------


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The calls that matter to durability, in order, with the paths they work on."""
    calls: list[tuple[str, str]] = []
    paths: dict[int, str] = {}
    real: dict[str, Any] = {name: getattr(os, name) for name in ("open", "mkdir", "write", "fsync", "link", "unlink")}

    def record(name: str, path: Callable[..., str]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = real[name](*args, **kwargs)
            if name == "open":
                paths[result] = os.fspath(args[0])
                if os.path.isdir(args[0]):
                    return result
            calls.append((name, path(*args)))
            return result

        return call

    for name in ("open", "mkdir", "unlink"):
        monkeypatch.setattr(os, name, record(name, lambda path, *rest: os.path.basename(path)))
    monkeypatch.setattr(os, "link", record("link", lambda source, target: os.path.basename(target)))
    for name in ("fsync", "write"):
        monkeypatch.setattr(os, name, record(name, lambda descriptor, *rest: os.path.basename(paths[descriptor])))
    return calls


def test_one_append_flushes_the_file_before_it_has_a_name_and_the_directory_after(
    root: Path, trace: list[tuple[str, str]]
) -> None:
    store = open_store(f"file://{root}")
    append(store)
    temporary = next(name for call, name in trace if call == "write")
    assert temporary.startswith(f".{NAME}.tmp-{os.getpid()}-")
    assert trace == [
        ("fsync", root.parent.parent.name), ("mkdir", "root"), ("fsync", root.parent.name),
        ("mkdir", "acme"), ("fsync", "root"),
        ("mkdir", "coder"), ("fsync", "acme"),
        ("mkdir", "s1"), ("fsync", "coder"),
        ("mkdir", "events"), ("fsync", "s1"),
        ("open", temporary), ("write", temporary), ("fsync", temporary),
        ("link", NAME), ("unlink", temporary), ("fsync", "events"),
    ]  # fmt: skip
    trace.clear()
    store.append_segment(REF, 1, 1, "w", LINE)
    assert [call for call, _ in trace] == ["open", "write", "fsync", "link", "unlink", "fsync"]


def test_finding_the_same_content_there_flushes_its_name_before_saying_so(
    store: ObjectTranscriptStore, trace: list[tuple[str, str]]
) -> None:
    append(store)
    trace.clear()
    append(store)  # whoever stored it may have died before the flush
    assert ("fsync", "events") in trace


def test_deletions_are_flushed_once_for_each_directory(store: ObjectTranscriptStore, trace: list[tuple[str, str]]) -> None:
    keys = [append(store), store.append_segment(REF, 1, 1, "w", LINE)]
    trace.clear()
    assert store._container.delete(keys) == {}
    assert [call for call, _ in trace] == ["unlink", "unlink", "fsync"]
    assert trace[-1] == ("fsync", "events")


def test_a_temporary_file_lies_beside_its_target_wherever_tmpdir_is(
    store: ObjectTranscriptStore, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/dev/shm")
    linked: list[tuple[str, str]] = []
    real = os.link
    monkeypatch.setattr(os, "link", lambda source, target: (linked.append((source, target)), real(source, target)))
    append(store)
    ((source, target),) = linked
    assert os.path.dirname(source) == os.path.dirname(target) == str(events)


# --- crashes and full disks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", ["write", "fsync", "link", "utime"])
def test_a_process_killed_before_the_link_leaves_no_name_and_the_retry_succeeds(root: Path, events: Path, hook: str) -> None:
    append(open_store(f"file://{root}"))
    program = f"os.{hook} = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)\n"
    killed = run(program + "store.append_segment(REF, 1, 1, 'w', b'{}')", root)
    assert killed.returncode == -signal.SIGKILL
    assert [each.name for each in events.iterdir() if not each.name.startswith(".")] == [NAME]
    store = open_store(f"file://{root}")
    assert [each.seq_start for each in store.list_segments(REF)] == [0]
    store.append_segment(REF, 1, 1, "w", b"{}")
    assert [each.line for each in store.records(REF)] == [LINE.rstrip(), b"{}"]
    if hook != "fsync":  # which dies flushing a directory already
        assert any(each.name.startswith(".") for each in events.iterdir())


def test_a_process_killed_after_the_link_has_stored_all_and_the_retry_succeeds(root: Path, events: Path) -> None:
    program = "os.unlink = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)\n"
    assert run(program + "store.append_segment(REF, 0, 0, 'w', b'{\"a\":1}')", root).returncode == -signal.SIGKILL
    store = open_store(f"file://{root}")
    assert (events / NAME).read_bytes() == LINE
    append(store)
    with pytest.raises(SegmentConflictError):
        append(store, OTHER)
    assert len(store.list_segments(REF)) == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", ["write", "fsync", "utime"])
def test_a_disk_error_while_writing_leaves_nothing_and_is_raised(
    store: ObjectTranscriptStore, root: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    store.append_segment(REF, 5, 5, "w", LINE)
    before = files(root)
    with monkeypatch.context() as broken:
        broken.setattr(os, call, failing(code))
        with pytest.raises(TranscriptStoreError, match=os.strerror(code)) as caught:
            append(store)
    assert isinstance(caught.value.__cause__, OSError)
    assert files(root) == before
    append(store)


def test_a_short_write_is_gone_on_with(store: ObjectTranscriptStore, events: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data[:1])))
    append(store)
    assert (events / NAME).read_bytes() == LINE


def test_temporaries_of_a_crash_are_swept_a_day_later_and_not_before(store: ObjectTranscriptStore, events: Path) -> None:
    append(store)
    old, young = events / ".a.jsonl.tmp-1-aa", events / ".b.jsonl.tmp-1-bb"
    foreign = events / ".hidden"
    for file, hours in ((old, 25), (young, 23), (foreign, 1000)):
        file.write_bytes(b"half")
        os.utime(file, (time.time() - hours * 3600,) * 2)
    open_store(f"{store}").append_segment(REF, 1, 1, "w", LINE)
    assert not old.exists()
    assert young.exists()
    assert foreign.exists()


# --- odd file systems -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EIO, errno.EEXIST, errno.EPERM, errno.ETIMEDOUT])
def test_a_link_that_reports_an_error_although_it_was_made_is_success(
    store: ObjectTranscriptStore, root: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real = os.link

    def link(source: str, target: str) -> None:
        real(source, target)
        raise OSError(code, "lost answer")

    monkeypatch.setattr(os, "link", link)
    assert store._container.create(f"acme/coder/s1/events/{NAME}", LINE)  # by this very call
    assert list(files(root).values()) == [LINE]


def test_a_read_only_directory_is_an_access_error(
    store: ObjectTranscriptStore, monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    append(store)
    for code in (errno.EACCES, errno.EROFS):
        with monkeypatch.context() as broken:
            broken.setattr(os, "open", failing(code))
            with pytest.raises(AccessDeniedError, match=os.strerror(code)):
                store.append_segment(REF, 1, 1, "w", LINE)
            with pytest.raises(AccessDeniedError):
                store.read_segment(f"acme/coder/s1/events/{NAME}")
    with monkeypatch.context() as broken:
        broken.setattr(os, "scandir", failing(errno.EACCES))
        with pytest.raises(AccessDeniedError):
            store.list_segments(REF)
    with monkeypatch.context() as broken:
        broken.setattr(os, "mkdir", failing(errno.EACCES))
        with pytest.raises(AccessDeniedError, match="root-other: Permission denied"):
            append(open_store(f"file://{root}-other"))


# --- what is not as it should be --------------------------------------------------------------------------------------


def test_a_directory_removed_under_a_running_store_is_made_again(store: ObjectTranscriptStore, root: Path) -> None:
    for gone in (root / "acme/coder/s1", root / "acme", root):
        append(store)
        shutil.rmtree(gone)
        append(store)
        assert len(store.list_segments(REF)) == 1


READS: dict[str, Callable[[ObjectTranscriptStore], object]] = {
    "list_segments": lambda store: store.list_segments(REF),
    "next_seq": lambda store: store.next_seq(REF),
    "records": lambda store: list(store.records(REF)),
    "tail": lambda store: store.tail(REF, 3),
    "follow": lambda store: list(store.follow(REF, stop_when_idle=0, min_interval=0.001)),
    "list_refs": lambda store: list(store.list_refs()),
    "verify": lambda store: store.verify(REF, repair=True).problems,
    "compact": lambda store: store.compact(REF).segments_before,
    "delete": lambda store: store.delete(REF).deleted,
    "copy": lambda store: copy_transcript(store, open_store("memory://copies"), REF).segments,
    "dry copy": lambda store: copy_transcript(open_store("memory://empty"), store, REF, dry_run=True).segments,
}


@pytest.mark.parametrize("scheme", ["file", "fsspec+file"])
@pytest.mark.parametrize("name", READS)
def test_nothing_that_only_reads_makes_a_directory_and_the_first_write_does(tmp_path: Path, scheme: str, name: str) -> None:
    root = tmp_path / "not/there"
    with open_store(f"{scheme}://{root}") as store:
        assert not READS[name](store)
        with pytest.raises(SegmentNotFoundError):
            store.read_segment(f"acme/coder/s1/events/{NAME}")
        with pytest.raises(ContainerNotFoundError, match="does not exist"):
            store.glance()
        assert os.listdir(tmp_path) == []
        append(store)
        assert store.glance().is_there
        assert READS["list_segments"](store)


def test_a_directory_that_was_written_to_is_missing_when_it_is_gone(tmp_path: Path) -> None:
    with open_store(f"file://{tmp_path}/new") as store:
        append(store)
        shutil.rmtree(tmp_path / "new")
        with pytest.raises(ContainerNotFoundError):
            store.list_segments(REF)
        with pytest.raises(ContainerNotFoundError):
            list(store.list_refs())


def test_a_directory_that_another_thread_makes_meanwhile_is_not_missing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = local.LocalObjectStore(str(root))
    real = os.path.isdir

    def isdir(path: str) -> bool:
        found = real(path)
        monkeypatch.setattr(os.path, "isdir", real)
        driver.put("a/b", LINE, mode="create", metadata={})
        return found

    monkeypatch.setattr(os.path, "isdir", isdir)
    driver.list_page("")
    monkeypatch.setattr(os.path, "isdir", real)
    driver.put("a/c", LINE, mode="create", metadata={})
    assert [each.key for each in driver.list_page("").objects][-1] == "a/c"


def test_a_root_that_is_a_file_or_below_one_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in ("file", "file/below"):
        with pytest.raises(AccessDeniedError, match="Not a directory"):
            open_store(f"file://{tmp_path}/{path}")


def test_a_store_whose_directory_is_gone_is_not_empty_but_missing(store: ObjectTranscriptStore, root: Path) -> None:
    root.rmdir()
    calls: list[Callable[[], object]] = [
        lambda: store.list_segments(REF), lambda: store.next_seq(REF), lambda: list(store.list_refs()),
        lambda: store.delete(REF), lambda: store.read_segment(f"acme/coder/s1/events/{NAME}"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(ContainerNotFoundError, match="create the bucket, container or directory"):
            call()
    assert not root.exists()


@pytest.mark.parametrize("at", ["acme", "acme/coder", "acme/coder/s1", "acme/coder/s1/events"])
def test_a_directory_that_is_a_link_is_refused_and_nothing_behind_it_is_touched(
    store: ObjectTranscriptStore, root: Path, tmp_path: Path, at: str
) -> None:
    outside = tmp_path / "outside"
    behind = outside / f"acme/coder/s1/events/{NAME}"
    behind.parent.mkdir(parents=True)
    behind.write_bytes(OTHER)
    link = root / at
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside / at)
    key = f"acme/coder/s1/events/{NAME}"
    with pytest.raises(AccessDeniedError, match="symbolic link"):
        append(store)
    with pytest.raises(AccessDeniedError, match="symbolic link"):
        store.read_segment(key)
    for ask in (store.list_segments, store.delete, store.next_seq):
        with pytest.raises(AccessDeniedError, match="symbolic link"):
            ask(REF)
    assert list(store.list_refs()) == []
    driver = store._container.driver
    assert isinstance(driver.delete_many([key])[key], local._Refused)
    assert files(outside) == {key: OTHER}


@pytest.mark.parametrize("key", ["../outside", "a/../../outside", "a//b", "./a", "a/.", "", "/etc/passwd"])
def test_a_key_that_leads_out_of_the_directory_is_refused(store: ObjectTranscriptStore, tmp_path: Path, key: str) -> None:
    (tmp_path / "outside").write_bytes(LINE)
    driver = store._container.driver
    calls: list[Callable[[], object]] = [
        lambda: driver.put(key, OTHER, mode="overwrite", metadata={}), lambda: driver.get(key), lambda: driver.head(key),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(local._Refused):
            call()
    assert isinstance(driver.delete_many([key])[key], local._Refused)
    assert (tmp_path / "outside").read_bytes() == LINE


@pytest.mark.parametrize("ids", [("..", "..", ".."), (".", "/", "a/../b"), ("../../etc", "/etc", "..\\x")])
def test_ids_that_look_like_paths_stay_inside(store: ObjectTranscriptStore, root: Path, ids: tuple[str, str, str]) -> None:
    before = set(os.listdir(root.parent))
    ref = TranscriptRef(*ids)
    store.append_segment(ref, 0, 0, "w", LINE)
    assert set(os.listdir(root.parent)) == before
    assert list(store.list_refs()) == [ref]


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/etc/hostname"), Path.mkdir], ids=["link", "directory"])
def test_something_odd_under_a_segments_name_is_an_error_and_no_segment(
    store: ObjectTranscriptStore, events: Path, make: Callable[[Path], object]
) -> None:
    store.append_segment(REF, 1, 1, "w", LINE)
    make(events / NAME)
    before = os.lstat(events / NAME)
    with pytest.raises(AccessDeniedError, match="not a regular file"):
        append(store)
    with pytest.raises((AccessDeniedError, SegmentNotFoundError)):
        store.read_segment(f"acme/coder/s1/events/{NAME}")
    assert [each.seq_start for each in store.list_segments(REF)] == [1]
    assert stat.S_IFMT(os.lstat(events / NAME).st_mode) == stat.S_IFMT(before.st_mode)


@pytest.mark.parametrize("at", ["acme/coder/s1", "acme/coder/s1/events"])
def test_a_file_where_a_directory_should_be_is_a_clear_error_and_never_a_part(
    store: ObjectTranscriptStore, root: Path, at: str
) -> None:
    (root / at).parent.mkdir(parents=True)
    (root / at).write_bytes(LINE)
    assert store.list_segments(REF) == []
    assert store.delete(REF).deleted == 0
    with pytest.raises(TranscriptStoreError, match="Not a directory"):
        append(store)
    with pytest.raises(TranscriptStoreError, match="Not a directory"):
        store.read_segment(f"acme/coder/s1/events/{NAME}")
    assert files(root) == {at: LINE}


# --- several processes ------------------------------------------------------------------------------------------------


def test_processes_that_replace_one_key_by_its_version_lose_no_update(root: Path) -> None:
    open_store(f"file://{root}")._container.driver.put("a/counter", b"0", mode="create", metadata={})
    program = """
from transcript_backends.drivers.driver import IfMatch, Meaning
driver = store._container.driver
done = 0
while done < 50:
    info, stream, _ = driver.get("a/counter")
    count = int(stream.read(100))
    stream.close()
    try:
        driver.put("a/counter", str(count + 1).encode(), mode=IfMatch(info.version), metadata={})
        done += 1
    except Exception as error:
        if driver.classify(error).meaning is not Meaning.PRECONDITION:
            raise
"""
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda _: run(program, root), range(2)))
    assert [(each.returncode, each.stderr) for each in outcomes] == [(0, b"")] * 2
    assert (root / "a/counter").read_bytes() == b"100"
    assert os.listdir(root / "a") == ["counter"]


def overwrite(driver: local.LocalObjectStore) -> None:
    driver.put("a/k", b"3", mode="overwrite", metadata={})


def replace(driver: local.LocalObjectStore) -> None:
    driver.put("a/k", b"3", mode=IfMatch(driver.head("a/k").info.version), metadata={})


def delete(driver: local.LocalObjectStore) -> None:
    for error in driver.delete_many(["a/k"]).values():
        raise error


@pytest.mark.parametrize("change", [overwrite, replace, delete])
def test_nothing_comes_between_the_look_at_a_version_and_its_replacement(
    root: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[local.LocalObjectStore], None]
) -> None:
    driver = local.LocalObjectStore(str(root))
    version = driver.put("a/k", b"1", mode="create", metadata={})
    move, lock = os.replace, fcntl.flock

    def just_before(source: str, target: str) -> None:
        monkeypatch.setattr(os, "replace", move)
        monkeypatch.setattr(fcntl, "flock", lambda descriptor, how: lock(descriptor, how | fcntl.LOCK_NB))
        with pytest.raises(BlockingIOError):  # it would wait
            change(driver)
        move(source, target)

    monkeypatch.setattr(os, "replace", just_before)
    driver.put("a/k", b"2", mode=IfMatch(version), metadata={})
    assert files(root) == {"a/k": b"2"}
    change(driver)
    assert files(root) == ({} if change is delete else {"a/k": b"3"})


def test_processes_that_create_one_key_have_one_winner(root: Path, events: Path) -> None:
    program = """
from transcript_backends import SegmentConflictError
won = 0
for number in range(100):
    try:
        store.append_segment(REF, number, number, 'w', b'{"by":"%d"}' % os.getpid())
        won += 1
    except SegmentConflictError:
        pass
print(won)
"""
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda _: run(program, root), range(2)))
    assert [each.stderr for each in outcomes] == [b"", b""]
    assert sum(int(each.stdout) for each in outcomes) == 100
    assert len(os.listdir(events)) == 100
