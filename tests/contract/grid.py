"""Which contracts are tried with which engine, and below which prefixes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from faults.engines import HAS_OBSTORE
from localstack_servers import Server

from transcript_backends import open_store
from transcript_backends.drivers.driver import ObjectStore
from transcript_backends.testing import StoreContract

ENGINES = ["sdk", "obstore"] if HAS_OBSTORE else ["sdk"]
PREFIXES = {"bare": "", "prefixed": "root/of-all"}
LISTINGS = {  # which are the SDK's, whatever the engine
    "test_more_segments_than_a_page_are_all_seen_and_all_deleted",
    "test_more_segments_than_a_page_are_seen_under_an_escaped_id",
}
LONG = LISTINGS | {  # these take seconds, and a prefix changes nothing of what they show
    "test_of_many_creators_of_one_segment_exactly_one_wins",
    "test_writers_of_their_own_never_lose_a_line",
    "test_many_compactors_and_writers_at_once_lose_nothing",
}


@contextlib.contextmanager
def driver_on(server: Server, engine: str) -> Iterator[ObjectStore]:
    with open_store(server.url(), engine=engine) as store:
        yield store._container.driver


class TwoEngineStoreContract(StoreContract):
    """On both engines, below each prefix; bare with obstore shows nothing that the driver contract does not."""

    rounds = 8  # the driver is raced for longer

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "prefix" in metafunc.fixturenames:
            name = metafunc.function.__name__
            of_sdk = list(PREFIXES)[-1 if name in LONG else 0 :]
            of_obstore = [] if name in LISTINGS else ["prefixed"]
            chosen = [(each, "sdk") for each in of_sdk] + [(each, "obstore") for each in of_obstore if HAS_OBSTORE]
            pairs = [(PREFIXES[each], engine) for each, engine in chosen]
            metafunc.parametrize(("prefix", "engine"), pairs, ids=map("-".join, chosen), scope="class")
