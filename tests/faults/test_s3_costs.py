"""The requests of each operation on S3 are those its page names (docs/backends/s3.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from faults.s3_server import S3Server
from faults.setups import REF, OpenS3

from transcript_backends import CompactionPolicy


@pytest.mark.parametrize("purge", [False, True], ids=["keeping versions", "purging versions"])
def test_each_operation_costs_what_its_page_says(open_s3: OpenS3, server: S3Server, purge: bool) -> None:
    store = open_s3(purge_versions=purge)

    def cost(call: Callable[[], object]) -> dict[str, int]:
        server.log.clear()
        call()
        return dict(Counter(server.kinds()))

    def append(number: int) -> str:
        return store.append_segment(REF, number, number, "w", b"{}\n")

    versions = {"VERSIONS": 1} if purge else {}
    assert cost(lambda: append(0)) == {"PUT": 1 + 2, "DELETE_MANY": 1, **versions}, "with the probe"
    assert cost(lambda: append(1)) == {"PUT": 1}
    assert cost(lambda: append(1)) == {"PUT": 1, "HEAD": 1}
    key = append(0)
    for number in range(2, 1100):  # stored behind its back: it takes less time
        server.dialect.store(f"{key.rpartition('/')[0]}/{number:019d}-{number:019d}-w.jsonl", b"{}\n")
    assert cost(lambda: store.list_segments(REF)) == {"LIST": 2}
    assert cost(lambda: store.next_seq(REF)) == {"LIST": 2}
    assert cost(lambda: list(store.records(REF))) == {"LIST": 2, "GET": 1100}
    batches = {"DELETE_MANY": 2, **({"VERSIONS": 2} if purge else {})}
    assert cost(lambda: store.compact(REF, CompactionPolicy(full=True))) == {"LIST": 4, "GET": 1100, "PUT": 2, **batches}
    assert cost(lambda: list(store.records(REF))) == {"LIST": 1, "GET": 2}
    assert cost(lambda: store.compact(REF)) == {"LIST": 1}
    assert cost(lambda: store.delete(REF)) == {"LIST": 3, "PUT": 2, **batches}
