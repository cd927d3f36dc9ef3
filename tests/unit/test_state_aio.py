"""State documents for tasks, on asyncio and trio. That no name or parameter is forgotten: test_aio.py."""

from __future__ import annotations

import anyio
import pytest
from unit.setups import make

from transcript_backends import ABSENT, InvalidURLError, StoreClosedError, VersionConflictError
from transcript_backends.aio import AsyncStateStore, StateStore, open_store

pytestmark = pytest.mark.anyio
PLACE = ("u", "s", "k")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


async def test_tasks_that_count_forget_none(tmp_path):
    async with StateStore(f"file://{tmp_path}/p") as states, anyio.create_task_group() as tasks:

        async def count():
            for _ in range(5):
                await states.update(*PLACE, int, lambda number: (number or 0) + 1)
                await states.update_list(*PLACE, int, lambda items: [*items, len(items)])

        for _ in range(8):
            tasks.start_soon(count)
    async with StateStore(f"file://{tmp_path}/p") as states:
        assert await states.get(*PLACE, int) == 40
        assert await states.get_list(*PLACE, int) == list(range(40))


async def test_a_session_from_begin_to_end(tmp_path):
    states = await StateStore(f"file://{tmp_path}/p", max_attempts=2)
    version = await states.save_if_version(*PLACE, {"a": 1}, ABSENT)
    with pytest.raises(VersionConflictError):
        await states.save_if_version(*PLACE, {"a": 2}, ABSENT)
    assert await states.get_versioned(*PLACE, dict) == ({"a": 1}, version)
    listed = await states.save_list(*PLACE, [1])
    assert await states.get_list_versioned(*PLACE, int) == ([1], listed)
    assert (await states.exists("u", "s"), await states.list_session_ids("u")) == (True, ["s"])
    await states.delete(*PLACE)
    assert (await states.save(*PLACE, 1), await states.clear(), await states.clear())[1:] == (1, 0)
    assert [str(states), repr(states)] == [f"file://{tmp_path}/p", f"<AsyncStateStore file://{tmp_path}/p>"]
    await states.close()
    with pytest.raises(StoreClosedError):
        await states.get(*PLACE, int)


async def test_the_connections_of_an_open_store_are_shared(tmp_path):
    async with open_store(f"file://{tmp_path}/p") as store:
        async with StateStore(store.blocking) as states:
            await states.save(*PLACE, 1)
        assert await states.get(*PLACE, int) == 1
    assert AsyncStateStore(states.blocking, threads=2)._threads.most == 2
    assert await AsyncStateStore(type(states.blocking)(make().store)).get(*PLACE, int) is None


async def test_what_can_not_be_opened_is_said_when_it_is():
    with pytest.raises(InvalidURLError):
        await StateStore("nothing://x")
