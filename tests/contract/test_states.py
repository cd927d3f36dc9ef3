"""State documents on every backend, against the shipped contract."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
from localstack_servers import Server

from transcript_backends import (
    ABSENT,
    ConditionalWritesUnsupportedError,
    ObjectTranscriptStore,
    StateStore,
    open_store,
)
from transcript_backends.testing import SharedStateContract, StateContract
from transcript_backends.testing.racing import all_at_once


class TestMemoryStates(StateContract):
    @pytest.fixture
    def store(self, prefix: str) -> Iterator[ObjectTranscriptStore]:
        with open_store(f"memory:///{prefix}") as store:
            yield store


class TestLocalStates(StateContract):
    @pytest.fixture
    def store(self, tmp_path: Path, prefix: str) -> Iterator[ObjectTranscriptStore]:
        with open_store(str(tmp_path / prefix / "store")) as store:
            yield store


class TestSharedLocalStates(SharedStateContract):
    @pytest.fixture
    def store_url(self, tmp_path: Path) -> str:
        return f"file://{tmp_path}/shared"


class OnAServer(StateContract):
    """Below a prefix of the class's own."""

    server: ClassVar[str]
    engine: ClassVar[str] = "auto"

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, request: pytest.FixtureRequest) -> Iterator[ObjectTranscriptStore]:
        server: Server = request.getfixturevalue(cls.server)
        with open_store(server.url(os.urandom(6).hex()), engine=cls.engine) as store:
            yield store


class TestMinistackStates(OnAServer):
    server = "ministack_server"


class TestMotoStates(OnAServer):
    server, rounds = "moto_server", 10  # it is slow


class TestLocalStackStates(OnAServer):
    server, rounds = "localstack_server", 10
    engine = "sdk"  # localstack#10387 has mended whole reads of what is being replaced, and not reads of a range, as obstore's


class TestSeaweedFSStates(OnAServer):
    server, rounds, creators = "seaweedfs_server", 10, 4  # it takes seconds where sixteen want one key


class TestGCSStates(OnAServer):
    server = "fake_gcs_server"


class TestAzureStates(StateContract):
    @pytest.fixture
    def store(self, azurite_server: Server) -> Iterator[ObjectTranscriptStore]:
        with open_store(azurite_server.url(os.urandom(6).hex())) as store:
            yield store


class TestSharedMinistackStates(SharedStateContract):
    rounds = 10

    @pytest.fixture
    def store_url(self, ministack_server: Server) -> str:
        return ministack_server.url(os.urandom(6).hex())


# --- fsspec, which has no way to replace one version -------------------------------------------------------------------


class TestFsspecStates(StateContract):
    """With a look in place of conditions. What only conditions can promise is given up, and so not tried."""

    test_the_same_value_is_created_by_one_only = None  # type: ignore[assignment]
    test_of_many_that_count_none_is_forgotten = None  # type: ignore[assignment]
    test_of_many_that_add_to_a_list_none_is_forgotten = None  # type: ignore[assignment]

    @pytest.fixture(params=["memory", "file"])
    def store(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectTranscriptStore]:
        place = f"memory://{os.urandom(6).hex()}" if request.param == "memory" else f"file://{tmp_path}/store"
        with open_store(f"fsspec+{place}?conditional_writes=off") as store:
            yield store


@pytest.fixture(params=["memory", "file"])
def fsspec_states(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateStore]:
    place = f"memory://{os.urandom(6).hex()}" if request.param == "memory" else f"file://{tmp_path}/store"
    with StateStore(f"fsspec+{place}") as states:
        yield states


def test_fsspec_refuses_to_replace_one_version_and_says_what_to_do(fsspec_states: StateStore) -> None:
    version = fsspec_states.save("u", "s", "k", 1)
    listed = fsspec_states.save_list("u", "s", "k", [1])
    calls = [
        lambda: fsspec_states.save_if_version("u", "s", "k", 2, version),
        lambda: fsspec_states.update("u", "s", "k", int, lambda _: 2),
        lambda: fsspec_states.save_list("u", "s", "k", [1, 2]),
    ]
    for call in calls:
        with pytest.raises(ConditionalWritesUnsupportedError, match="conditional_writes=off"):
            call()
    assert fsspec_states.get_versioned("u", "s", "k", int) == (1, version)
    assert fsspec_states.get_list_versioned("u", "s", "k", int) == ([1], listed)


def test_of_many_that_create_with_fsspec_one_wins(fsspec_states: StateStore) -> None:
    for number in range(20):
        results = all_at_once([partial(fsspec_states.save_if_version, "u", "s", f"k{number}", 1, ABSENT)] * 16)
        assert sorted(type(each).__name__ for each in results) == ["VersionConflictError"] * 15 + ["str"]
