"""S3 as people use it from Python: boto3, aiobotocore, the session manager of Strands, one file per session.

Each has connections for all that is under way at once, as a careful user would set it, and nothing else is changed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
from botocore.config import Config

from benchmarks.clients import AT_ONCE, Threaded, count_lines, parsed, prefix, segment_key
from benchmarks.places import ACCESS_KEY, SECRET_KEY, Place

_WHO = {"region_name": "us-east-1", "aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}


class Boto3(Threaded):
    """put_object, the paginator of list_objects_v2, get_object; threads."""

    def __init__(self, place: Place) -> None:
        config = Config(max_pool_connections=AT_ONCE)
        self.client = boto3.client("s3", endpoint_url=place.endpoint, config=config, **_WHO)
        self.bucket = place.container

    def append(self, session: str, seq: int, line: bytes) -> object:
        return self.client.put_object(Bucket=self.bucket, Key=segment_key(session, seq), Body=line, IfNoneMatch="*")

    def keys(self, session: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix(session))
        return [key for *_, key in parsed(each["Key"] for page in pages for each in page.get("Contents", ()))]

    def list(self, session: str) -> int:
        return len(self.keys(session))

    def get(self, key: str) -> bytes:
        return self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()

    def read(self, session: str) -> int:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return count_lines(pool.map(self.get, self.keys(session)))

    def close(self) -> None:
        self.client.close()


class WholeFile(Boto3):
    """Read, modify, write: the whole session is one object, which each append reads and writes again."""

    def append(self, session: str, seq: int, line: bytes) -> object:
        body = self._content(session) + line
        return self.client.put_object(Bucket=self.bucket, Key=prefix(session), Body=body)

    def _content(self, session: str) -> bytes:
        with contextlib.suppress(self.client.exceptions.NoSuchKey):
            return self.get(prefix(session))
        return b""

    def read(self, session: str) -> int:
        return count_lines([self._content(session)])


class Strands(Threaded):
    """S3SessionManager: an object per message, written whether or not it is there, read by a listing and threads."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._managers: dict[str, Any] = {}

    def _manager(self, session: str) -> Any:
        from strands.session.s3_session_manager import S3SessionManager
        from strands.types.session import SessionAgent

        if session not in self._managers:
            config = Config(max_pool_connections=AT_ONCE)
            manager = S3SessionManager(
                session,
                self._place.container,
                boto_session=boto3.Session(**_WHO),
                boto_client_config=config,
                endpoint_url=self._place.endpoint,
            )
            manager.create_agent(session, SessionAgent("agent", {}, {}))
            self._managers[session] = manager
        return self._managers[session]

    def append(self, session: str, seq: int, line: bytes) -> object:
        from strands.types.session import SessionMessage

        message = {"role": "user", "content": [{"text": line.decode()}]}
        return self._manager(session).create_message(session, "agent", SessionMessage.from_message(message, seq))

    def read(self, session: str) -> int:
        return len(self._manager(session).list_messages(session, "agent"))

    def close(self) -> None:
        for manager in self._managers.values():
            manager.client.close()


class Aiobotocore:
    """The same calls as boto3, on an event loop, 32 under way at once."""

    def __init__(self, place: Place) -> None:
        from aiobotocore.config import AioConfig
        from aiobotocore.session import get_session

        self._loop = asyncio.new_event_loop()
        self._stack = contextlib.AsyncExitStack()
        config = AioConfig(max_pool_connections=AT_ONCE)
        opening = get_session().create_client("s3", endpoint_url=place.endpoint, config=config, **_WHO)
        self._client = self._loop.run_until_complete(self._stack.enter_async_context(opening))
        self._bucket = place.container
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def _put(self, session: str, seq: int, line: bytes) -> None:
        async with self._slots:
            await self._client.put_object(Bucket=self._bucket, Key=segment_key(session, seq), Body=line, IfNoneMatch="*")

    async def _get(self, key: str) -> bytes:
        async with self._slots:
            answer = await self._client.get_object(Bucket=self._bucket, Key=key)
            return await answer["Body"].read()

    async def _keys(self, session: str) -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix(session))
        return [key for *_, key in parsed([each["Key"] async for page in pages for each in page.get("Contents", ())])]

    async def _gather(self, calls: Iterable[Any]) -> list[Any]:
        return await asyncio.gather(*calls)

    async def _read(self, session: str) -> list[bytes]:
        return await self._gather(map(self._get, await self._keys(session)))

    def append(self, session: str, seq: int, line: bytes) -> object:
        return self._loop.run_until_complete(self._put(session, seq, line))

    def append_all(self, session: str, seqs: Sequence[int], line: bytes) -> object:
        return self._loop.run_until_complete(self._gather(self._put(session, seq, line) for seq in seqs))

    def list(self, session: str) -> int:
        return len(self._loop.run_until_complete(self._keys(session)))

    def read(self, session: str) -> int:
        return count_lines(self._loop.run_until_complete(self._read(session)))

    def close(self) -> None:
        self._loop.run_until_complete(self._stack.aclose())
        self._loop.close()
