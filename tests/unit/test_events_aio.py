"""The log of events for tasks: everything the other one does, on asyncio and trio."""

from __future__ import annotations

import inspect

import anyio
import pytest
from unit.setups import REF, make

from transcript_backends import InvalidEventError
from transcript_backends.aio import AsyncObjectTranscriptStore
from transcript_backends.events import AgentMessage, EventLog, UserMessage, text
from transcript_backends.events.aio import AsyncEventLog, AsyncEventStream
from transcript_backends.events.log import EventStream

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture
def log():
    return AsyncEventLog(AsyncObjectTranscriptStore(make().store), REF)


def message(number):
    return AgentMessage(id=f"evt_{number}", content=text("hi"))


def ids(events):
    return [int(event.id.removeprefix("evt_")) for event in events]


async def test_events_are_sent_listed_and_streamed(log):
    sent = await log.append(message(number) for number in range(5))
    assert await log.append([message(3)]) == sent[3:4]
    page = await log.list(limit=2)
    assert (page.events, page.has_more) == (sent[:2], True)
    assert (await log.list(after=page.after)).events == sent[2:]
    assert ids((await log.list(order="desc", types={"agent.message"}, limit=1)).events) == [4]
    async with log.stream("evt_1", stop_when_idle=0, min_interval=0.001) as stream:
        assert ids([await anext(stream)]) == [2]
        cursor = stream.cursor
        assert ids([event async for event in stream]) == [3, 4]
    stream = await log.stream(cursor, stop_when_idle=0, min_interval=0.001)
    assert ids([event async for event in stream]) == [3, 4]
    with pytest.raises(InvalidEventError, match="can't send"):
        await log.send([message(9)])
    assert (await log.send([UserMessage(content=text("x"))]))[0].id.startswith("evt_")


async def test_a_stream_gives_what_another_task_sends_until_it_is_closed(log):
    found = []
    async with log.stream(min_interval=0.001, max_interval=0.01) as stream, anyio.create_task_group() as tasks:

        async def read():
            async for event in stream:
                found.append(event)
                if len(found) == 3:
                    await stream.close()

        tasks.start_soon(read)
        for number in range(3):
            await log.append([message(number)])
    assert ids(found) == [0, 1, 2]


@pytest.mark.parametrize(("there", "here"), [(EventLog, AsyncEventLog), (EventStream, AsyncEventStream)])
def test_every_name_and_parameter_of_the_other_face_is_here(there, here):
    public = {name for name in vars(there) if not name.startswith("_")} - {"after_fork"}
    assert public == {name for name in vars(here) if not name.startswith("_")} - {"aclose"}
    for name in public:
        ours, theirs = getattr(here, name), getattr(there, name)
        if callable(ours):
            assert inspect.signature(ours).parameters == inspect.signature(theirs).parameters
            assert inspect.iscoroutinefunction(ours) == (name != "stream")
        assert inspect.getdoc(ours)
