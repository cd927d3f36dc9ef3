"""The async face: everything the other one does, on asyncio and trio, and never on the event loop's thread."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import pickle
import re
import subprocess
import sys
import threading
import time
from _thread import start_new_thread
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from unittest import mock

import anyio
import pytest
from unit.setups import REF, StreamCountingObjectStore, append, lines, make

import transcript_backends
from transcript_backends import (
    AccessDeniedError,
    BackgroundCompactor,
    CompactionPolicy,
    InvalidSegmentError,
    InvalidURLError,
    ObjectTranscriptStore,
    RuntimeContext,
    SegmentNotFoundError,
    StateStore,
    StoreClosedError,
    StoreUnavailableError,
    TranscriptRef,
    aio,
    writing,
)
from transcript_backends.aio import AsyncObjectTranscriptStore, AsyncStateStore, open_store
from transcript_backends.container import Container, RetryPolicy
from transcript_backends.drivers.driver import Meaning
from transcript_backends.drivers.wrappers import FaultyObjectStore, InjectedError, LatencyObjectStore, WrapperObjectStore
from transcript_backends.following import Follower
from transcript_backends.hopping import Threads
from transcript_backends.writing import TranscriptWriter

pytestmark = pytest.mark.anyio

AT_HAND = {"max_age": 1e6, "max_records": 10**6}  # goes out by flush alone
FULL = CompactionPolicy(full=True)
PROMPT = 5.0  # seconds in which a cancelled call must be back, though what it waits for takes longer


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture
def setup():
    return make()


@pytest.fixture
def store(setup):
    return AsyncObjectTranscriptStore(setup.store)


@dataclasses.dataclass
class Message:
    text: str


class StuckObjectStore(WrapperObjectStore):
    """Keeps requests of one kind waiting until they are let go on."""

    def __init__(self, inner, operation, times=10**9):
        super().__init__(inner)
        self._operation, self._times = operation, times
        self.let_go = threading.Event()
        self.waiting = self.most = 0

    def _around(self, operation, key, request):
        if operation == self._operation and self._times > 0:
            self._times -= 1
            self.waiting += 1
            self.most = max(self.most, self.waiting)
            assert self.let_go.wait(60)
            self.waiting -= 1
        return super()._around(operation, key, request)


def stuck(operation, times=10**9, **options):
    """A setup, its async store, and the driver that keeps requests waiting."""
    drivers = []
    setup = make(wrap=lambda inner: drivers.append(StuckObjectStore(inner, operation, times)) or drivers[0])
    return setup, AsyncObjectTranscriptStore(setup.store, **options), drivers[0]


@asynccontextmanager
async def cancelled_when(condition):
    """Cancels what is inside as soon as the condition holds, and sees that it ends at once."""
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def watch():
                await until(condition)
                scope.cancel()

            tasks.start_soon(watch)
            began = time.monotonic()
            yield
            raise AssertionError("it was not cancelled")
    assert scope.cancelled_caught
    assert time.monotonic() - began < PROMPT


async def until(condition):
    with anyio.fail_after(30):
        while not condition():
            await anyio.sleep(0.005)


@asynccontextmanager
async def never_blocked(seconds=0.5):
    """Sees that other tasks could run all the time, as far as the machine let this process run."""
    gaps, gaps_of_process = [], []
    ended = threading.Event()

    async def tick():
        last = time.monotonic()
        while True:
            await anyio.sleep(0.005)
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    def tick_beside():
        last = time.monotonic()
        while not ended.wait(0.005):
            gaps_of_process.append(time.monotonic() - last)
            last = time.monotonic()

    beside = threading.Thread(target=tick_beside)
    beside.start()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tick)
            await anyio.sleep(0.05)
            yield gaps
            tasks.cancel_scope.cancel()
    finally:
        ended.set()
        beside.join()
    assert len(gaps) > 2
    assert max(gaps) < seconds + 3 * max(gaps_of_process)


async def numbers(iteration):
    return [record.seq async for record in iteration]


# --- nothing is forgotten ---------------------------------------------------------------------------------------------

OTHERWISE = {  # what a call gives where it is not awaited, there and here
    "records": ("Generator[Record, None, None]", "AsyncIteration[Record]"),
    "list_refs": ("Iterator[TranscriptRef]", "AsyncIteration[TranscriptRef]"),
    "follow": ("Follower", "AsyncFollower"),
    "read_segment": ("BinaryIO", "Opening[AsyncSegmentStream]"),  # awaited, or entered at once
    "writer": ("TranscriptWriter", "Opening[AsyncTranscriptWriter]"),
    "open_store": ("ObjectTranscriptStore", "Opening[AsyncObjectTranscriptStore]"),
    "diagnose": ("Iterator[Check]", "AsyncIteration[Check]"),
    "with_runtime_context": ("ObjectTranscriptStore", "AsyncObjectTranscriptStore"),  # makes no request
    "compactor": ("BackgroundCompactor", "AsyncBackgroundCompactor"),  # starts a thread, and waits for nothing
}
AWAITED_UNDER = {"__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__", "__next__": "__anext__"}
NOT_HERE = {
    "ABSENT": "a value",
    "after_fork": "for the package itself",
    "check_jsonl": "makes no request, and waits for nothing",
}
ONLY_HERE = {
    "blocking": "the store underneath",
    "aclose": "what contextlib.aclosing wants",
}
MORE_PARAMETERS = {"open_store": {"threads"}}


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


def check_same(name, there, here):
    ours, theirs = inspect.signature(here), inspect.signature(there)
    expected = {
        each.name: (each.kind, each.default, each.annotation.replace("ObjectTrans", "AsyncObjectTrans"))
        for each in theirs.parameters.values()
    }
    found = {each.name: (each.kind, each.default, each.annotation) for each in ours.parameters.values()}
    more = MORE_PARAMETERS.get(name, set())
    assert found.keys() - expected.keys() == more
    assert {key: value for key, value in found.items() if key not in more} == expected
    assert list(expected) == [key for key in found if key not in more]
    if name in OTHERWISE:
        assert (theirs.return_annotation, ours.return_annotation) == OTHERWISE[name]
        assert not inspect.iscoroutinefunction(here)
    else:
        assert inspect.iscoroutinefunction(here)
        assert ours.return_annotation == theirs.return_annotation
    assert inspect.getdoc(here)


async def test_every_name_and_parameter_of_the_other_face_is_here(setup, store):
    with setup.store.writer(REF) as writer, setup.store.compactor() as compactor:
        async with store.writer(REF) as async_writer, store.compactor() as async_compactor:
            pairs = [
                (setup.store, store),
                (writer, async_writer),
                (setup.store.follow(REF), store.follow(REF)),
                (compactor, async_compactor),
                (states := StateStore(setup.store), AsyncStateStore(states)),
            ]
            for there, here in pairs:
                assert public(there) - public(here) - NOT_HERE.keys() == set()
                assert public(here) - public(there) - ONLY_HERE.keys() == set()
                for name in public(there) & public(here):
                    if callable(getattr(there, name)):
                        check_same(name, getattr(there, name), getattr(here, name))
                    else:
                        assert not inspect.isawaitable(getattr(here, name))
                for name in AWAITED_UNDER.keys() & {*dir(there)}:
                    assert hasattr(here, AWAITED_UNDER[name])
    assert {type(there) for there, _ in pairs} == FACED


def test_every_function_of_the_package_is_here():
    functions = {name for name in transcript_backends.__all__ if not inspect.isclass(getattr(transcript_backends, name))}
    assert functions - NOT_HERE.keys() == {"copy_transcript", "diagnose", "open_store"}
    for name in functions - NOT_HERE.keys():
        check_same(name, getattr(transcript_backends, name), getattr(aio, name))
        assert name in aio.__all__


FACED = {ObjectTranscriptStore, TranscriptWriter, Follower, BackgroundCompactor, StateStore}
FACES = {
    ObjectTranscriptStore: AsyncObjectTranscriptStore,
    TranscriptWriter: lambda writer: aio.AsyncTranscriptWriter(Threads(1), writer, when_full="raise", has_journal=False),
    StateStore: AsyncStateStore,
    BackgroundCompactor: lambda compactor: aio.AsyncBackgroundCompactor(Threads(1), compactor),
}
PASSED_ON = [(kind, name) for kind in FACES for name in sorted(public(kind) - NOT_HERE.keys()) if callable(getattr(kind, name))]


@pytest.mark.parametrize(("kind", "name"), PASSED_ON)
async def test_every_parameter_is_passed_on(kind, name):
    there = mock.create_autospec(kind, instance=True, ref=REF, writer_id="w")
    there_called = getattr(there, name)
    there_called.return_value = iter(()) if name in ("records", "list_refs") else mock.DEFAULT
    signature = inspect.signature(there_called)
    given = {each: getattr(mock.sentinel, each) for each in signature.parameters}
    arguments = signature.bind_partial()
    arguments.arguments.update(given)
    called = getattr(FACES[kind](there), name)(*arguments.args, **arguments.kwargs)
    if isinstance(called, aio.AsyncIteration):
        assert await numbers(called) == []
    elif inspect.isawaitable(called):
        await called
    there_called.assert_called_once()
    passed = signature.bind(*there_called.call_args.args, **there_called.call_args.kwargs)
    assert passed.arguments == given


async def test_every_parameter_of_a_copy_is_passed_on(store, monkeypatch):
    copy = mock.create_autospec(transcript_backends.copy_transcript)
    monkeypatch.setattr(transcript_backends, "copy_transcript", copy)
    other = AsyncObjectTranscriptStore(make().store)
    assert await aio.copy_transcript(store, other, REF, verify="new", dry_run=True) is copy.return_value
    copy.assert_called_once_with(store.blocking, other.blocking, REF, verify="new", dry_run=True)


def test_the_example_of_the_guide_runs(capsys):
    guide = (Path(__file__).resolve().parents[2] / "docs/async.md").read_text()
    for example in re.findall(r"^```python\n(.*?)^```", guide, re.MULTILINE | re.DOTALL):
        exec(compile(example, "docs/async.md", "exec"), {})
    assert capsys.readouterr().out == "0 user\n1 assistant\n"


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_only_this_face_needs_anyio():
    code = "import sys, transcript_backends; transcript_backends.open_store('memory://x'); print('anyio' in sys.modules)"
    assert run(code) == "False"


def test_without_anyio_it_says_what_to_install():
    code = """if True:
        import sys
        sys.modules["anyio"] = None
        try:
            import transcript_backends.aio
        except ImportError as error:
            print(type(error).__name__, error.name, error)
    """
    assert run(code) == (
        "MissingExtraError anyio transcript_backends.aio needs anyio, which is not installed: "
        "pip install 'transcript-backends[aio]'"
    )


# --- calls ------------------------------------------------------------------------------------------------------------


async def test_it_does_what_the_other_face_does(setup, store):
    key = await store.append_segment(REF, 0, 1, "w", lines(range(2)))
    await store.append_segment(REF, 2, 2, "w", lines([2]))
    assert [each.seq_end for each in await store.list_segments(REF)] == [1, 2]
    assert await store.next_seq(REF) == 3
    assert await numbers(store.records(REF, start_seq=1)) == [1, 2]
    assert await numbers(store.records(REF, reverse=True, limit=2)) == [2, 1]
    assert [record.seq for record in await store.tail(REF, 1)] == [2]
    assert [ref async for ref in store.list_refs("acme", "coder")] == [REF]
    assert (await store.estimate_compaction(REF, FULL)).segments_after == 1
    assert (await store.compact(REF, FULL)).segments_after == 1
    assert not (await store.verify(REF)).problems
    async with store.read_segment(key) as stream:
        assert await stream.read(5) + await stream.read() == lines(range(2))
    stream = await store.read_segment(key)
    assert await stream.read() == lines(range(2))
    await stream.close()
    assert (await store.delete(REF, purge=True)).deleted > 0
    assert await numbers(store.records(REF)) == []


async def test_errors_are_those_of_the_other_face(store):
    with pytest.raises(InvalidSegmentError):
        await store.append_segment(REF, 0, 0, "w", b"no JSON")
    with pytest.raises(SegmentNotFoundError):
        await store.read_segment(f"{REF.prefix}events/{0:019}-{0:019}-w.jsonl")
    with pytest.raises(ValueError, match="n must be 0 or more"):
        await store.tail(REF, -1)
    with pytest.raises(InvalidURLError):
        await open_store("nothing://here")
    with pytest.raises(ValueError, match="threads must be 1 or more"):
        await open_store("memory://", threads=0)
    await store.close()
    with pytest.raises(StoreClosedError):
        await store.next_seq(REF)
    with pytest.raises(StoreClosedError):
        await numbers(store.records(REF))


async def test_a_store_is_opened_by_its_url_and_closed_at_the_end(tmp_path):
    async with open_store(str(tmp_path / "store")) as store:
        await store.append_segment(REF, 0, 0, "w", b"{}")
    with pytest.raises(StoreClosedError):
        await store.next_seq(REF)
    store = await open_store(str(tmp_path / "store"), threads=2)
    assert await store.next_seq(REF) == 1
    assert str(store) == str(store.blocking)
    assert repr(store) == f"<AsyncObjectTranscriptStore {store}>"
    assert await pickle.loads(pickle.dumps(store)).next_seq(REF) == 1
    await store.close()


async def test_placeholders_are_filled(setup):
    store = AsyncObjectTranscriptStore(ObjectTranscriptStore(Container(setup.memory), "{tenant}/"))
    assert store.placeholders == ["tenant"]
    view = store.with_runtime_context(RuntimeContext(tenant="t"))
    assert (await view.append_segment(REF, 0, 0, "w", b"{}")).startswith("t/")
    assert view.with_runtime_context(RuntimeContext()) is view


async def test_a_transcript_is_copied(store):
    await store.append_segment(REF, 0, 0, "w", lines([0]))
    other = AsyncObjectTranscriptStore(make().store)
    assert (await aio.copy_transcript(store, other, REF, dry_run=True)).records == 1
    assert await numbers(other.records(REF)) == []
    assert (await aio.copy_transcript(store, other, REF)).records == 1
    assert await numbers(other.records(REF)) == [0]


async def test_a_store_is_diagnosed():
    assert all([check.passed async for check in aio.diagnose("memory://")])


async def test_a_compactor_works_and_is_stopped(setup, store):
    for seq in range(3):
        append(setup.store, seq, seq)
    async with store.compactor(FULL, interval=0) as compactor:
        await until(lambda: compactor.rounds > 1)
        assert compactor.running
    assert not compactor.running
    assert (compactor.totals.transcripts, compactor.errors, compactor.last_error) == (1, 0, None)
    assert await store.compactor().stop()


async def test_a_store_serves_several_event_loops_at_once(store):
    def in_a_loop_of_its_own(backend, writer_id):
        async def work():
            async with anyio.create_task_group() as tasks:
                for seq in range(60):
                    tasks.start_soon(store.append_segment, REF, seq, seq, writer_id, lines([seq]))

        anyio.run(work, backend=backend)

    async with anyio.create_task_group() as tasks:
        for backend in ("asyncio", "trio"):
            for number in range(2):
                tasks.start_soon(anyio.to_thread.run_sync, in_a_loop_of_its_own, backend, f"{backend}{number}")
    assert len(await numbers(store.records(REF))) == 240


# --- the event loop ---------------------------------------------------------------------------------------------------


async def test_the_event_loop_is_never_blocked(tmp_path):
    setup = make(wrap=lambda inner: LatencyObjectStore(inner, 0.7))
    fast = ObjectTranscriptStore(Container(setup.memory))
    refs = [TranscriptRef("t", "a", str(number)) for number in range(12)]
    for ref in refs:
        for seq in range(3):
            key = append(fast, seq, seq, ref=ref)
    store = AsyncObjectTranscriptStore(setup.store, threads=100)

    async def write(ref, **options):
        async with store.writer(ref, **options) as writer:
            for _ in range(5):
                await writer.append({"text": "x" * 100_000})
            assert writer.state.pending_records > 0
            await writer.flush()
            assert writer.state == (0, 0, None)

    async def read_some(ref):
        async for _ in store.records(ref):
            return

    async def read_bytes():
        async with store.read_segment(key) as stream:
            assert await stream.read(1)

    async def list_some():
        async for _ in store.list_refs():
            return

    async def follow(ref):
        async with store.follow(ref) as follower:
            assert (await anext(follower)).seq == 0
            assert follower.cursor

    async with never_blocked(), anyio.create_task_group() as tasks:
        tasks.start_soon(store.append_segment, refs[0], 3, 3, "w", lines([3]))
        tasks.start_soon(store.list_segments, refs[1])
        tasks.start_soon(store.compact, refs[2], FULL)
        tasks.start_soon(store.delete, refs[3])
        tasks.start_soon(store.verify, refs[4])
        tasks.start_soon(store.next_seq, refs[5])
        tasks.start_soon(store.tail, refs[5], 2)
        tasks.start_soon(store.estimate_compaction, refs[5])
        tasks.start_soon(numbers, store.records(refs[6]))
        tasks.start_soon(read_some, refs[6])
        tasks.start_soon(follow, refs[7])
        tasks.start_soon(write, refs[8])
        tasks.start_soon(functools.partial(write, refs[9], spool_dir=str(tmp_path / "spool")))
        tasks.start_soon(functools.partial(write, refs[10], max_pending_bytes=500_001, offload_bytes=10_000))
        tasks.start_soon(read_bytes)
        tasks.start_soon(list_some)
        tasks.start_soon(aio.copy_transcript, store, AsyncObjectTranscriptStore(make().store), refs[11])
    await store.close()


@pytest.mark.parametrize(
    ("entry", "may_block"),
    [
        ({"role": "user", "content": [{"type": "text", "text": "x" * 60_000}], "n": 1}, False),
        ({"role": "user", "content": [{"type": "text", "text": "x" * 70_000}], "n": 1}, True),
        ({"numbers": list(range(70_000))}, True),
        ({"names": {str(n): n for n in range(70_000)}}, True),
        (b'{"text":"%s"}' % (b"x" * 60_000), False),
        (b'{"text":"%s"}' % (b"x" * 70_000), True),
        (Message("x"), True),
    ],
)
async def test_what_takes_long_to_encode_is_encoded_in_a_thread(setup, store, monkeypatch, entry, may_block):
    found = []
    line = writing._line
    monkeypatch.setattr(writing, "_line", lambda *arguments: found.append(threading.get_ident()) or line(*arguments))
    async with store.writer(REF, offload_bytes=None) as writer:
        assert await writer.append(entry) == 0
    assert (found != [threading.get_ident()]) == may_block
    assert len(await store.tail(REF, 2)) == 1


async def test_a_slow_disk_blocks_no_event_loop(store, tmp_path, monkeypatch):
    async with never_blocked(), store.writer(REF, spool_dir=str(tmp_path), max_records=2) as writer:
        with monkeypatch.context() as patch:
            patch.setattr("transcript_backends.journal.os.fsync", lambda _: time.sleep(0.7))
            async with anyio.create_task_group() as tasks:
                for n in range(4):
                    tasks.start_soon(writer.append, {"n": n})
                await until(lambda: writer.state.pending_records)
                while writer.state.pending_records:
                    await anyio.sleep(0.01)


async def test_a_task_that_only_appends_or_reads_lets_others_run(store):
    async with never_blocked():
        async with store.writer(REF) as writer:
            for n in range(60_000):
                await writer.append({"n": n})
        assert await numbers(store.records(REF)) == list(range(60_000))


async def test_no_more_threads_are_taken_than_there_may_be():
    _, store, driver = stuck("list_page", threads=3)
    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(store.next_seq, REF)
        await until(lambda: driver.waiting == 3)
        await anyio.sleep(0.05)
        driver.let_go.set()
    assert driver.most == 3


async def test_calls_that_go_on_for_nobody_are_bounded_too():
    _, store, driver = stuck("list_page", threads=3)
    for _ in range(10):
        with anyio.move_on_after(0.05):
            await store.next_seq(REF)
    assert driver.waiting == driver.most == 3
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.next_seq, REF)
        await anyio.sleep(0.05)
        driver.let_go.set()


# --- cancelled calls --------------------------------------------------------------------------------------------------


async def test_a_cancelled_append_goes_on_and_is_recognised_when_it_is_called_again():
    _, store, driver = stuck("put", times=1)
    async with cancelled_when(lambda: driver.waiting):
        await store.append_segment(REF, 0, 0, "w", lines([0]))
    key = await store.append_segment(REF, 0, 0, "w", lines([0]))
    driver.let_go.set()
    await until(lambda: not driver.waiting)
    assert await store.append_segment(REF, 0, 0, "w", lines([0])) == key
    assert await numbers(store.records(REF)) == [0]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_that_asyncio_cancels_is_cancelled():
    setup, store, driver = stuck("put")
    task = asyncio.create_task(store.append_segment(REF, 0, 0, "w", lines([0])))
    await until(lambda: driver.waiting)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(store.append_segment(REF, 1, 1, "w", lines([1])), 0.05)
    driver.let_go.set()
    await until(lambda: not driver.waiting)
    await until(lambda: setup.store.next_seq(REF) == 2)


async def test_what_is_opened_for_nobody_is_closed_again():
    setup, store, driver = stuck("list_page", times=1)
    before = set(writing._writers)
    async with cancelled_when(lambda: driver.waiting):
        await store.writer(REF)
    driver.let_go.set()
    await until(lambda: not driver.waiting)
    await until(lambda: writing._writers == before)

    streams = StreamCountingObjectStore(StuckObjectStore(setup.memory, "get", times=1))
    store = AsyncObjectTranscriptStore(ObjectTranscriptStore(Container(streams)))
    key = append(setup.store, 0, 0)
    async with cancelled_when(lambda: streams.inner.waiting):
        await store.read_segment(key)
    streams.inner.let_go.set()
    await until(lambda: streams.most)
    await until(lambda: not streams.open)


async def test_a_stream_whose_read_was_cancelled_says_so():
    streams = []
    setup = make(wrap=lambda inner: streams.append(StreamCountingObjectStore(inner)) or streams[0])
    key = append(setup.store, 0, 9)
    store = AsyncObjectTranscriptStore(setup.store)
    stream = await store.read_segment(key)
    assert len(streams[0].open) == 1
    with anyio.CancelScope() as scope:
        scope.cancel()
        await stream.read(3)
    with pytest.raises(StoreClosedError, match="open it again"):
        await stream.read(3)
    await until(lambda: not streams[0].open)
    await stream.close()


# --- iterating --------------------------------------------------------------------------------------------------------


class OpenStreams(set):
    """The streams that are open, and the threads that closed others."""

    def __init__(self):
        self.closed_by = set()

    def discard(self, key):
        self.closed_by.add(threading.get_ident())
        super().discard(key)


@pytest.fixture
def streams():
    """A driver that counts its open streams, none of which may be closed by the event loop's thread."""
    streams = StreamCountingObjectStore(make().memory)
    streams.open = OpenStreams()
    yield streams
    assert threading.get_ident() not in streams.open.closed_by


@pytest.fixture
def long_store(streams):
    """A store with a segment of many records, whose streams are counted."""
    store = ObjectTranscriptStore(Container(streams))
    append(store, 0, 4999)
    return AsyncObjectTranscriptStore(store)


async def test_records_are_fetched_many_at_a_time(long_store, monkeypatch):
    hops = []
    fetch = aio.AsyncIteration._fetch
    monkeypatch.setattr(aio.AsyncIteration, "_fetch", lambda self: hops.append(fetch(self)))
    monkeypatch.setattr("transcript_backends.hopping._BATCH_SECONDS", 60)
    assert await numbers(long_store.records(REF)) == list(range(5000))
    assert len(hops) == 5000 // 256 + 1
    hops.clear()
    monkeypatch.setattr("transcript_backends.hopping._BATCH_BYTES", 100)
    assert await numbers(long_store.records(REF, limit=50)) == list(range(50))
    assert len(hops) == 8  # seven lines a hop
    hops.clear()
    monkeypatch.setattr("transcript_backends.hopping._BATCH_SECONDS", -1)
    assert await numbers(long_store.records(REF, limit=5)) == list(range(5))
    assert len(hops) == 6


async def test_an_iteration_left_early_gives_its_connection_back(long_store, streams):
    async for record in long_store.records(REF):
        assert record.seq == 0
        break
    await until(lambda: streams.most and not streams.open)


async def test_an_iteration_is_dropped_while_no_thread_can_be_started_the_usual_way(long_store, streams):
    iteration = long_store.records(REF)
    await anext(iteration)
    assert streams.open

    def close_what_was_dropped():
        iteration.__del__()
        ended.set()

    ended = threading.Event()
    with threading._active_limbo_lock:  # as where a collection begins while a thread is being started
        start_new_thread(close_what_was_dropped, ())
        assert ended.wait(10)
    await until(lambda: not streams.open)


async def test_an_iteration_that_is_closed_gives_its_connection_back(long_store, streams):
    async with aclosing(long_store.records(REF)) as records:
        await anext(records)
        assert streams.open
    assert not streams.open
    with pytest.raises(StopAsyncIteration):
        await anext(records)
    async with long_store.records(REF) as records:
        await anext(records)
        assert streams.open
    assert not streams.open
    untouched = long_store.records(REF)
    await untouched.aclose()
    assert await numbers(untouched) == []


async def test_an_iteration_that_is_closed_while_cancelled_gives_its_connection_back(long_store, streams):
    with anyio.CancelScope() as scope:
        async with long_store.records(REF) as records:
            await anext(records)
            scope.cancel()
    assert scope.cancel_called
    await until(lambda: not streams.open)


async def test_a_cancelled_iteration_gives_its_connection_back_and_says_so(setup):
    driver = StuckObjectStore(setup.memory, "get", times=1)
    streams = StreamCountingObjectStore(driver)
    store = AsyncObjectTranscriptStore(ObjectTranscriptStore(Container(streams)))
    append(setup.store, 0, 9)
    records = store.records(REF)
    async with cancelled_when(lambda: driver.waiting):
        await anext(records)
    driver.let_go.set()
    await until(lambda: streams.most)
    await until(lambda: not streams.open)
    with pytest.raises(StoreClosedError, match="was cancelled"):
        await anext(records)
    with pytest.raises(StopAsyncIteration):
        await anext(records)


async def test_an_error_comes_after_the_records_before_it(setup):
    faulty = FaultyObjectStore(setup.memory)
    store = AsyncObjectTranscriptStore(ObjectTranscriptStore(Container(faulty, retry=RetryPolicy(max_attempts=1))))
    for seq in range(3):
        append(setup.store, seq, seq)
    faulty.fail("get", None, times=2)
    faulty.fail("get", Meaning.DENIED, times=9)
    found = []

    async def read():
        async for record in store.records(REF):
            found.append(record.seq)

    with pytest.raises(AccessDeniedError):
        await read()
    assert found in ([], [0, 1])  # small segments are fetched ahead


# --- following --------------------------------------------------------------------------------------------------------

SOON = {"min_interval": 0.01, "max_interval": 0.02}


async def test_what_is_there_comes_first_then_what_appears_and_a_cursor_goes_on(setup, store):
    append(setup.store, 0, 2)
    found = []
    follower = store.follow(REF, **SOON)

    async def follow():
        async for record in follower:
            found.append(record[:2])
            if len(found) == 6:
                return

    async def write():
        await until(lambda: len(found) == 3)
        append(setup.store, 3, 4)
        await until(lambda: len(found) == 5)
        append(setup.store, 3, 3, "other")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        await follow()
    cursor = follower.cursor
    assert found == [(0, "w"), (1, "w"), (2, "w"), (3, "w"), (4, "w"), (3, "other")]
    assert [record async for record in store.follow(REF, cursor=cursor, stop_when_idle=0)] == []
    append(setup.store, 5, 5)
    assert await numbers(store.follow(REF, cursor=cursor, stop_when_idle=0)) == [5]


@pytest.mark.parametrize("taken", range(8))
async def test_a_cursor_taken_after_any_record_goes_on_with_the_next(setup, store, taken):
    append(setup.store, 0, 2, "a")
    append(setup.store, 1, 3, "b")
    append(setup.store, 4, 4, "a")
    everything = [record[:2] async for record in store.follow(REF, stop_when_idle=0)]
    async with store.follow(REF, stop_when_idle=0) as follower:
        begun = [(await anext(follower))[:2] for _ in range(min(taken, 7))]
        cursor = follower.cursor
    assert begun + [record[:2] async for record in store.follow(REF, cursor=cursor, stop_when_idle=0)] == everything
    there = [record[:2] for record in setup.store.follow(REF, cursor=cursor, stop_when_idle=0)]
    assert begun + there == everything


async def test_the_next_life_of_a_transcript_is_followed_from_its_beginning(setup, store):
    append(setup.store, 0, 2)
    follower = store.follow(REF, **SOON)
    assert [(await anext(follower)).seq for _ in range(3)] == [0, 1, 2]
    setup.store.delete(REF)
    append(setup.store, 0, 1)
    assert [(await anext(follower)).seq for _ in range(2)] == [0, 1]
    assert [record async for record in store.follow(REF, cursor=follower.cursor, stop_when_idle=0)] == []
    await follower.close()


async def test_followers_that_wait_take_no_thread(setup):
    store = AsyncObjectTranscriptStore(setup.store, threads=1)
    append(setup.store, 0, 0)
    found = []

    async def follow():
        async for record in store.follow(REF, **SOON):
            found.append(record.seq)
            if record.seq == 1:
                return

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(follow)
        await until(lambda: len(found) == 20)
        await store.append_segment(REF, 1, 1, "w", lines([1]))
    assert sorted(found) == [0] * 20 + [1] * 20


async def test_a_follower_with_timeouts_misses_nothing():
    setup, store, driver = stuck("list_page", times=3)
    append(make(memory=setup.memory).store, 0, 2)
    found = []
    async with store.follow(REF, **SOON) as follower:
        for attempt in range(60):
            with anyio.move_on_after(0.01):
                found.append((await anext(follower)).seq)
            if attempt == 5:
                assert found == []
                assert driver.most == len(store._threads._left) == 1
                driver.let_go.set()
    assert found == [0, 1, 2]


async def test_timeouts_shorter_than_the_pause_between_two_looks_end_it_too(setup, store):
    found = []
    async with store.follow(REF, min_interval=0.2, max_interval=0.2) as follower:
        for attempt in range(1000):
            with anyio.move_on_after(0.01):
                found.append((await anext(follower)).seq)
                break
            if attempt == 3:
                append(setup.store, 0, 0)
    assert found == [0]


async def test_a_closed_follower_ends(store):
    async with anyio.create_task_group() as tasks:
        follower = store.follow(REF, min_interval=1000, max_interval=1000)

        async def close():
            await anyio.sleep(0.05)
            await follower.close()

        tasks.start_soon(close)
        with anyio.fail_after(30):
            assert [record async for record in follower] == []


async def test_an_idle_follower_ends_after_a_last_look(setup, store):
    found = []
    began = time.monotonic()
    async for record in store.follow(REF, stop_when_idle=0.2, min_interval=1000, max_interval=1000):
        found.append(record.seq)
        if record.seq == 0:
            append(setup.store, 1, 1)
        elif record.seq == 1:
            await anyio.sleep(0.3)
            append(setup.store, 2, 2)
    assert found == []
    assert time.monotonic() - began >= 0.2
    append(setup.store, 0, 0)
    async for record in store.follow(REF, stop_when_idle=0.2, min_interval=1000, max_interval=1000):
        found.append(record.seq)
        if record.seq < 2:
            append(setup.store, record.seq + 1, record.seq + 1)
            await anyio.sleep(0.3 * record.seq)
    assert found == [0, 1, 2]


async def test_an_error_of_the_store_ends_no_follower(setup):
    append(setup.store, 0, 0)
    faulty = FaultyObjectStore(setup.memory)
    store = AsyncObjectTranscriptStore(ObjectTranscriptStore(Container(faulty, retry=RetryPolicy(max_attempts=1))))
    follower = store.follow(REF, **SOON)
    assert (await anext(follower)).seq == 0
    faulty.fail("list_page", Meaning.TRY_AGAIN)
    with pytest.raises(StoreUnavailableError):
        await anext(follower)
    append(setup.store, 1, 1)
    assert (await anext(follower)).seq == 1
    await follower.close()


@pytest.mark.parametrize("wrong", [{"cursor": "none"}, {"min_interval": 0}, {"min_interval": 2, "max_interval": 1}])
async def test_what_makes_no_sense_is_refused_at_once(store, wrong):
    with pytest.raises(ValueError, match=r"is no cursor|the intervals must be"):
        store.follow(REF, **wrong)


# --- writing ----------------------------------------------------------------------------------------------------------


async def test_a_writer_stores_what_was_appended_in_order(setup, store):
    async with store.writer(REF, writer_id="mine", max_records=7) as writer:
        assert (writer.ref, writer.writer_id) == (REF, "mine")
        assert [await writer.append({"n": n}) for n in range(20)] == list(range(20))
        await writer.flush()
        assert writer.state == (0, 0, None)
        with pytest.raises(InvalidSegmentError):
            await writer.append(b"no JSON")
        assert await writer.append({"n": 20}) == 20
    assert [record.json()["n"] for record in setup.store.records(REF)] == list(range(21))
    await writer.close()
    with pytest.raises(StoreClosedError):
        await writer.append({})
    assert "mine of acme/coder/s1" in repr(writer)


async def test_a_writer_with_a_journal_leaves_none_behind(setup, store, tmp_path):
    writer = await store.writer(REF, spool_dir=str(tmp_path), **AT_HAND)
    async with anyio.create_task_group() as tasks:
        for n in range(50):
            tasks.start_soon(writer.append, {"n": n})
    assert len(list(tmp_path.iterdir())) == 1
    assert writer.state.pending_records == 50
    await writer.close()
    assert list(tmp_path.iterdir()) == []
    assert sorted(record.json()["n"] for record in setup.store.records(REF)) == list(range(50))


async def test_an_append_waits_for_room_as_a_task_and_takes_nothing_when_cancelled():
    setup, store, driver = stuck("put")
    async with never_blocked(), store.writer(REF, max_records=2, max_pending_bytes=100) as writer:
        with anyio.move_on_after(0.3) as scope:
            for n in range(50):
                await writer.append({"n": n})
        assert scope.cancelled_caught
        taken = writer.state.pending_records
        assert 5 < taken < 15
        assert writer.state.pending_bytes <= 100
        async with anyio.create_task_group() as tasks:
            for n in range(taken, 50):
                tasks.start_soon(writer.append, {"n": n})
            await anyio.sleep(0.05)
            assert writer.state.pending_records == taken
            driver.let_go.set()
    assert sorted(record.json()["n"] for record in setup.store.records(REF)) == list(range(50))


class SwitchedObjectStore(WrapperObjectStore):
    """Refuses puts as long as there is an error."""

    error: Exception | None = None

    def put(self, key, body, *, mode, metadata):
        if self.error is not None:
            raise self.error
        return super().put(key, body, mode=mode, metadata=metadata)

    def classify(self, error):
        return FaultyObjectStore(self.inner).classify(error)


def switched(setup):
    switch = SwitchedObjectStore(setup.memory)
    return switch, AsyncObjectTranscriptStore(ObjectTranscriptStore(Container(switch, retry=RetryPolicy(max_attempts=1))))


async def test_an_append_waits_until_an_outage_is_over(setup, monkeypatch):
    monkeypatch.setattr("transcript_backends.writing._FIRST_PAUSE", 0.01)
    switch, store = switched(setup)
    switch.error = InjectedError(Meaning.TRY_AGAIN)
    async with store.writer(REF, max_records=2, max_pending_bytes=60) as writer:

        async def end_outage():
            await until(lambda: writer.state.pending_bytes > 40)
            await anyio.sleep(0.1)
            assert isinstance(writer.state.last_error, StoreUnavailableError)
            switch.error = None

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(end_outage)
            for n in range(50):
                await writer.append({"n": n})
    assert [record.seq for record in setup.store.records(REF)] == list(range(50))


async def test_an_append_raises_where_it_is_told_not_to_wait(setup):
    switch, store = switched(setup)
    switch.error = InjectedError(Meaning.TRY_AGAIN)
    writer = await store.writer(REF, max_records=1, max_pending_bytes=30, when_full="raise")
    for taken in range(3):
        assert await writer.append({"n": 1}) == taken
    with pytest.raises(StoreUnavailableError, match="bytes waiting"):
        await writer.append({"n": 1})
    with pytest.raises(StoreUnavailableError):
        await writer.flush(timeout=0.01)
    switch.error = None
    await writer.close(timeout=20)
    assert [record.seq for record in setup.store.records(REF)] == [0, 1, 2]
    with pytest.raises(ValueError, match="when_full"):
        await store.writer(REF, when_full="drop")


async def test_what_stops_a_writer_reaches_the_next_call(setup):
    switch, store = switched(setup)
    switch.error = InjectedError(Meaning.DENIED)
    writer = await store.writer(REF, max_records=2, max_pending_bytes=60)

    async def write():
        for n in range(50):
            await writer.append({"n": n})
            await anyio.sleep(0.01)

    with pytest.raises(AccessDeniedError, match="flush"):
        await write()
    switch.error = None
    await writer.close()
    assert await numbers(store.records(REF)) == list(range(setup.store.next_seq(REF)))


async def test_a_writer_that_is_cancelled_stores_what_was_appended(setup, store):
    with anyio.CancelScope() as scope:
        async with store.writer(REF, **AT_HAND) as writer:
            await writer.append({})
            scope.cancel()
            await anyio.sleep(60)
    assert scope.cancelled_caught
    assert [record.seq for record in setup.store.records(REF)] == [0]
    assert writer.state == (0, 0, None)


async def test_a_close_that_was_cancelled_can_be_called_again(tmp_path):
    setup, store, driver = stuck("put")
    writer = await store.writer(REF, spool_dir=str(tmp_path), **AT_HAND)
    await writer.append({})
    for _ in range(3):
        waiting = len(store._threads._left)
        async with cancelled_when(lambda waiting=waiting: driver.waiting and len(store._threads._left) >= waiting):
            await writer.close()
    driver.let_go.set()
    await writer.close()
    assert [record.seq for record in setup.store.records(REF)] == [0]
    assert list(tmp_path.iterdir()) == []


# --- many sessions ----------------------------------------------------------------------------------------------------


async def write_sessions(url, sessions, turns=5, records=4):
    """Write so many sessions at once; gives the longest time in which no other task could run."""
    async with open_store(url) as store, never_blocked(60) as gaps:

        async def write(ref):
            async with store.writer(ref) as writer:
                for turn in range(turns):
                    for n in range(records):
                        await writer.append({"turn": turn, "n": n, "text": "x" * 1000})
                    await writer.flush()
                    await anyio.sleep(0.01)

        async with anyio.create_task_group() as tasks:
            for number in range(sessions):
                tasks.start_soon(write, TranscriptRef("t", "a", str(number)))
    expected = [(turn, n) for turn in range(turns) for n in range(records)]
    async with open_store(url) as store:
        refs = [ref async for ref in store.list_refs()]
        assert len(refs) == sessions
        for ref in refs:
            found = [record.json() async for record in store.records(ref)]
            assert [(each["turn"], each["n"]) for each in found] == expected
    return max(gaps)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_one_process_writes_many_sessions_at_once_to_s3(moto_server):
    assert await write_sessions(moto_server.url("sessions"), 50) < 2.0
