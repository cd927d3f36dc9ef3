"""Event logs and session objects on every kind of backend: two senders, a stream and a compactor at once, each event once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from localstack_servers import Server
from msgspec.structs import replace

from transcript_backends import CompactionPolicy, InvalidEventError, ObjectTranscriptStore, TranscriptRef, open_store
from transcript_backends.events import AgentMessage, Event, EventLog, Sessions, UserMessage, text
from transcript_backends.state import StateStore

BACKENDS = ["memory", "file", "ministack", "moto", "fake_gcs", "azurite"]


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param in ("memory", "file"):
        return {"memory": f"memory://{os.urandom(6).hex()}", "file": f"file://{tmp_path}/store"}[request.param]
    server: Server = request.getfixturevalue(f"{request.param}_server")
    return server.new_bucket().url("logs")


@pytest.fixture
def store(url: str) -> Iterator[ObjectTranscriptStore]:
    with open_store(url) as store:
        yield store


REF = TranscriptRef("acme", "coder", "sess_1")


def message(event_id: str) -> Event:
    return AgentMessage(id=event_id, content=text(f"this is {event_id}"))


def test_what_is_sent_is_listed_and_streamed_and_sent_again_is_there_once(store: ObjectTranscriptStore) -> None:
    log = EventLog(store, REF)
    sent = log.send([UserMessage(content=text("hi")), {"type": "user.interrupt"}])
    sent += log.append([message("evt_1"), message("evt_2")])
    with pytest.raises(InvalidEventError, match="other content"):
        EventLog(store, REF).append([message("evt_3"), AgentMessage(id="evt_2")])
    assert EventLog(store, REF).append([message("evt_1")]) == sent[2:3]
    store.compact(REF, CompactionPolicy(full=True))
    assert log.list().events == sent
    newest = log.list(order="desc", limit=3)
    assert newest.events == sent[:0:-1]
    assert log.list(order="desc", before=newest.before).events == sent[:1]
    sent += log.append([message("evt_3")])
    assert log.list(after=newest.after).events == sent[-1:]
    with log.stream("evt_1", stop_when_idle=0) as stream:
        assert list(stream) == sent[3:]


def test_two_senders_a_stream_a_reader_of_pages_and_a_compactor_at_once_see_each_event_once(url: str) -> None:
    """Each has a store of its own; each event is sent twice, as after an answer that was lost."""
    each, batch = 24, 3
    senders = ["a", "b"]
    total = len(senders) * each
    errors: list[BaseException] = []
    streamed: list[str] = []
    paged: list[str] = []
    done = threading.Event()

    def run(work: object, *arguments: object) -> threading.Thread:
        def safely() -> None:
            try:
                with open_store(url) as own:
                    work(own, *arguments)  # type: ignore[operator]
            except BaseException as error:
                errors.append(error)
                done.set()

        thread = threading.Thread(target=safely)
        thread.start()
        return thread

    def send(own: ObjectTranscriptStore, name: str) -> None:
        logs = [EventLog(own, REF), EventLog(own, REF)]
        for first in range(0, each, batch):
            events = [message(f"evt_{name}{number}") for number in range(first, first + batch)]
            for log in logs:
                log.append(events)

    def follow(own: ObjectTranscriptStore) -> None:
        cursor = None
        while len(streamed) < total and not errors:
            with EventLog(own, REF).stream(cursor, stop_when_idle=5, min_interval=0.01, max_interval=0.05) as stream:
                for event in stream:
                    streamed.append(event.id)
                    if len(streamed) == total or len(streamed) % 7 == 0:
                        break  # and go on elsewhere, from the cursor
                cursor = stream.cursor

    def page(own: ObjectTranscriptStore) -> None:
        log, after = EventLog(own, REF), None
        while len(paged) < total and not errors:
            found = log.list(after=after, limit=5)
            assert found.problems == []
            paged.extend(event.id for event in found.events)
            after = found.after

    def compact(own: ObjectTranscriptStore) -> None:
        while not done.is_set():
            own.compact(REF, CompactionPolicy(min_segments=4))
            done.wait(0.05)

    others = [run(follow), run(page), run(compact)]
    sending = [run(send, name) for name in senders]
    for thread in [*sending, *others[:2]]:
        thread.join(120)
    done.set()
    others[2].join(120)
    assert errors == []
    expected = sorted(f"evt_{name}{number}" for name in senders for number in range(each))
    with open_store(url) as store:
        log = EventLog(store, REF)
        listed = [event.id for event in log.list().events]
        backwards = [event.id for event in log.list(order="desc").events]
        assert store.verify(REF).ok
    assert sorted(streamed) == sorted(paged) == sorted(listed) == expected
    assert backwards == listed[::-1]
    for name in senders:  # each sender's events are in its order
        own = [f"evt_{name}{number}" for number in range(each)]
        assert [each for each in listed if each in own] == own


def test_a_session_is_changed_by_many_at_once_and_nothing_is_lost(store: ObjectTranscriptStore) -> None:
    sessions = Sessions(StateStore(store), "user")
    made = sessions.create({"id": "agent_1"}, "env_1", status="running")
    errors: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for _ in range(4):
                sessions.update(made.id, lambda session: replace(session, metadata={**session.metadata, name: True}))
                sessions.create_thread(made.id, {"id": "agent_1"}, parent_thread_id=first.id)
        except BaseException as error:
            errors.append(error)

    first = sessions.create_thread(made.id, {"id": "agent_1"})
    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []
    stored = sessions.get(made.id)
    assert stored is not None
    assert stored.metadata == {"a": True, "b": True, "c": True}
    assert len(sessions.threads(made.id)) == 13
    assert [session.id for session in sessions.list().sessions] == [made.id]
    assert list(store.list_refs()) == []
