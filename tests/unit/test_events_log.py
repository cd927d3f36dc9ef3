"""The log of events: what is sent is stored once, in order, and listed and streamed without a gap or a repeat."""

from __future__ import annotations

import itertools
import json
import pickle
import random

import pytest
from msgspec.structs import replace
from unit.setups import REF, Crash, HookedObjectStore, ServerClock, StepObjectStore, StreamCountingObjectStore, crash, make

from transcript_backends import (
    CompactionPolicy,
    InvalidEventError,
    InvalidSegmentError,
    ObjectTranscriptStore,
    StoreUnavailableError,
)
from transcript_backends.container import Container, RetryPolicy
from transcript_backends.drivers.memory import MemoryObjectStore
from transcript_backends.drivers.wrappers import FaultyObjectStore
from transcript_backends.events import AgentMessage, EventDelta, EventLog, EventStart, SystemMessage, UserMessage, text
from transcript_backends.testing.stores import SparingObjectStore

FULL = CompactionPolicy(full=True)


@pytest.fixture
def setup():
    return make()


@pytest.fixture
def log(setup):
    return EventLog(setup.store, REF)


def message(number, said="hi", **more):
    return {"type": "agent.message", "id": f"evt_{number}", "content": text(said), **more}


def fill(log, numbers):
    for number in numbers:
        log.append([message(number)])


def ids(events):
    return [int(event.id.removeprefix("evt_")) for event in events]


def stored(setup):
    return [json.loads(record.line) for record in setup.store.records(REF)]


def streamed(log, place=None, **options):
    with log.stream(place, stop_when_idle=0, min_interval=0.001, max_interval=0.001, **options) as stream:
        return list(stream)


# --- sending ----------------------------------------------------------------------------------------------------------


def test_what_is_sent_is_given_as_stored_with_new_ids(setup, log):
    sent = log.send([UserMessage(content=text("hi")), {"type": "user.interrupt"}])
    assert [event.to_line() for event in sent] == [record.line for record in setup.store.records(REF)]
    assert len({event.id for event in sent}) == 2
    assert all(event.id.startswith("evt_") for event in sent)
    assert stored(setup)[1]["session_thread_id"] is None
    page = log.list()
    assert [*page] == page.events == sent
    assert (len(page), page[-1], page[:1]) == (2, sent[1], sent[:1])


def test_sending_nothing_is_nothing(setup, log):
    assert log.send([]) == []
    assert setup.keys() == []


NOT_SENDABLE = [
    "agent.message",
    "session.deleted",
    "span.model_request_start",
    "event_start",
    "event_delta",
    "user.mesage",
    "x",
]


@pytest.mark.parametrize("kind", NOT_SENDABLE)
def test_a_client_can_send_its_own_types_only(setup, log, kind):
    with pytest.raises(InvalidEventError, match=r"^events\[1\]\.type: .*; nothing was stored$") as caught:
        log.send([UserMessage(content=text("hi")), {"type": kind, "processed_at": "2026-01-01T00:00:00Z"}])
    assert (caught.value.index, caught.value.path) == (1, "type")
    assert kind in caught.value.reason
    assert setup.keys() == []


def test_an_error_is_the_same_in_another_process(log):
    with pytest.raises(InvalidEventError) as caught:
        log.send([{"type": "user.message", "content": [5]}])
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value) == "events[0].content[0]: expected object, got int; nothing was stored"
    assert (again.index, again.path, again.reason) == (0, "content[0]", "expected object, got int")


def test_a_type_that_is_nearly_one_is_told(log):
    with pytest.raises(InvalidEventError, match=r"did you mean 'user\.message'"):
        log.send([{"type": "user.mesage"}])
    with pytest.raises(InvalidEventError, match=r"'agent.mesage' is no public .*did you mean 'agent.message'"):
        log.append([{"type": "agent.mesage"}])


@pytest.mark.parametrize("bad", [{"type": "user.message", "content": [{"type": "x", "n": float("nan")}]}, 5, None, "x", {}])
def test_what_can_not_be_stored_is_refused_before_anything_is(setup, log, bad):
    with pytest.raises(InvalidEventError, match=r"^events\[1\]"):
        log.append([message(1), bad])
    assert setup.keys() == []


def test_an_event_that_is_too_long_is_refused(log):
    with pytest.raises(InvalidEventError, match=r"events\[0\]: it is \d+ bytes long; 67108864, and 4194304 without"):
        log.append([message(1, usage=list(range(700_000)))])


def test_large_values_are_stored_outside_and_given_whole(setup, log):
    events = log.send([UserMessage(content=text("long" * 2_000_000)), UserMessage(content=text("short"))])
    assert sum(map(len, (record.line for record in setup.store.records(REF, resolve=False)))) < 2000
    assert len([key for key in setup.driver.requests if key.operation == "put" and "/payloads/" in key.key]) == 1
    for found in (log.list().events, log.list(order="desc").events[::-1], streamed(log)):
        assert found == events
    assert EventLog(setup.store, REF).send(events) == events
    assert len(stored(setup)) == 2


def test_structs_are_checked_too(log):
    with pytest.raises(InvalidEventError, match=r"events\[0\].content: it must not be empty"):
        log.send([UserMessage(content=[])])


FRAMES = [EventStart.of("evt_1"), EventDelta.of("evt_1", "more")]


@pytest.mark.parametrize("frame", FRAMES)
def test_frames_are_never_stored(setup, log, frame):
    for way in (log.send, log.append):
        for given in (frame, frame.members()):
            with pytest.raises(InvalidEventError, match="frame of a stream"):
                way([given])
    with setup.store.writer(REF) as writer, pytest.raises(InvalidSegmentError, match="never stored"):
        writer.append(frame)
    assert stored(setup) == []


AFTER_THE_USER = ["user.message", "user.interrupt", "user.tool_confirmation", "user.tool_result", "user.custom_tool_result"]
MEMBERS = {
    "user.message": {"content": text("x")},
    "user.tool_confirmation": {"tool_use_id": "t", "result": "deny"},
    "user.tool_result": {"tool_use_id": "t"},
    "user.custom_tool_result": {"custom_tool_use_id": "t"},
}


@pytest.mark.parametrize("kind", [*AFTER_THE_USER, "agent.tool_result", "agent.mcp_tool_result"])
@pytest.mark.parametrize("together", [True, False])
def test_a_system_message_follows_an_event_of_the_user_or_a_tools_result(log, kind, together):
    first, second = {"type": kind, **MEMBERS.get(kind, {})}, SystemMessage(content=text("be brief"))
    if together:
        log.append([first, second])
    else:
        log.append([first])
        EventLog(log._store, REF).send([second])
    assert [event.type for event in log.list().events] == [kind, "system.message"]


@pytest.mark.parametrize("before", [[], [message(1)], [UserMessage(content=text("x")), SystemMessage(content=text("y"))]])
def test_a_system_message_anywhere_else_is_refused(log, before):
    log.append(before)
    with pytest.raises(InvalidEventError, match=r"events\[0\]\.type: 'system.message' comes"):
        log.send([SystemMessage(content=text("be brief"))])
    with pytest.raises(InvalidEventError, match=r"events\[2\]\.type: 'system.message' comes after 'agent.message'"):
        log.append([UserMessage(content=text("x")), message(2), SystemMessage(content=text("be brief"))])
    assert len(log.list().events) == len(before)


def test_a_system_message_that_is_sent_again_is_there_already(setup, log):
    log.send([UserMessage(id="evt_1", content=text("x"))])
    for sender in (log, log, EventLog(setup.store, REF)):
        sender.send([SystemMessage(id="evt_2", content=text("be brief"))])
    assert ids(log.list().events) == [1, 2]


def test_an_event_that_is_sent_again_is_stored_once(setup, log):
    log.append([message(1), message(2)])
    assert ids(log.append([message(2), message(1), message(3), message(3)])) == [2, 1, 3, 3]
    assert ids(EventLog(setup.store, REF).append([message(1)])) == [1]
    assert [each["id"] for each in stored(setup)] == ["evt_1", "evt_2", "evt_3"]


@pytest.mark.parametrize("batch", [[message(1, "other")], [message(2), message(2, "other")], [message(1, usage={})]])
def test_an_id_with_other_content_is_refused(setup, log, batch):
    log.append([message(1)])
    for sender in (log, EventLog(setup.store, REF)):
        with pytest.raises(InvalidEventError, match=r"\.id: another event has the id evt_"):
            sender.append(batch)
    assert len(stored(setup)) == 1


def test_an_event_that_was_processed_comes_once_more_and_stays_so(setup, log):
    (sent,) = log.send([UserMessage(id="evt_1", content=text("hi"))])
    processed = replace(sent, processed_at="2026-01-31T12:00:00Z")
    for sender in (log, log, EventLog(setup.store, REF)):
        assert sender.append([processed, sent]) == [processed, sent]
    assert log.list().events == [sent, processed]
    assert log.list(order="desc").events == [processed]
    assert streamed(log) == [sent, processed]
    for other in (replace(processed, processed_at="2026-01-31T12:00:01Z"), replace(processed, content=text("ho"))):
        with pytest.raises(InvalidEventError, match="other content"):
            log.append([other])
    both = [replace(sent, id="evt_2"), replace(processed, id="evt_2")]
    log.append([*both, *both])
    assert log.list().events == [sent, processed, *both]


def test_what_is_sent_after_a_send_has_returned_comes_after_it(setup):
    logs = [EventLog(setup.store, REF) for _ in range(3)]
    chance = random.Random(1)
    for number in range(60):
        fill(chance.choice(logs), [number])
        if number % 20 == 10:
            setup.store.compact(REF, FULL)
    assert ids(logs[0].list().events) == list(range(60))


def test_a_send_is_a_listing_and_a_put_and_a_get_for_what_others_have_sent():
    clock = ServerClock()
    setup = make(memory=MemoryObjectStore("m", now=clock))
    setup.store._container.clock = clock
    log, other = EventLog(setup.store, REF), EventLog(setup.store, REF)
    fill(log, [1])
    fill(other, [2])
    clock.go_on(seconds=5)  # what is younger is listed twice
    setup.driver.requests.clear()
    fill(log, [3])
    clock.go_on(seconds=5)
    fill(log, [4])
    assert setup.driver.counts == {"list_page": 2, "put": 2, "get": 1}


def test_a_send_is_one_segment(setup, log):
    log.append([message(number) for number in range(700)])
    assert len(setup.store.list_segments(REF)) == 1


BATCHES = {"short": [message(1), message(2)], "long": [message(1, "a" * 100_000), message(2, "b" * 100_000)]}


def steps_of_a_send(batch):
    counting = []
    setup = make(wrap=lambda inner: counting.append(StepObjectStore(inner, -1, crash)) or counting[0])
    EventLog(setup.store, REF).append(BATCHES[batch])
    return counting[0].count


CRASHES = [(batch, step) for batch in BATCHES for step in range(steps_of_a_send(batch))]


@pytest.mark.parametrize(("batch", "step"), CRASHES)
def test_a_crash_at_any_request_of_a_send_leaves_all_of_it_or_nothing(batch, step):
    setup = make(wrap=lambda inner: StepObjectStore(inner, step, crash))
    with pytest.raises(Crash):
        EventLog(setup.store, REF).append(BATCHES[batch])
    again = EventLog(make(memory=setup.memory).store, REF)
    assert ids(again.list().events) in ([], [1, 2])
    again.append(BATCHES[batch])
    assert ids(again.list().events) == [1, 2]
    assert len(stored(setup)) == 2


def faulty(**options):
    drivers = []
    setup = make(wrap=lambda inner: drivers.append(FaultyObjectStore(inner)) or drivers[0])
    store = ObjectTranscriptStore(Container(drivers[0], retry=RetryPolicy(max_attempts=1)))
    return setup, store, drivers[0]


@pytest.mark.parametrize("landed", [True, False])
def test_a_send_that_may_have_been_stored_can_be_sent_again(landed):
    setup, store, driver = faulty()
    log = EventLog(store, REF)
    log.append([message(1)])
    driver.fail("put", stored=landed)
    driver.fail("head", times=2)
    with pytest.raises(StoreUnavailableError):
        log.append([message(2), message(3)])
    log.append([message(2), message(3)])
    log.append([message(4)])
    assert [each["id"] for each in stored(setup)] == ["evt_1", "evt_2", "evt_3", "evt_4"]


def test_a_send_that_lands_late_is_missed_by_no_stream_and_given_once():
    """Its put is stored only after the sender has given up and sent other events."""
    setup, store, driver = faulty()
    log = EventLog(store, REF)
    log.append([message(1)])
    puts = []
    put = setup.driver.put

    def lose(key, body, **options):
        puts.append((key, body, options))
        raise ConnectionError

    driver.inner.put = lose
    with pytest.raises(ConnectionError):
        log.append([message(2)])
    driver.inner.put = put
    log.append([message(3)])
    with log.stream(stop_when_idle=0, min_interval=0.001, max_interval=0.001) as stream:
        assert ids(stream) == [1, 3]
    key, body, options = puts[0]
    put(key, body, **options)
    with log.stream(stream.cursor, stop_when_idle=0, min_interval=0.001, max_interval=0.001) as again:
        assert ids(again) == [2]
    assert streamed(log, again.cursor) == []
    log.append([message(2)])
    assert sorted(ids(log.list().events)) == [1, 2, 3]


def test_the_same_event_sent_by_two_at_the_same_moment_is_given_once():
    hooks = []
    setup = make(wrap=lambda inner: hooks.append(HookedObjectStore(inner)) or hooks[0])
    one, other = EventLog(setup.store, REF), EventLog(make(memory=setup.memory).store, REF)
    hooks[0].before("put", lambda: other.append([message(1), message(2)]), key=".jsonl")
    one.append([message(1)])
    assert len(stored(setup)) == 3
    for order in ("asc", "desc"):
        assert sorted(ids(one.list(order=order).events)) == [1, 2]
        assert one.list(order=order).problems == []
    assert sorted(ids(streamed(one))) == [1, 2]


def test_a_forked_child_writes_under_an_id_of_its_own(log):
    before = log._writer_id
    log.after_fork()
    assert log._writer_id != before


def test_large_events_are_told_apart_without_fetching_them(setup, log):
    """Also where others have stored them whole, and where a payload is lost."""
    large = [message(1, "a" * 100_000), message(2, "b" * 100_000)]
    log.append(large)
    setup.store.append_segment(REF, 2, 2, "other", AgentMessage(id="evt_3", content=text("c" * 100_000)).to_line())
    (payload,) = [each.key for each in setup.driver.requests if each.operation == "put" and "/payloads/" in each.key][:1]
    setup.memory.delete_many([payload])
    other = EventLog(setup.store, REF)
    for sender in (log, other):
        sender.append([*large, message(3, "c" * 100_000)])
        with pytest.raises(InvalidEventError, match="other content"):
            sender.append([message(1, "a" * 100_001)])
    assert len(list(setup.store.records(REF, resolve=False))) == 3
    assert not any(each.operation == "get" and "/payloads/" in each.key for each in setup.driver.requests)


# --- listing ----------------------------------------------------------------------------------------------------------


def pages(log, limit, **options):
    """Go through a log by page, one way; gives the pages."""
    back = options.get("order") == "desc"
    found = [log.list(limit=limit, **options)]
    while found[-1].has_more:
        options["before" if back else "after"] = found[-1].before if back else found[-1].after
        found.append(log.list(limit=limit, **options))
    return found


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("limit", [1, 3, 7, 50])
def test_pages_give_every_event_once_both_ways(setup, log, limit, compacted):
    fill(log, range(20))
    if compacted:
        setup.store.compact(REF, FULL)
    for order, expected in (("asc", list(range(20))), ("desc", list(range(19, -1, -1)))):
        found = pages(log, limit, order=order)
        assert [each for page in found for each in ids(page.events)] == expected
        assert all(len(page.events) == limit for page in found[:-1])


def test_an_empty_log_is_an_empty_page(log):
    for order in ("asc", "desc"):
        page = log.list(order=order, limit=3)
        assert (page.events, page.problems, page.has_more, page.before) == ([], [], False, None)
    fill(log, [1])
    assert ids(log.list(after=page.after).events) == [1]


def test_what_comes_after_the_newest_page_follows_it_without_a_gap(setup, log):
    fill(log, range(10))
    newest = log.list(order="desc", limit=3)
    fill(EventLog(setup.store, REF), range(10, 13))
    setup.store.compact(REF, FULL)
    assert ids(log.list(after=newest.after).events) == [10, 11, 12]
    assert ids(streamed(log, newest.after)) == [10, 11, 12]
    assert ids(log.list(before=newest.before, order="desc", limit=2).events) == [6, 5]
    assert ids(log.list(before=newest.before, limit=2).events) == [0, 1]
    older = log.list(before=newest.before, order="desc", limit=3)
    assert ids(older.events) == [6, 5, 4]
    assert ids(log.list(after=older.after, limit=3).events) == [7, 8, 9]
    assert log.list(before=newest.before, after=newest.after).events == []


def test_going_back_from_a_forward_page_gives_what_was_before_it(log):
    fill(log, range(10))
    page = log.list(after="evt_4", limit=3)
    assert ids(page.events) == [5, 6, 7]
    assert ids(log.list(before=page.before, order="desc").events) == [4, 3, 2, 1, 0]
    assert ids(log.list(after="evt_4", before="evt_8").events) == [5, 6, 7]
    assert ids(log.list(after="evt_4", before="evt_8", order="desc").events) == [7, 6, 5]


class Schedule:
    """Senders, one of which is interrupted before its puts; readers of pages and streams; and a compactor: all by chance."""

    def __init__(self, seed):
        self.chance, hooks = random.Random(seed), []
        self.setup = make()
        slow = make(wrap=lambda inner: hooks.append(HookedObjectStore(inner)) or hooks[0], memory=self.setup.memory)
        self.hook, self.late = hooks[0], EventLog(slow.store, REF)
        self.logs = [EventLog(self.setup.store, REF) for _ in range(3)]
        self.sent = 0
        self.readers = [{"after": None, "seen": [], "streams": streams} for streams in (True, False, False)]

    def send(self, log):
        batch = [message(self.sent + n) for n in range(self.chance.randint(1, 3))]
        self.sent += len(batch)
        log.append(batch)
        if self.chance.random() < 0.3:
            self.chance.choice(self.logs).append(batch)

    def read(self, reader, limit):
        if reader["after"] is None or not reader["streams"]:
            page = self.logs[0].list(after=reader["after"], limit=limit)
            reader["seen"] += ids(page.events)
            reader["after"] = page.after
        else:
            with self.logs[0].stream(reader["after"], stop_when_idle=0, min_interval=1e-5, max_interval=1e-5) as stream:
                reader["seen"] += ids(itertools.islice(stream, limit))
                reader["after"] = stream.cursor

    def act(self):
        for _ in range(self.chance.randint(0, 5)):
            match self.chance.randrange(5):
                case 0 | 1:
                    self.send(self.chance.choice(self.logs))
                case 2 | 3:
                    self.read(self.chance.choice(self.readers), self.chance.choice([1, 3, 50]))
                case _:
                    self.setup.store.compact(REF, self.chance.choice([FULL, CompactionPolicy(min_segments=2)]))


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_meanwhile_each_event_is_given_once(seed):
    run = Schedule(seed)
    log = run.logs[0]
    while run.sent < 8:
        run.act()
    there, page = run.sent, log.list(order="desc", limit=2)
    newest, back = page.after, ids(page.events)
    for _ in range(8):
        run.act()
        if run.chance.random() < 0.5:
            run.hook.before("put", run.act, key=".jsonl")
            run.send(run.late)
        if page.has_more:
            page = log.list(order="desc", limit=run.chance.randint(1, 4), before=page.before)
            back += ids(page.events)
    while page.has_more:
        page = log.list(order="desc", limit=3, before=page.before)
        back += ids(page.events)
    everything = list(range(run.sent))
    for reader in run.readers:
        run.read(reader, 1000)
        assert sorted(reader["seen"]) == everything
    assert sorted(back)[:there] == list(range(there))
    assert len(set(back)) == len(back)
    assert sorted(ids(log.list(after=newest).events)) == everything[there:]
    assert sorted(ids(log.list().events)) == everything
    assert log.list().events == log.list(order="desc").events[::-1]
    assert run.setup.store.verify(REF).ok


def test_an_event_stored_late_comes_with_the_next_page(setup, log):
    fill(log, [1])
    hooks = []
    slow = make(wrap=lambda inner: hooks.append(HookedObjectStore(inner)) or hooks[0], memory=setup.memory)
    taken = []

    def meanwhile():
        fill(log, [3, 4])
        taken.append(log.list(limit=10))

    hooks[0].before("put", meanwhile, key=".jsonl")
    fill(EventLog(slow.store, REF), [2])
    assert ids(taken[0].events) == [1, 3, 4]
    assert ids(log.list(after=taken[0].after).events) == [2]


def test_filters_choose_types_and_threads(log):
    log.append(
        [
            UserMessage(id="evt_1", content=text("x"), session_thread_id="sthr_1"),
            AgentMessage(id="evt_2", session_thread_id="sthr_1"),
            AgentMessage(id="evt_3", session_thread_id="sthr_2"),
            AgentMessage(id="evt_4"),
        ]
    )
    assert ids(log.list(types={"agent.message"}).events) == [2, 3, 4]
    assert ids(log.list(thread="sthr_1").events) == [1, 2]
    assert ids(log.list(thread="sthr_1", types=["agent.message"], order="desc").events) == [2]
    assert ids(streamed(log, types=["user.message"])) == [1]
    assert ids(streamed(log, thread="sthr_2")) == [3]
    page = log.list(types=["user.message"], limit=1)
    assert (ids(page.events), page.has_more) == ([1], False)
    with pytest.raises(TypeError, match="not a str"):
        log.list(types="agent.message")


def test_pages_with_a_filter_give_every_event_once(log):
    log.append([message(n) if n % 3 else UserMessage(id=f"evt_{n}", content=text("x")) for n in range(30)])
    for order, expected in (("asc", list(range(0, 30, 3))), ("desc", list(range(27, -1, -3)))):
        found = pages(log, 4, order=order, types=["user.message"])
        assert [each for page in found for each in ids(page.events)] == expected


@pytest.mark.parametrize("limit", [0, -1])
def test_arguments_that_make_no_sense_are_refused(log, limit):
    with pytest.raises(ValueError, match="limit"):
        log.list(limit=limit)
    with pytest.raises(ValueError, match="order"):
        log.list(order="up")


CURSORS = ["", "x", "eyJ2IjoxfQ==", "sess_1", "eyJ2IjoxLCJnIjowLCJ0IjpudWxsLCJ3Ijp7fSwicCI6NX0="]


@pytest.mark.parametrize("cursor", CURSORS)
def test_a_place_that_is_none_is_refused(log, cursor):
    for way in (lambda: log.list(after=cursor), lambda: log.list(before=cursor), lambda: log.stream(cursor)):
        with pytest.raises(ValueError, match="is no cursor"):
            way()


def test_an_event_that_is_not_there_is_no_place(log):
    fill(log, [1])
    for way in (lambda: log.list(after="evt_9"), lambda: log.list(before="evt_9"), lambda: log.stream("evt_9")):
        with pytest.raises(InvalidEventError, match="no event 'evt_9' is among the newest 10,000"):
            way()


def test_a_cursor_of_a_follower_is_a_place_to_go_on_from(setup, log):
    fill(log, range(4))
    with setup.store.follow(REF, stop_when_idle=0) as follower:
        next(follower)
        cursor = follower.cursor
    assert ids(log.list(after=cursor).events) == [1, 2, 3]
    with pytest.raises(ValueError, match="can't be gone back from"):
        log.list(before=cursor)


@pytest.mark.parametrize("compacted", [False, True])
def test_the_newest_page_of_a_long_log_reads_little(compacted):
    counting = []
    setup = make(wrap=lambda inner: counting.append(StreamCountingObjectStore(inner)) or counting[0])
    log = EventLog(setup.store, REF)
    for start in range(0, 20_000, 500):
        log.append([message(number, "x" * 100) for number in range(start, start + 500)])
    if compacted:
        setup.store.compact(REF, FULL)
    whole = sum(each.size for each in setup.store.list_segments(REF))
    counting[0].received = 0
    setup.driver.requests.clear()
    page = EventLog(setup.store, REF).list(order="desc", limit=20)
    assert ids(page.events) == list(range(19_999, 19_979, -1))
    assert counting[0].received < whole / 10
    assert setup.driver.counts["get"] <= 3
    setup.driver.requests.clear()
    near_the_end = log.list(after="evt_19990", limit=2)
    assert ids(near_the_end.events) == [19_991, 19_992]
    assert setup.driver.counts["get"] <= 6
    counting[0].received = 0
    assert ids(log.list(after=near_the_end.after, limit=2).events) == [19_993, 19_994]
    assert counting[0].received < whole / 10


def test_a_place_outlives_a_delete(setup, log):
    fill(log, range(5))
    page = log.list(limit=2)
    setup.store.delete(REF)
    fill(log, range(10, 13))
    assert ids(log.list(after=page.after).events) == [10, 11, 12]
    log.append([message(1, "in the next life")])
    assert [event.id for event in log.list().events][-1] == "evt_1"


# --- what others have left --------------------------------------------------------------------------------------------

DAMAGED = [
    (b'{"type":"message","role":"user","content":"hi"}', "id"),
    (b'{"type":"user.message","id":"evt_9"}', "content"),
    (b'{"type":"user.tool_confirmation","id":"evt_9","tool_use_id":"t","result":"maybe"}', "result"),
    (b'{"type":"agent.message","id":"sess_9"}', "id"),
    (b'{"type":"agent.message","id":"evt_9","processed_at":"2026-01-01T00:00:00"}', "processed_at"),
    (
        b'{"type":"user.define_outcome","id":"evt_9","description":"d","rubric":{"type":"x"},"max_iterations":-1}',
        "max_iterations",
    ),
    (b'{"type":"event_start","event":{"id":"evt_9","type":"agent.message"}}', "type"),
    (b'{"id":"evt_9"}', "type"),
    (b'{"type":"agent.message","id":"evt_1","content":[]}', "id"),
]


@pytest.mark.parametrize(("line", "path"), DAMAGED)
def test_a_record_that_is_no_event_is_reported_and_hides_no_other(setup, log, line, path):
    log.append([message(1)])
    setup.store.append_segment(REF, 1, 1, "other", line)
    log.append([message(2)])
    page = log.list()
    assert ids(page.events) == [1, 2]
    (problem,) = page.problems
    assert problem[:3] == (1, "other", path)
    assert str(problem).startswith(f"record 1 of other: {path}: ")
    found = []
    assert ids(streamed(log, on_problem=found.append)) == [1, 2]
    assert found == page.problems
    assert len(log.list(order="desc").problems) == 1


def test_a_problem_of_a_stream_is_logged_where_nobody_asks(setup, log, caplog):
    setup.store.append_segment(REF, 0, 0, "other", b'{"type":"message"}')
    assert streamed(log) == []
    assert "acme/coder/s1: record 0 of other: id: it is missing" in caplog.text


def test_events_of_types_that_nobody_knows_are_given(setup, log):
    setup.store.append_segment(REF, 0, 0, "other", b'{"type":"agent.dream","id":"evt_7","of":[]}')
    assert [event.type for event in log.list().events] == ["agent.dream"]


# --- streaming --------------------------------------------------------------------------------------------------------


def test_a_stream_goes_on_after_an_event_and_after_a_cursor(setup, log):
    fill(log, range(6))
    with log.stream(stop_when_idle=0) as stream:
        assert ids([next(stream), next(stream)]) == [0, 1]
        cursor = stream.cursor
    setup.store.compact(REF, FULL)
    assert ids(streamed(log, cursor)) == [2, 3, 4, 5]
    assert ids(log.list(before=cursor, order="desc").events) == [0]
    assert ids(streamed(log, "evt_3")) == [4, 5]
    assert ids(streamed(log, "evt_5")) == []


def test_a_stream_that_was_closed_ends(log):
    fill(log, [1, 2])
    stream = log.stream()
    assert ids([next(stream)]) == [1]
    stream.close()
    assert list(stream) == []


def test_a_page_and_a_place_from_the_end_cost_what_is_stored_and_not_what_a_name_says():
    setup = make()
    stored_by_others = b"".join(json.dumps(message(number)).encode() + b"\n" for number in range(50))
    setup.put(f"{REF.prefix}events/0-{2**63 - 1}-other.jsonl", stored_by_others)
    log = EventLog(ObjectTranscriptStore(Container(SparingObjectStore(setup.driver, 60))), REF)
    page = log.list(limit=10, order="desc")
    assert ids(page) == list(range(49, 39, -1))
    assert ids(log.list(limit=10, before=page.before, order="desc")) == list(range(39, 29, -1))
    assert ids(log.list(after="evt_45")) == [46, 47, 48, 49]
    assert ids(log.list(before="evt_5", order="desc")) == [4, 3, 2, 1, 0]
