"""What a store of state documents must do, on whatever store of transcripts it shares."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pytest

from transcript_backends import (
    ABSENT,
    CorruptSegmentError,
    InvalidRefError,
    InvalidSegmentError,
    ObjectTranscriptStore,
    StateStore,
    TranscriptRef,
    VersionConflictError,
)
from transcript_backends.testing.racing import Racing, all_at_once
from transcript_backends.testing.stores import IDS, lines_of

VALUES: list[Any] = [
    {"a": [1, 2.5, None, True]},
    [],
    {},
    [{"b": "日本 \u2028 \0"}],
    "text",
    0,
    -(2**62),
    2**70,
    False,
    "x" * 100_000,
]


class Plan(msgspec.Struct):
    goal: str
    steps: list[str] = []


@dataclass
class Message:
    role: str
    text: str


def messages(count: int, text: str = "hello") -> list[Message]:
    return [Message("user", f"{text} {number}") for number in range(count)]


def count_up(states: StateStore, user: str, times: int) -> None:
    """Add one to a counter so many times."""
    for _ in range(times):
        states.update(user, "s", "counter", int, lambda number: (number or 0) + 1)


def count_up_in_process(url: str, user: str, threads: int, times: int) -> None:
    with StateStore(url) as states:
        assert all_at_once([partial(count_up, states, user, times)] * threads) == [None] * threads


class StateContract(Racing):
    """Inherit, and give a fixture ``store``, a store of transcripts. Every test uses users of its own, but that of `clear`."""

    @pytest.fixture
    def store(self) -> ObjectTranscriptStore:
        pytest.fail("give a fixture `store`")

    @pytest.fixture
    def states(self, store: ObjectTranscriptStore) -> StateStore:
        return StateStore(store)

    @pytest.fixture
    def user(self) -> str:
        return f"user-{os.urandom(6).hex()}"

    # --- values -------------------------------------------------------------------------------------------------------

    def test_what_was_saved_comes_back(self, states: StateStore, user: str) -> None:
        for value in VALUES:
            states.save(user, "s", "k", value)
            assert states.get(user, "s", "k", type(value)) == value
        states.save(user, "s", "k", Plan("build", ["one"]))
        assert states.get(user, "s", "k", Plan) == Plan("build", ["one"])
        states.save(user, "s", "k", Message("user", "hi"))
        assert states.get(user, "s", "k", Message) == Message("user", "hi")
        assert states.get(user, "s", "k", dict) == {"role": "user", "text": "hi"}

    def test_what_is_not_there_is_none(self, states: StateStore, user: str) -> None:
        assert states.get(user, "s", "k", dict) is None
        assert states.get_versioned(user, "s", "k", dict) == (None, ABSENT)
        assert states.get_list(user, "s", "k", dict) == []
        assert states.get_list_versioned(user, "s", "k", dict) == ([], ABSENT)

    def test_what_is_of_another_type_is_an_error_and_not_a_guess(self, states: StateStore, user: str) -> None:
        states.save(user, "s", "k", {"role": 1})
        states.save_list(user, "s", "k", [Message("user", "hi"), {"role": 1}])
        for read in (states.get, states.get_list):
            with pytest.raises(CorruptSegmentError, match=r"k\.jsonl? is no JSON of the type Message"):
                read(user, "s", "k", Message)

    @pytest.mark.parametrize("value", [float("nan"), {"a": [float("inf")]}, object(), "\ud800", {("a",): 1}])
    def test_what_is_no_json_is_refused_and_changes_nothing(self, states: StateStore, user: str, value: object) -> None:
        states.save(user, "s", "k", 1)
        states.save_list(user, "s", "k", [1])
        with pytest.raises(InvalidSegmentError, match="can't be written as JSON"):
            states.save(user, "s", "k", value)
        with pytest.raises(InvalidSegmentError, match="can't be written as JSON"):
            states.save_list(user, "s", "k", [1, value])
        assert states.get(user, "s", "k", int) == 1
        assert states.get_list(user, "s", "k", int) == [1]

    # --- versions -----------------------------------------------------------------------------------------------------

    def test_only_the_version_that_was_read_is_replaced(self, states: StateStore, user: str) -> None:
        first = states.save(user, "s", "k", 1)
        assert states.get_versioned(user, "s", "k", int) == (1, first)
        second = states.save_if_version(user, "s", "k", 2, first)
        third = states.save_if_version(user, "s", "k", 3, second)
        assert len({first, second, third}) == 3
        for stale in (first, second, ABSENT):
            with pytest.raises(VersionConflictError, match="nothing was written"):
                states.save_if_version(user, "s", "k", 4, stale)
        assert states.get_versioned(user, "s", "k", int) == (3, third)
        fourth = states.save(user, "s", "k", 4)
        with pytest.raises(VersionConflictError):
            states.save_if_version(user, "s", "k", 5, third)
        assert states.get_versioned(user, "s", "k", int) == (4, fourth)

    def test_absent_creates_and_what_was_deleted_is_absent(self, states: StateStore, user: str) -> None:
        version = states.save_if_version(user, "s", "k", 1, ABSENT)
        states.delete(user, "s", "k")
        with pytest.raises(VersionConflictError, match="nothing is there now"):
            states.save_if_version(user, "s", "k", 2, version)
        assert states.get(user, "s", "k", int) is None
        states.save_if_version(user, "s", "k", 3, ABSENT)
        assert states.get(user, "s", "k", int) == 3

    def test_the_same_value_is_created_by_one_only(self, states: StateStore, user: str) -> None:
        calls = [partial(states.save_if_version, user, "s", "lock", "taken", ABSENT)] * self.creators
        results = all_at_once(calls)
        assert sum(isinstance(each, str) for each in results) == 1
        assert {type(each) for each in results} == {str, VersionConflictError}

    def test_of_many_that_count_none_is_forgotten(self, states: StateStore, user: str) -> None:
        calls = [partial(count_up, states, user, self.rounds)] * self.creators
        assert all_at_once(calls) == [None] * self.creators
        assert states.get(user, "s", "counter", int) == self.rounds * self.creators

    def test_a_reader_never_gets_a_mix_of_two_versions(self, states: StateStore, user: str) -> None:
        sizes = (1, 3000, 40, 2500)

        def write() -> None:
            for number in range(12):
                states.save(user, "s", "k", [number] * sizes[number % 4])
                states.update_list(user, "s", "k", int, lambda _, number=number: [number] * sizes[number % 4])  # type: ignore[misc]

        def read() -> None:
            for _ in range(25):
                for items in (states.get(user, "s", "k", list), states.get_list(user, "s", "k", int)):
                    assert not items or len(items) == sizes[items[0] % 4]
                    assert not items or set(items) == {items[0]}

        assert all_at_once([write, read, read]) == [None] * 3

    # --- lists --------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "change",
        [
            lambda items: [*items, Message("tool", "more")],
            lambda items: items[:-1],
            lambda items: [],
            lambda items: [Message("user", "hello X"), *items[1:]],
            lambda items: [*items[:49], Message("user", "hello X"), *items[50:]],
            lambda items: items[::-1],
            lambda items: [*items[:7], Message("x", "y"), *items[8:], Message("z", "z")],
        ],
        ids=["grown", "shrunk", "emptied", "first", "middle", "reversed", "changed and grown"],
    )
    def test_a_list_is_what_was_saved_last_however_it_changed(
        self, states: StateStore, user: str, change: Callable[[list[Message]], list[Message]]
    ) -> None:
        before = messages(100)
        first = states.save_list(user, "s", "k", before)
        assert states.get_list_versioned(user, "s", "k", Message) == (before, first)
        after = change(before)
        second = states.save_list(user, "s", "k", after)
        assert states.get_list_versioned(user, "s", "k", Message) == (after, second)
        assert states.save_list(user, "s", "k", iter(after)) == second != first

    def test_a_list_and_a_value_of_one_key_are_two_things(self, states: StateStore, user: str) -> None:
        states.save(user, "s", "k", 1)
        states.save_list(user, "s", "k", [2, 3])
        assert (states.get(user, "s", "k", int), states.get_list(user, "s", "k", int)) == (1, [2, 3])
        states.delete(user, "s", "k")
        assert (states.get(user, "s", "k", int), states.get_list(user, "s", "k", int)) == (None, [])

    def test_a_list_is_replaced_where_it_is_as_it_was_read(self, states: StateStore, user: str) -> None:
        version = states.save_list(user, "s", "k", [1], expected=ABSENT)
        states.save_list(user, "s", "k", [1, 2], expected=version)
        for stale in (version, ABSENT):
            with pytest.raises(VersionConflictError):
                states.save_list(user, "s", "k", [1, 3], expected=stale)
        assert states.get_list(user, "s", "k", int) == [1, 2]

    def test_of_many_that_add_to_a_list_none_is_forgotten(self, states: StateStore, user: str) -> None:
        def add(number: int) -> None:
            for each in range(3):
                states.update_list(user, "s", "k", list, lambda items: [*items, [number, each]])

        assert all_at_once([partial(add, number) for number in range(self.creators)]) == [None] * self.creators
        found = states.get_list(user, "s", "k", list)
        assert sorted(found) == [[number, each] for number in range(self.creators) for each in range(3)]
        assert all([number, each] in found[: found.index([number, each + 1])] for number, each in found if each < 2)

    # --- sessions -----------------------------------------------------------------------------------------------------

    def test_sessions_are_there_while_they_hold_something(self, states: StateStore, user: str) -> None:
        assert (states.exists(user, "s1"), states.list_session_ids(user)) == (False, [])
        states.save(user, "s1", "a", 1)
        states.save_list(user, "s10", "b", [1])
        states.save(user, "s10", "c", 1)
        assert (states.exists(user, "s1"), states.exists(user, "s10"), states.exists(user, "s")) == (True, True, False)
        assert states.list_session_ids(user) == ["s1", "s10"]
        states.delete(user, "s10", "c")
        states.delete(user, "s1")
        assert states.list_session_ids(user) == ["s10"]
        states.delete(user, "s10", "b")
        for session in ("s1", "s10"):
            states.delete(user, session)
            assert not states.exists(user, session)
        assert states.list_session_ids(user) == []

    def test_any_id_works_and_none_sees_another(self, states: StateStore, user: str) -> None:
        ids = [*IDS, "__anon__", "YSBi", "a b", ".hidden", "=state"]
        for number, each in enumerate(ids):
            states.save(user, each, "k", number)
            states.save(f"{user}/{each}", "s", each, number)
        for number, each in enumerate(ids):
            assert states.get(user, each, "k", int) in (number, ids.index(each), len(ids) - 1 - ids[::-1].index(each))
            assert states.list_session_ids(f"{user}/{each}") == ["s"]
            assert states.get(f"{user}/{each}", "s", each, int) is not None
        assert states.list_session_ids(user) == sorted(set(ids))

    def test_nobody_in_particular_is_a_user_of_its_own(self, states: StateStore, user: str) -> None:
        for anonymous in (None, "", " \t"):
            states.save(anonymous, user, "k", 1)
        states.save("__anon__", user, "k", 2)
        assert [states.get(each, user, "k", int) for each in (None, "", " \t", "__anon__")] == [1, 1, 1, 2]
        assert user in states.list_session_ids(None)
        states.delete(None, user)
        assert user not in states.list_session_ids("")
        assert states.list_session_ids("__anon__").count(user) == 1

    @pytest.mark.parametrize("bad", ["", " ", "n" * 256, "\ud800", None, 7], ids=str)
    def test_a_bad_id_is_refused(self, states: StateStore, user: str, bad: Any) -> None:
        calls: list[Callable[[], object]] = [
            lambda: states.save(user, bad, "k", 1),
            lambda: states.get_list(user, "s", bad, int),
            lambda: states.exists(user, bad),
            lambda: states.delete(user, bad),
            lambda: states.save("n" * 256, "s", "k", 1),
            lambda: states.save(user, "s", "k" * 250, 1),
            lambda: states.list_session_ids("\ud800"),
        ]
        for call in calls:
            with pytest.raises(InvalidRefError):
                call()

    def test_documents_and_transcripts_share_a_root(self, store: ObjectTranscriptStore, states: StateStore, user: str) -> None:
        ref = TranscriptRef(user, "s", "k.json")
        store.append_segment(ref, 0, 0, "w", lines_of(0))
        states.save(user, "s", "k", 1)
        states.save(user, "events", "index", 1)
        assert list(store.list_refs(user)) == [each for each in store.list_refs() if each.tenant == user] == [ref]
        assert states.list_session_ids(user) == ["events", "s"]
        states.delete(user, "s")
        assert [record.seq for record in store.records(ref)] == [0]
        store.delete(ref, purge=True)
        assert states.list_session_ids(user) == ["events"]

    def test_all_can_be_cleared_and_transcripts_stay(self, store: ObjectTranscriptStore, states: StateStore, user: str) -> None:
        ref = TranscriptRef(user, "s", "k")
        store.append_segment(ref, 0, 0, "w", lines_of(0))
        states.clear()
        states.save(user, "s", "a", 1)
        states.save_list(user, "s", "b", [1])
        states.save(user, "t", "a", 1)
        states.save(None, "s", "a", 1)
        assert states.clear() == 3
        assert (states.list_session_ids(user), states.list_session_ids(None), states.clear()) == ([], [], 0)
        assert list(store.list_refs(user)) == [ref]


class SharedStateContract(Racing):
    """Inherit, and give a fixture ``store_url``: a URL that other processes can open too."""

    @pytest.fixture
    def store_url(self) -> str:
        pytest.fail("give a fixture `store_url`")

    def test_of_processes_that_count_none_is_forgotten(self, store_url: str) -> None:
        user, count, threads = f"user-{os.urandom(6).hex()}", 4, max(1, self.creators // 4)
        with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
            running = [pool.submit(count_up_in_process, store_url, user, threads, self.rounds) for _ in range(count)]
            for each in running:
                each.result()
        with StateStore(store_url) as states:
            assert states.get(user, "s", "counter", int) == count * threads * self.rounds
