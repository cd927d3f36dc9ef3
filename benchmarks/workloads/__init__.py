"""What is measured. A workload is a function of a `Bench`; `ALL` says who runs it, where, and how often."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from benchmarks.measuring import Bench
from benchmarks.places import Where
from benchmarks.workloads import (
    appending,
    compacting,
    counting,
    decoding,
    following,
    hedging,
    listing,
    reading,
    sharing,
    starting,
    tailing,
)


class Workload(NamedTuple):
    """Figures for each client.

    Attributes:
        name: for ``--only``, and in the results.
        title: what is done.
        unit: what one operation is.
        run: does and measures it, in a process of the client's.
        clients: who does it.
        rival: whom the others are compared with.
        where: the stub of a cloud, a real server, a directory, or this interpreter alone.
        alone: whether it has a process to itself, since it looks at memory.
        opened: whether it is given a client that is open.
        rounds: at most so many, where figures are exact.
        asked_for: whether it is run only where it is named, since it takes minutes.
        remark: what one should know to read the figures.
        cannot: who can't do it, and why.
    """

    name: str
    title: str
    unit: str
    run: Callable[[Bench], None]
    clients: tuple[str, ...]
    rival: str
    where: Where = "s3"
    alone: bool = False
    opened: bool = True
    rounds: int = 1000
    asked_for: bool = False
    remark: str = ""
    cannot: Mapping[str, str] = {}


_OURS = ("sdk engine", "obstore engine")
_HEDGED = ("sdk engine, hedged", "obstore engine, hedged")
_HEDGING = ("obstore engine", "obstore engine, hedged")
_S3 = (*_OURS, "boto3", "obstore")
_AT_ONCE = (*_S3, "aiobotocore")
_GCS = (*_OURS, "google-cloud-storage", "obstore")
_AZURE = (*_OURS, "azure-storage-blob", "obstore")
_REAL = (*_OURS, "boto3", "obstore")
_SEGMENTS = ("file store", "fsspec store", "fsspec", "system calls")
_FILES = (*_SEGMENTS, "one file", "SQLite")

_RAW = "raw sockets: unsigned requests from one epoll loop, the bound of machine and stub."
_SLOW = "20 ms a request, 1 % of them 200 ms"
_STRANDS = "Strands: `create_message`; with an agent attached, changed state adds a read and a write."

ALL = (
    Workload(
        "append-1",
        "append 4 KiB, one at a time",
        "append",
        appending.one_at_a_time,
        _S3,
        "boto3",
    ),
    Workload(
        "append-32",
        "append 4 KiB, 32 at a time",
        "append",
        appending.many_at_once,
        (*_AT_ONCE, "raw sockets"),
        "boto3",
        remark=_RAW,
    ),
    Workload(
        "append-32-network", f"append 4 KiB, 32 at a time, {_SLOW}", "append", appending.over_a_network, _AT_ONCE, "boto3"
    ),
    Workload(
        "session",
        "a session of 1,000 turns of 1 KiB, each durable before the next",
        "turn",
        appending.session,
        (*_OURS, "boto3", "obstore", "Strands", "whole file"),
        "boto3",
        remark=f"whole file: each turn reads and writes the whole session. {_STRANDS}",
    ),
    Workload("list", "list 10,000 segments, parsed", "segment", listing.ten_thousand, _S3, "boto3"),
    Workload(
        "read",
        "cold read of 1,000 segments of 4 KiB, in order",
        "segment",
        reading.plain,
        (*_AT_ONCE, "Strands", "raw sockets"),
        "boto3",
        remark=f"{_RAW} It reads known keys in any order.",
    ),
    Workload("read-network", f"the same read, {_SLOW}", "segment", reading.over_a_network, (*_AT_ONCE, *_HEDGED), "boto3"),
    Workload(
        "read-compacted-network",
        f"the same read after compaction, {_SLOW}",
        "segment",
        reading.compacted_over_a_network,
        _OURS,
        "sdk engine",
        cannot={
            "Strands": "merges nothing that is stored",
            "boto3, obstore": "what a reader does while segments are merged is left to the program",
        },
    ),
    Workload("hedging", f"single gets of 4 KiB, 32 at a time, {_SLOW}", "get", hedging.single_gets, _HEDGING, "obstore engine"),
    Workload("tail-1000", "the last 50 of 1,000 records", "look", tailing.thousand, _OURS, "sdk engine"),
    Workload("tail-100000", "the last 50 of 100,000 records", "look", tailing.hundred_thousand, _OURS, "sdk engine"),
    Workload("tail-1000000", "the last 50 of 1,000,000 records", "look", tailing.million, _OURS, "sdk engine", rounds=1),
    Workload(
        "follow",
        "from an append to its record in another client's hands",
        "record",
        following.latency,
        (*_OURS, "boto3"),
        "boto3",
        remark="boto3: a loop that lists every 0.3 s, which is also the shortest pause of a follower.",
    ),
    Workload(
        "sharing",
        "two writers and a reader of one session",
        "record",
        sharing.two_writers,
        (*_OURS, "Strands", "whole file"),
        "sdk engine",
        cannot={
            "boto3, obstore": "who numbers the records of two writers, and what a refused put means, is left to the program",
            "one file, SQLite": "all writers would have to be on one machine",
        },
    ),
    Workload(
        "compact",
        "compact 10,000 segments of 4 KiB",
        "segment",
        compacting.ten_thousand,
        (*_OURS, "boto3", "raw sockets"),
        "boto3",
        alone=True,
        remark=f"{_RAW} It only reads.",
    ),
    Workload(
        "compact-large",
        "compact 262,144 segments of 4 KiB, 1 GiB, of five writers in turn",
        "segment",
        compacting.large,
        ("obstore engine",),
        "obstore engine",
        alone=True,
        asked_for=True,
    ),
    Workload("requests", "requests of each operation", "request", counting.requests, _OURS, "sdk engine", rounds=1),
    Workload(
        "first-append",
        "from the import to the first append",
        "append",
        starting.first_append,
        _S3,
        "boto3",
        remark="Ours asks the stub first whether it honours create-only writes; AWS is known to.",
    ),
    Workload(
        "gcs-append-1",
        "append 4 KiB, one at a time",
        "append",
        partial(appending.one_at_a_time, many=500),
        _GCS,
        "google-cloud-storage",
        "gcs",
    ),
    Workload(
        "gcs-append-32",
        "append 4 KiB, 32 at a time",
        "append",
        partial(appending.many_at_once, many=500),
        _GCS,
        "google-cloud-storage",
        "gcs",
    ),
    Workload("gcs-list", "list 10,000 segments, parsed", "segment", listing.ten_thousand, _GCS, "google-cloud-storage", "gcs"),
    Workload(
        "azure-append-1",
        "append 4 KiB, one at a time",
        "append",
        partial(appending.one_at_a_time, many=500),
        _AZURE,
        "azure-storage-blob",
        "azure",
    ),
    Workload(
        "azure-append-32",
        "append 4 KiB, 32 at a time",
        "append",
        partial(appending.many_at_once, many=500),
        _AZURE,
        "azure-storage-blob",
        "azure",
    ),
    Workload(
        "azure-list", "list 10,000 segments, parsed", "segment", listing.ten_thousand, _AZURE, "azure-storage-blob", "azure"
    ),
    Workload(
        "real-append-32",
        "append 4 KiB, 32 at a time",
        "append",
        partial(appending.many_at_once, many=300),
        _REAL,
        "boto3",
        "seaweedfs",
    ),
    Workload(
        "real-read",
        "cold read of 200 segments of 4 KiB, in order",
        "segment",
        partial(reading.plain, many=200),
        _REAL,
        "boto3",
        "seaweedfs",
    ),
    Workload(
        "local-append",
        "append 4 KiB, durably",
        "append",
        appending.one_at_a_time,
        _FILES,
        "system calls",
        "directory",
        remark="fsspec by itself flushes nothing to disk; one file and SQLite take one writer at a time.",
    ),
    Workload(
        "local-list",
        "list 10,000 segments, parsed",
        "segment",
        listing.ten_thousand,
        _SEGMENTS,
        "fsspec store",
        "directory",
        cannot={"one file, SQLite": "there are no segments in it"},
    ),
    Workload(
        "local-read", "read of 1,000 segments of 4 KiB, in order", "segment", reading.plain, _FILES, "fsspec store", "directory"
    ),
    Workload(
        "typed",
        "decode 100,000 entries of five types",
        "line",
        decoding.entries,
        ("entries", "msgspec", "pydantic", "json"),
        "msgspec",
        "here",
    ),
    Workload(
        "import",
        "import in a fresh interpreter",
        "import",
        starting.fresh_import,
        starting.IMPORTED,
        "boto3",
        "here",
        opened=False,
    ),
)

BY_NAME = {each.name: each for each in ALL}
