"""What a million records cost, by how they are stored: this package, and patterns that others use.

python -m benchmarks.costs            # prints the tables of docs/costs.md
python -m benchmarks.costs --write    # puts them there
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from benchmarks.scale import FULL, HOUR, LIVE, PAGE, RECORDS, Life, Requests, main, table
from transcript_backends.prices import PRICES, dollars

SIZE, PACE = 1024, 3  # bytes of a record, seconds between two
SESSIONS = 1_000_000 // RECORDS  # that hold a million records
BATCHES = (1, 10, 100)  # records an append
READS = (0, 1, 10, 100)  # of each session as a whole


class Way(NamedTuple):
    """A way to store a session, and what it asks for: to write all of it, and to read it once as a whole."""

    title: str
    batch: int
    write: Requests
    read: Requests


def ours(batch: int, *, every: int = 0, at_end: bool = False) -> Life:
    """A session with equal appends, compacted each so many, and in full an hour after its end."""
    life = Life()
    appends = RECORDS // batch
    for number in range(1, appends + 1):
        life.append(batch, batch * SIZE)
        if every and number % every == 0:
            life.compact(number * batch * PACE, LIVE)
    if at_end:
        life.compact(appends * batch * PACE + HOUR, FULL)
    return life


def object_each() -> tuple[Requests, Requests]:
    """One object a record, by a plain client: put_object, list_objects_v2, get_object."""
    lists = -(-RECORDS // PAGE)
    size = RECORDS * SIZE
    return Requests(puts=RECORDS, bytes_up=size), Requests(gets=RECORDS, lists=lists, bytes_down=size)


def strands() -> tuple[Requests, Requests]:
    """Strands' S3SessionManager: an object a message, and with each agent.json read and written again.

    By its source (sdk-python, src/strands/session, MessageAddedEvent): create_message is a put, sync_agent a get and a put.
    What an invocation adds at its end, another get and put, is left out; agent.json is taken to be as large as a record. To
    restore it reads session.json and agent.json, lists the messages and gets each.
    """
    write, read = object_each()
    synced = Requests(puts=RECORDS, gets=RECORDS, bytes_up=RECORDS * SIZE, bytes_down=RECORDS * SIZE)
    return write.plus(synced), read.plus(Requests(gets=2, bytes_down=2 * SIZE))


def whole_file(batch: int) -> tuple[Requests, Requests]:
    """One object a session: read, lengthened and written again, without a condition."""
    appends = RECORDS // batch
    step = batch * SIZE
    read = step * appends * (appends - 1) // 2
    write = Requests(puts=appends, gets=appends, bytes_up=read + step * appends, bytes_down=read)
    return write, Requests(gets=1, bytes_down=RECORDS * SIZE)


def ways() -> Iterator[Way]:
    for batch in BATCHES:
        kinds: dict[str, Life] = {
            "never compacted": ours(batch),
            "compacted once, at the end": ours(batch, at_end=True),
            "each 64 appends, and at the end": ours(batch, every=64, at_end=True),
        }
        for title, life in kinds.items():
            yield Way(title, batch, life.appended.plus(life.compacted), life.read)
    for batch in BATCHES:
        yield Way("read, lengthened, written again", batch, *whole_file(batch))
    yield Way("one object a record", 1, *object_each())
    yield Way("Strands S3SessionManager", 1, *strands())


def requests_table() -> str:
    def row(way: Way) -> list[str]:
        done = [number * SESSIONS for number in way.write]
        write = Requests(*done)
        moved = (write.bytes_up / 1e9, write.bytes_down / 1e9)
        return [
            way.title,
            str(way.batch),
            *(f"{number:,}" for number in (write.puts, write.gets, write.lists)),
            *(f"{number:,.1f}" for number in moved),
            f"{way.read.gets:,} + {way.read.lists}",
        ]

    head = ["stored", "batch", "PUT", "GET", "LIST", "GB up", "GB down", "GET + LIST of a read"]
    return table(head, map(row, ways()))


def dollars_table() -> str:
    def row(way: Way) -> list[str]:
        writes = [dollars(way.write.dollars(prices) * SESSIONS) for prices in PRICES.values()]
        return [way.title, str(way.batch), *writes, dollars(way.read.dollars(PRICES["s3"]))]

    return table(["stored", "batch", *PRICES, "a read on s3"], map(row, ways()))


def reads_table() -> str:
    def row(way: Way) -> list[str]:
        each = [way.write.dollars(PRICES["s3"]) + reads * way.read.dollars(PRICES["s3"]) for reads in READS]
        return [way.title, str(way.batch), *(dollars(amount * SESSIONS) for amount in each)]

    return table(["stored, on s3", "batch", *(f"{reads} reads" for reads in READS)], map(row, ways()))


def prices_table() -> str:
    rows = [
        [f"`{name}`: {each.title}", each.as_of, *(f"{price:g}" for price in (each.put, each.get, each.list)), f"{each.month:g}"]
        for name, each in PRICES.items()
    ]
    return table(["price list", "as of", "a million PUT", "GET", "LIST", "GB and month"], rows)


def tables() -> dict[str, str]:
    found: dict[str, Callable[[], str]] = {
        "prices": prices_table,
        "requests": requests_table,
        "dollars": dollars_table,
        "reads": reads_table,
    }
    return {name: make() for name, make in found.items()}


if __name__ == "__main__":
    main("costs.md", tables(), sys.argv[1:])
