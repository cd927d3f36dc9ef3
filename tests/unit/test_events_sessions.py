"""Session objects: what they hold, what is left out of them, and how they may change."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import threading
from datetime import datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from unit.setups import make

from transcript_backends import InvalidEventError
from transcript_backends.events import (
    AgentReference,
    FileResource,
    MemoryStoreResource,
    Resource,
    Secret,
    Session,
    Sessions,
    Thread,
    snapshot,
)
from transcript_backends.events.model import build
from transcript_backends.events.sessions import resource
from transcript_backends.state import StateStore

NOON = "2026-01-31T12:00:00Z"
TOKEN = "ghp_0123456789"
AGENT = {"id": "agent_1", "version": 3, "name": "coder", "model": "large"}
REPOSITORY = {"type": "github_repository", "url": "https://example.org/a/b", "authorization_token": TOKEN}
FILE = {"type": "file", "file_id": "file_1"}
MEMORY = {"type": "memory_store", "memory_store_id": "memstore_1"}
SESSION = {
    "id": "sess_1",
    "type": "session",
    "agent": AGENT,
    "environment_id": "env_1",
    "status": "idle",
    "title": None,
    "metadata": {"a": 1},
    "environment_variables": {"NAME": "value"},
    "resources": [{**FILE, "id": "r1", "mount_path": "/x", "created_at": NOON, "updated_at": NOON}, MEMORY],
    "vault_ids": ["v1"],
    "deployment_id": None,
    "outcome_evaluations": [],
    "stats": {"active_seconds": 0, "duration_seconds": 1.5},
    "archived_at": None,
    "created_at": NOON,
    "updated_at": NOON,
}
THREAD = {
    "id": "sthr_1",
    "type": "session_thread",
    "session_id": "sess_1",
    "parent_thread_id": None,
    "agent": AGENT,
    "status": "running",
    "stats": None,
    "archived_at": None,
    "created_at": NOON,
    "updated_at": NOON,
}


class Clock:
    def __init__(self):
        self.time = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)

    def __call__(self):
        self.time += timedelta(seconds=1)
        return self.time


@pytest.fixture
def setup():
    return make()


@pytest.fixture
def sessions(setup):
    return Sessions(StateStore(setup.store), "user-1", now=Clock())


def fault(make_it):
    with pytest.raises(InvalidEventError) as caught:
        make_it()
    return (caught.value.path, caught.value.reason)


# --- objects ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cls", "members"), [(Session, SESSION), (Thread, THREAD)])
def test_an_object_comes_back_as_it_was_with_members_that_nobody_knows(cls, members):
    assert build(cls, members).members() == members
    more = {**members, "later": {"x": [1]}, "agent": {**AGENT, "tools": [{"type": "bash"}]}}
    assert json.loads(build(cls, more).to_line()) == more


@pytest.mark.parametrize("name", ["id", "agent", "environment_id", "status", "created_at", "updated_at"])
def test_a_member_that_a_session_needs_is_named(name):
    assert fault(lambda: build(Session, {key: value for key, value in SESSION.items() if key != name})) == (
        name,
        "it is missing",
    )


@pytest.mark.parametrize("name", ["id", "session_id", "agent", "status", "created_at", "updated_at"])
def test_a_member_that_a_thread_needs_is_named(name):
    assert fault(lambda: build(Thread, {key: value for key, value in THREAD.items() if key != name})) == (name, "it is missing")


BAD_SESSIONS = [
    ({"id": "evt_1"}, "id", "sess_"),
    ({"type": "thread"}, "type", "'session'"),
    ({"status": "sleeping"}, "status", "'canceling'"),
    ({"title": 5}, "title", "str"),
    ({"metadata": None}, "metadata", "object"),
    ({"environment_variables": {"A": 1}}, "environment_variables[...]", "str"),
    ({"environment_variables": "A=1"}, "environment_variables", "object"),
    ({"created_at": "2026-01-31T12:00:00"}, "created_at", "zone"),
    ({"archived_at": "never"}, "archived_at", "zone"),
    ({"stats": {"active_seconds": -1}}, "stats.active_seconds", ">= 0"),
    ({"stats": {"duration_seconds": "long"}}, "stats.duration_seconds", "str"),
    ({"stats": None}, "stats", "null"),
    ({"agent": "agent_1"}, "agent", "object"),
    ({"agent": {"id": "1"}}, "agent.id", "agent_"),
    ({"agent": {**AGENT, "version": -1}}, "agent.version", ">= 0"),
    ({"vault_ids": [1]}, "vault_ids[0]", "str"),
    ({"resources": [FILE, {"type": "file"}]}, "resources[1].file_id", "missing"),
    ({"resources": [{"type": "file", "file_id": "f"}]}, "resources[0].file_id", "file_"),
    ({"resources": [{"type": "file", "file_id": "file_1", "created_at": "x"}]}, "resources[0].created_at", "zone"),
    ({"resources": [{"type": "github_repository"}]}, "resources[0].url", "missing"),
    ({"resources": [{"type": "memory_store"}]}, "resources[0].memory_store_id", "missing"),
    ({"resources": [{**MEMORY, "memory_store_id": "m"}]}, "resources[0].memory_store_id", "memstore_"),
    ({"resources": [{**MEMORY, "access": "rw"}]}, "resources[0].access", "'read_only'"),
    ({"resources": [{**MEMORY, "instructions": "x" * 4097}]}, "resources[0].instructions", "4096"),
    ({"resources": [{**MEMORY, "id": "x"}]}, "resources[0].id", "none"),
    ({"resources": [{**MEMORY, "created_at": NOON}]}, "resources[0].created_at", "none"),
    ({"resources": [{}]}, "resources[0].type", "missing"),
    ({"resources": ["file_1"]}, "resources[0]", "object"),
]


@pytest.mark.parametrize(("more", "path", "reason"), BAD_SESSIONS)
def test_what_breaks_a_rule_of_a_session_is_named_with_the_reason(more, path, reason):
    found = fault(lambda: build(Session, {**SESSION, **more}))
    assert found[0] == path
    assert reason in found[1]


BAD_THREADS = [
    ({"id": "sess_1"}, "id"),
    ({"session_id": "1"}, "session_id"),
    ({"parent_thread_id": "1"}, "parent_thread_id"),
    ({"status": "canceling"}, "status"),
    ({"type": "session"}, "type"),
    ({"agent": {**AGENT, "multiagent": {}}}, "agent.multiagent"),
]


@pytest.mark.parametrize(("more", "path"), BAD_THREADS)
def test_what_breaks_a_rule_of_a_thread_is_named(more, path):
    assert fault(lambda: build(Thread, {**THREAD, **more}))[0] == path


@pytest.mark.parametrize("access", ["read_write", "read_only", "", None])
def test_a_memory_store_may_say_how_it_is_used(access):
    given_members = {**MEMORY, "access": access, "instructions": "x" * 4096, "name": None, "description": "d"}
    assert resource(given_members).members() == given_members


def test_a_resource_of_a_type_that_nobody_knows_is_kept():
    assert type(resource({"type": "disk", "size": 3})) is Resource
    assert resource({"type": "disk", "size": 3}).members() == {"type": "disk", "size": 3}


def test_members_of_earlier_versions_of_the_api_are_not_shown():
    old_session = {"agent_id": "a", "turn_status": "x", "memory_store_ids": [], "usage": {}}
    assert build(Session, {**SESSION, **old_session}).members() == SESSION
    old_thread = {"agent_id": 1, "agent_version": 1, "name": 1, "role": 1, "stop_reason": 1, "created_by_tool_use_id": 1}
    assert build(Thread, {**THREAD, **old_thread, "usage": 1}).members() == THREAD


def test_an_agent_is_named_by_its_id_or_by_an_object():
    assert AgentReference.of("agent_1") == AgentReference(id="agent_1")
    assert AgentReference.of({"id": "agent_1", "type": "agent", "version": 2}).version == 2
    for bad, path in [
        ("1", "id"),
        (5, ""),
        ({"id": "agent_1"}, "type"),
        ({"id": "agent_1", "type": "self"}, "type"),
        ({"type": "agent"}, "id"),
        ({"type": "agent", "id": "agent_1", "version": -1}, "version"),
    ]:
        assert fault(lambda bad=bad: AgentReference.of(bad))[0] == path


def test_a_snapshot_shows_an_agent_and_those_it_coordinates_without_what_is_their_own():
    own = {"created_at": NOON, "updated_at": NOON, "archived": False, "archived_at": None, "metadata": {"x": 1}}
    stub = {"type": "agent", "id": "agent_9", "version": 1}
    whole = {**own, "type": "agent", "id": "agent_2", "instructions": "test", "multiagent": {}, "model": {"id": "m"}}
    agent = {
        **AGENT,
        **own,
        "instructions": "code",
        "tools": [],
        "model": {"id": "m", "effective_context_window": 200_000},
        "multiagent": {"type": "coordinator", "agents": [whole, {"type": "self", "id": "agent_1"}, stub, "?"]},
    }
    assert snapshot(agent).members() == {
        "id": "agent_1",
        "version": 3,
        "name": "coder",
        "system": "code",
        "tools": [],
        "model": {"id": "m", "effective_context_window": 200_000},
        "multiagent": {
            "type": "coordinator",
            "agents": [
                {"type": "agent", "id": "agent_2", "system": "test", "model": {"id": "m"}},
                {"type": "self", "id": "agent_1"},
                stub,
                "?",
            ],
        },
    }


@pytest.mark.parametrize("window", [0, -1, None, "x"])
def test_a_context_window_that_says_nothing_is_left_out(window):
    assert snapshot({**AGENT, "model": {"id": "m", "effective_context_window": window}}).model == {"id": "m"}


@given(
    st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), st.integers() | st.text(st.characters(codec="utf-8")))
)
def test_any_session_comes_back_member_for_member(more):
    members = {**SESSION, **{f"x-{name}": value for name, value in more.items()}, "metadata": more}
    assert json.loads(build(Session, json.loads(build(Session, members).to_line())).to_line()) == members


# --- secrets ----------------------------------------------------------------------------------------------------------


def shown(thing):
    return f"{thing} {thing!r} {thing:s}" if isinstance(thing, str) else f"{thing} {thing!r}"


def test_a_token_is_given_to_who_asks_for_it_and_shown_to_nobody():
    repository = resource(REPOSITORY)
    assert repository.authorization_token.reveal() == TOKEN
    assert repository.authorization_token == Secret(TOKEN)
    assert hash(repository.authorization_token) == hash(Secret(TOKEN))
    assert repository.authorization_token != TOKEN
    assert TOKEN not in shown(repository) + shown(repository.authorization_token) + repr([repository])
    assert "authorization_token" not in repository.members()
    assert TOKEN.encode() not in repository.to_line()


def test_a_token_can_not_be_written_down_by_others_either():
    repository = resource(REPOSITORY)
    for write in (pickle.dumps, copy.deepcopy, msgspec.json.encode, msgspec.to_builtins):
        with pytest.raises(TypeError):
            write(repository)


@pytest.mark.parametrize("bad", [{"url": ""}, {"url": 5}, {"checkout": TOKEN}, {"created_at": "x"}, {"mount_path": 5}])
def test_no_error_shows_a_token(sessions, bad):
    with pytest.raises(InvalidEventError) as caught:
        sessions.create(AGENT, "env_1", resources=[{**REPOSITORY, **bad}])
    error = caught.value
    while error is not None:
        assert TOKEN not in shown(error) + str(vars(error))
        error = error.__cause__


@pytest.mark.parametrize("kind", ["github_repository", "later_kind"])
def test_a_token_is_not_stored(setup, sessions, caplog, kind):
    caplog.set_level(logging.DEBUG)
    made = sessions.create(AGENT, "env_1", resources=[{**REPOSITORY, "type": kind}])
    sessions.update(made.id, lambda session: replace(session, title="x"))
    everything = b"".join(map(setup.body, setup.keys()))
    assert b"example.org" in everything
    assert TOKEN.encode() not in everything
    assert TOKEN not in caplog.text
    assert TOKEN not in shown(sessions.get(made.id))


@pytest.mark.parametrize("token", [None, "", 5])
def test_a_new_session_needs_the_token_of_a_repository(sessions, token):
    without = {name: value for name, value in REPOSITORY.items() if name != "authorization_token"}
    given_members = without if token is None else {**without, "authorization_token": token}
    with pytest.raises(InvalidEventError, match=r"resources\[0\].authorization_token"):
        sessions.create(AGENT, "env_1", resources=[given_members])
    assert sessions.list().sessions == []


# --- documents --------------------------------------------------------------------------------------------------------


def test_a_new_session_is_idle_and_has_what_it_was_given(sessions):
    made = sessions.create(
        {**AGENT, "metadata": {}},
        "env_1",
        title="t",
        metadata={"a": 1},
        environment_variables={"A": "1"},
        resources=[
            FileResource(file_id="file_1"),
            {**FILE, "mount_path": "/x"},
            REPOSITORY,
            MemoryStoreResource(memory_store_id="memstore_1"),
        ],
        vault_ids=["v"],
        deployment_id="d",
    )
    members = made.members()
    ids = [each.pop("id") for each in members["resources"][:3]]
    assert len(set(ids)) == 3
    times = {"created_at": "2026-01-31T12:00:01.000000Z", "updated_at": "2026-01-31T12:00:01.000000Z"}
    assert members == {
        "id": made.id,
        "type": "session",
        "agent": AGENT,
        "environment_id": "env_1",
        "status": "idle",
        "title": "t",
        "metadata": {"a": 1},
        "environment_variables": {"A": "1"},
        "resources": [
            {**FILE, "mount_path": "/mnt/session/uploads/file_1", **times},
            {**FILE, "mount_path": "/x", **times},
            {"type": "github_repository", "url": REPOSITORY["url"], **times},
            MEMORY,
        ],
        "vault_ids": ["v"],
        "deployment_id": "d",
        "outcome_evaluations": [],
        "stats": {"active_seconds": 0, "duration_seconds": 0},
        "archived_at": None,
        **times,
    }
    assert sessions.get(made.id).members() == made.members()
    assert sessions.get("sess_0") is None


@pytest.mark.parametrize(
    ("agent", "options", "path"),
    [
        ({"id": "1"}, {}, "agent.id"),
        (AGENT, {"status": "x"}, "status"),
        (AGENT, {"environment_variables": {"A": 1}}, "environment_variables[...]"),
        (AGENT, {"environment_variables": "A=1"}, "environment_variables"),
        (AGENT, {"metadata": [1]}, "metadata"),
        (AGENT, {"resources": [{}]}, "resources[0].type"),
    ],
)
def test_a_new_session_that_breaks_a_rule_is_refused(sessions, agent, options, path):
    with pytest.raises(InvalidEventError) as caught:
        sessions.create(agent, "env_1", **options)
    assert caught.value.path == path
    assert sessions.list().sessions == []


STATUSES = ["rescheduling", "running", "idle", "canceling", "terminated"]
FORBIDDEN = {("canceling", "running"), ("canceling", "rescheduling")} | {("terminated", each) for each in STATUSES[:4]}


@pytest.mark.parametrize("before", STATUSES)
@pytest.mark.parametrize("after", STATUSES)
def test_a_status_goes_where_it_may(sessions, before, after):
    made = sessions.create(AGENT, "env_1", status=before)
    if (before, after) in FORBIDDEN:
        with pytest.raises(InvalidEventError, match=f"status: it can't go from '{before}' to '{after}'"):
            sessions.set_status(made.id, after)
        assert sessions.get(made.id).status == before
    else:
        assert sessions.set_status(made.id, after).status == after
        assert sessions.get(made.id).updated_at > made.updated_at


@pytest.mark.parametrize("status", ["asleep", "", 5])
def test_a_status_that_is_none_is_refused(sessions, status):
    made = sessions.create(AGENT, "env_1")
    with pytest.raises(InvalidEventError, match="status"):
        sessions.set_status(made.id, status)


@pytest.mark.parametrize("change", [{"id": "sess_2"}, {"agent": snapshot({"id": "agent_2"})}, {"created_at": NOON}])
def test_what_a_session_is_made_of_can_not_be_changed(sessions, change):
    made = sessions.create(AGENT, "env_1")
    with pytest.raises(InvalidEventError, match="it can't be changed"):
        sessions.update(made.id, lambda session: replace(session, **change))
    assert sessions.get(made.id) == made


def test_a_session_that_is_not_there_can_not_be_changed(sessions):
    with pytest.raises(InvalidEventError, match="there is no session 'sess_1'"):
        sessions.set_status("sess_1", "idle")
    with pytest.raises(InvalidEventError, match="there is no session 'sess_1'"):
        sessions.create_thread("sess_1", AGENT)


def test_a_session_is_archived_once(sessions):
    made = sessions.create(AGENT, "env_1")
    archived = sessions.archive(made.id)
    assert archived.archived_at > made.created_at
    assert sessions.archive(made.id).archived_at == archived.archived_at


def test_changes_of_many_at_once_are_all_made(sessions):
    made = sessions.create(AGENT, "env_1", metadata={"n": 0})

    def count():
        for _ in range(20):
            sessions.update(made.id, lambda session: replace(session, metadata={"n": session.metadata["n"] + 1}))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sessions.get(made.id).metadata == {"n": 80}


def test_sessions_are_listed_by_page_each_once(sessions):
    made = [sessions.create(AGENT, "env_1").id for _ in range(7)]
    found, after = [], None
    for size in (3, 3, 1):
        page = sessions.list(after=after, limit=3)
        assert len(page) == size
        assert [*page] == page.sessions
        found += [session.id for session in page]
        after = page.after
    assert after is None
    assert found == sorted(made)
    with pytest.raises(ValueError, match="limit"):
        sessions.list(limit=0)


def test_sessions_of_others_and_other_documents_are_not_listed(setup, sessions):
    states = StateStore(setup.store)
    Sessions(states, "user-2").create(AGENT, "env_1")
    Sessions(states).create(AGENT, "env_1")
    states.save("user-1", "sess_0", "memory", {})
    states.save("user-1", "other", "session", {})
    made = sessions.create(AGENT, "env_1")
    assert [session.id for session in sessions.list().sessions] == [made.id]


@pytest.mark.parametrize("damage", [{"id": "sess_0"}, {**SESSION, "id": "sess_0", "stats": {"active_seconds": -1}}, [1]])
def test_a_document_that_is_no_session_is_reported_and_hides_no_other(setup, sessions, damage):
    made = sessions.create(AGENT, "env_1")
    StateStore(setup.store).save("user-1", "sess_0", "session", damage)
    page = sessions.list()
    assert [session.id for session in page.sessions] == [made.id]
    assert page.problems.keys() == {"sess_0"}
    assert "sess_0" in page.problems["sess_0"]


# --- threads ----------------------------------------------------------------------------------------------------------


def test_the_coordinators_thread_is_the_first_and_all_others_have_a_parent(sessions):
    made = sessions.create(AGENT, "env_1")
    assert sessions.threads(made.id) == []
    with pytest.raises(InvalidEventError, match="has no thread 'sthr_0'"):
        sessions.create_thread(made.id, AGENT, parent_thread_id="sthr_0")
    first = sessions.create_thread(made.id, {**AGENT, "multiagent": {"agents": []}, "metadata": {}})
    assert (first.parent_thread_id, first.status, first.stats, first.session_id) == (None, "running", None, made.id)
    assert first.agent.members() == AGENT
    second = sessions.create_thread(made.id, AGENT, parent_thread_id=first.id)
    third = sessions.create_thread(made.id, AGENT, parent_thread_id=second.id)
    assert sessions.threads(made.id) == [first, second, third]
    with pytest.raises(InvalidEventError, match="parent_thread_id: only the coordinator's"):
        sessions.create_thread(made.id, AGENT)
    with pytest.raises(InvalidEventError, match=r"agent\.id"):
        sessions.create_thread(made.id, {"id": "x"}, parent_thread_id=first.id)


def test_a_thread_changes_as_a_session_does(sessions):
    made = sessions.create(AGENT, "env_1")
    thread = sessions.create_thread(made.id, AGENT)

    def to(status):
        return sessions.update_thread(made.id, thread.id, lambda each: replace(each, status=status))

    assert to("idle").status == "idle"
    assert to("terminated").updated_at > thread.updated_at
    with pytest.raises(InvalidEventError, match="from 'terminated' to 'running'"):
        to("running")
    for bad in ({"parent_thread_id": "sthr_2"}, {"session_id": "sess_2"}, {"id": "sthr_2"}):
        with pytest.raises(InvalidEventError, match="it can't be changed"):
            sessions.update_thread(made.id, thread.id, lambda each, bad=bad: replace(each, **bad))
    with pytest.raises(InvalidEventError, match="has no thread 'sthr_0'"):
        sessions.update_thread(made.id, "sthr_0", lambda each: each)
    assert [each.status for each in sessions.threads(made.id)] == ["terminated"]
