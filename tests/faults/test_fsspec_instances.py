"""Instances of fsspec's filesystems: one caller at a time, anew after a fork or a failure, and no secret told."""

from __future__ import annotations

import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
from faults.fsspec_fakes import Buckets, Open, Register, a_registration, an_opener  # noqa: F401 - fixtures
from faults.setups import REF

from transcript_backends import InvalidURLError, ObjectTranscriptStore, open_store
from transcript_backends.container import Container
from transcript_backends.drivers.fsspec import as_set_up

LINE = b'{"n":0}\n'


def test_no_instance_has_two_callers_at_a_time_and_few_are_made(register: Register, open_fake: Open) -> None:
    made, at_once, overlaps = [], set(), []

    def __init__(self: Any) -> None:
        Buckets.__init__(self)
        made.append(self)

    def cat_file(self: Any, path: str, **more: Any) -> bytes:
        if id(self) in at_once:
            overlaps.append(path)
        at_once.add(id(self))
        barrier.wait(timeout=30)
        try:
            return Buckets.cat_file(self, path, **more)
        finally:
            at_once.discard(id(self))

    register(__init__=__init__, cat_file=cat_file)
    store = open_fake()
    key = store.append_segment(REF, 0, 0, "w", LINE)
    for _ in range(3):
        barrier = threading.Barrier(8)
        with ThreadPoolExecutor(8) as pool:
            streams = list(pool.map(lambda _: store.read_segment(key), range(8)))
        assert {stream.read() for stream in streams} == {LINE}
    assert overlaps == []
    assert len(made) == 8


def test_an_instance_is_never_one_that_fsspec_gave_to_somebody_else(register: Register, open_fake: Open) -> None:
    made = []

    def __init__(self: Any) -> None:
        Buckets.__init__(self)
        made.append(self)

    register(__init__=__init__)
    theirs = fsspec.filesystem("fake")
    open_fake().append_segment(REF, 0, 0, "w", LINE)
    assert made[0] is theirs
    assert len(made) == 2
    assert fsspec.filesystem("fake") is theirs
    assert theirs.dircache.use_listings_cache
    assert not made[1].dircache.use_listings_cache


@pytest.mark.parametrize(("error", "expected"), [(ConnectionResetError, 2), (FileNotFoundError, 1), (EOFError, 2)])
def test_an_instance_is_given_up_after_a_failure_but_not_after_an_answer(
    register: Register, open_fake: Open, error: type[Exception], expected: int
) -> None:
    made, failed = [], []

    def __init__(self: Any) -> None:
        Buckets.__init__(self)
        made.append(self)

    def ls(self: Any, path: str, **more: Any) -> Any:
        if not failed:
            failed.append(path)
            raise error
        return Buckets.ls(self, path, **more)

    register(__init__=__init__, ls=ls)
    store = open_fake()
    store.append_segment(REF, 0, 0, "w", LINE)
    store.list_segments(REF)
    assert len(store.list_segments(REF)) == 1
    assert len(made) == expected


def in_a_child(work: Any) -> str:
    """What ``work`` gives in a forked child."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writes, str(work()).encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as told:
        text = told.read()
    os.waitpid(child, 0)
    return text


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_makes_its_own(register: Register, open_fake: Open) -> None:
    used = []

    def ls(self: Any, path: str, **more: Any) -> Any:
        used.append(id(self) in parents)
        return Buckets.ls(self, path, **more)

    parents: list[int] = []
    register(ls=ls)
    store = open_fake()
    store.append_segment(REF, 0, 0, "w", LINE)
    parents += [id(each) for each in store._container.driver._instances._idle]
    assert len(parents) == 1
    keep = list(store._container.driver._instances._idle)
    store.list_segments(REF)
    assert all(used)
    used.clear()
    assert in_a_child(lambda: (len(store.list_segments(REF)), any(used))) == "(1, False)"
    assert keep


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_forked_while_the_memory_is_in_use_does_not_wait_for_ever() -> None:
    from transcript_backends.drivers import fsspec_instances

    store = open_store("fsspec+memory://forked/p")
    store.append_segment(REF, 0, 0, "w", LINE)
    with fsspec_instances._in_memory.lock:
        assert in_a_child(lambda: len(store.list_segments(REF))) == "1"
    store.close()


# --- options ----------------------------------------------------------------------------------------------------------


def test_options_reach_the_filesystem(register: Register, open_fake: Open) -> None:
    got = []

    def __init__(self: Any, **options: Any) -> None:
        Buckets.__init__(self)
        got.append(options)

    register(__init__=__init__)
    open_fake(storage_options={"colour": "red", "skip_instance_cache": False}).append_segment(REF, 0, 0, "w", LINE)
    assert got == [{"colour": "red"}]


@pytest.mark.parametrize("options", ["key=value", [("key", "value")], {1: 2}])
def test_options_are_a_dict(register: Register, open_fake: Open, options: Any) -> None:
    register()
    with pytest.raises(InvalidURLError, match="storage_options must be a dict"):
        open_fake(storage_options=options)


@pytest.mark.parametrize("query", ["?storage_options=x", "?key=c4n4ry", "?host=x", "?secret=c4n4ry", "?port=22"])
def test_no_option_of_a_filesystem_is_taken_from_the_url(register: Register, open_fake: Open, query: str) -> None:
    register()
    with pytest.raises(InvalidURLError) as refused:
        open_fake(f"fsspec+fake://b/p{query}")
    assert "c4n4ry" not in str(refused.value)


@pytest.mark.parametrize("options", [{"secret": "wrong"}, {"secret": "c4n4ry", "unknown": "c4n4ry"}])
def test_options_a_filesystem_refuses_are_named_without_their_values(
    register: Register, open_fake: Open, options: dict[str, str]
) -> None:
    def __init__(self: Any, secret: str) -> None:
        Buckets.__init__(self, secret)

    register(__init__=__init__)
    store = open_fake(storage_options=options)
    with pytest.raises(
        InvalidURLError, match=f"Buckets can't be made with these storage_options .{', '.join(options)}.;"
    ) as told:
        store.list_segments(REF)
    assert "c4n4ry" not in str(told.value)
    assert "the secret" not in str(told.value)


def test_a_store_with_options_refuses_to_be_pickled_and_tells_none_of_them(register: Register, open_fake: Open) -> None:
    register()
    store = open_fake(storage_options={"secret": "c4n4ry"})
    assert "c4n4ry" not in f"{store} {store!r} {store._container.driver!r}"
    with pytest.raises(TypeError, match="can't be pickled") as refused:
        pickle.dumps(store)
    assert "c4n4ry" not in str(refused.value)


def test_a_store_without_options_is_the_same_place_after_pickling(tmp_path: Path) -> None:
    with open_store(f"fsspec+file://{tmp_path}/store") as store:
        key = store.append_segment(REF, 0, 0, "w", LINE)
        with pickle.loads(pickle.dumps(store)) as again:
            assert [segment.key for segment in again.list_segments(REF)] == [key]


def test_memory_is_fsspecs_own_and_not_ours() -> None:
    with open_store("fsspec+memory://theirs/p") as store, open_store("memory://theirs/p") as ours:
        key = store.append_segment(REF, 0, 0, "w", LINE)
        assert fsspec.filesystem("memory").cat_file(f"/theirs/{key}") == LINE
        assert ours.list_segments(REF) == []
    with pytest.raises(TypeError, match="can't be pickled"):
        pickle.dumps(store)


# --- set up by a program ----------------------------------------------------------------------------------------------


def test_a_filesystem_that_a_program_has_set_up_is_made_again_with_the_same_options(register: Register) -> None:
    got = []

    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        Buckets.__init__(self)
        got.append((arguments, options))

    theirs = register(__init__=__init__)("red", size=3, asynchronous=False)
    with ObjectTranscriptStore(Container(as_set_up(theirs, "fake://b")), "p/") as store:
        assert str(store) == "fsspec+fake://b/p"
        store.append_segment(REF, 0, 0, "w", LINE)
        assert len(store.list_segments(REF)) == 1
    assert got == [(("red",), {"size": 3, "asynchronous": False}), (("red",), {"size": 3})]


def test_a_filesystem_in_memory_that_is_its_own_is_refused() -> None:
    theirs = fsspec.filesystem("memory", global_store=False, skip_instance_cache=True)
    with pytest.raises(InvalidURLError, match="leave global_store out"):
        as_set_up(theirs, "/b")
