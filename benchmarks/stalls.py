"""How long the event loop stands still while one asyncio process writes 500 sessions at once: ``python -m benchmarks.stalls``.

To a real S3 server on this machine, with each engine. Loop and server share the cores, so run it on an idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import time
from typing import Any

import localstack_servers

from transcript_backends import TranscriptRef
from transcript_backends.aio import AsyncObjectTranscriptStore, open_store

_TURNS, _RECORDS = 5, 10
_TICK, _LONG = 0.005, 0.05  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stalls", description=__doc__)
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--threads", type=int, default=8, help="of the store, for the event loop")
    parser.add_argument("--server", default="seaweedfs", choices=("seaweedfs", "ministack", "moto"))
    parser.add_argument("--no-freeze", action="store_true", help="leave the garbage collector as it is")
    arguments = parser.parse_args()
    os.environ.update(localstack_servers.ENVIRONMENT)
    print("| engine | seconds | median stall | p99 | largest | over 50 ms |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for engine in ("obstore", "sdk"):
        with localstack_servers.running(arguments.server) as server:
            options = {"engine": engine, "threads": arguments.threads}
            asyncio.run(_measure(server.url("stalls"), options, arguments.sessions, freeze=not arguments.no_freeze))


async def _measure(url: str, options: dict[str, Any], sessions: int, *, freeze: bool) -> None:
    refs = [TranscriptRef("t", "a", str(number)) for number in range(sessions)]
    stalls: list[float] = []
    async with open_store(url, **options) as store:
        await store.next_seq(refs[0])  # the first use loads the SDK
        if freeze:
            gc.collect()
            gc.freeze()
        ticking = asyncio.create_task(_tick(stalls))
        began = time.monotonic()
        await asyncio.gather(*(_write(store, ref) for ref in refs))
        seconds = time.monotonic() - began
        ticking.cancel()
        for ref in refs:
            found = [record.json() async for record in store.records(ref)]
            assert [(each["turn"], each["n"]) for each in found] == [(t, n) for t in range(_TURNS) for n in range(_RECORDS)]
    stalls.sort()
    middle, most = (f"{stalls[int(len(stalls) * part)] * 1000:.1f} ms" for part in (0.5, 0.99))
    long = sum(each > _LONG for each in stalls)
    print(
        f"| {options['engine']} | {seconds:.1f} | {middle} | {most} | {stalls[-1] * 1000:.0f} ms | {long} of {len(stalls):,} |"
    )


async def _write(store: AsyncObjectTranscriptStore, ref: TranscriptRef) -> None:
    async with store.writer(ref) as writer:
        for turn in range(_TURNS):
            for n in range(_RECORDS):
                await writer.append({"turn": turn, "n": n, "text": "x" * 1000})
            await writer.flush()
            await asyncio.sleep(0.05)


async def _tick(stalls: list[float]) -> None:
    last = time.monotonic()
    while True:
        await asyncio.sleep(_TICK)
        now = time.monotonic()
        stalls.append(now - last - _TICK)
        last = now


if __name__ == "__main__":
    main()
