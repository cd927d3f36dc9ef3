"""Runs actors on one store in memory, one storage operation at a time, in an order and with faults that a seed decides."""

from __future__ import annotations

import enum
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from random import Random
from typing import TypeVar

from greenlet import GreenletExit, getcurrent, greenlet
from simulation.facts import NAMES, REF, Delete, Facts
from simulation.outcome import Violation, carry_out, in_story

from transcript_backends import ObjectTranscriptStore
from transcript_backends.container import Container
from transcript_backends.drivers.driver import Body, Failure, Meaning, ObjectInfo, Page, PutMode, delete_versions
from transcript_backends.drivers.memory import MemoryObjectStore
from transcript_backends.drivers.walks import walk
from transcript_backends.drivers.wrappers import InjectedError, WrapperObjectStore
from transcript_backends.keys import MarkerKey

_T = TypeVar("_T")

_MOST_STEPS = 6000  # a schedule that takes more is a livelock
_EPOCH = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Fate(enum.Enum):
    """What becomes of an operation."""

    DONE = ""
    FAILS = "fails"
    ANSWER_LOST = "answer lost"
    LATE = "times out, lands late"
    DIES_BEFORE = "dies before"
    DIES_AFTER = "dies after"
    DIES_LATE = "dies, lands late"
    CUT = "connection cut"
    GARBLED = "another byte"


_ANSWERED = {Fate.DONE, Fate.CUT, Fate.GARBLED}
_LOST = {Fate.ANSWER_LOST, Fate.LATE}
_DEADLY = {Fate.DIES_AFTER, Fate.DIES_LATE}
_IN_FLIGHT = {Fate.LATE, Fate.DIES_LATE}
_WRITES = {"put", "delete"}


@dataclass
class Weather:
    """How often things go wrong: chances for each operation, and of those for each delete to be carried out late."""

    failure: float = 0.0
    death: float = 0.0
    outage: float = 0.0
    late_delete: float = 0.0


class Actor:
    """A process of its own, with its own store and clock. It is a `Clock` itself."""

    def __init__(self, scheduler: Scheduler, name: str, work: Callable[[Actor], None]) -> None:
        self.name = name
        self.scheduler = scheduler
        self.random = scheduler.random
        self.facts = scheduler.facts
        self.store = ObjectTranscriptStore(Container(ActorDriver(self), clock=self, parallel=1))
        self.mortal = True
        self.compacts = False  # and may get another byte than is stored: what it makes of that stays
        self.slow = self.random.random() < 0.25
        self.dead = False
        self.faults = 0
        self.garbled = 0
        self.outage = 0
        self.delete: Delete | None = None
        self.writer_id = name.replace("write ", "w")
        self.next: tuple[str, str] = ("", "")
        self._slept = 0.0
        self.greenlet = greenlet(lambda: work(self))

    def monotonic(self) -> float:
        return self.scheduler.seconds + self._slept

    def sleep(self, seconds: float) -> None:
        self._slept += seconds

    def jitter(self) -> float:
        return self.random.random()

    def wait(self, operation: str, key: str) -> Fate:
        """Stand before an operation until the scheduler lets it go on."""
        if self.dead:
            raise GreenletExit  # the dead do nothing, whatever their code has in its finally clauses
        assert getcurrent() is self.greenlet, "the library made a request from a thread; a simulation needs it sequential"
        self.next = (operation, key)
        fate: Fate = self.scheduler.greenlet.switch()
        self.faults += fate is not Fate.DONE
        self.garbled += fate is Fate.GARBLED
        return fate

    def dies(self) -> None:
        self.dead = True
        self.facts.repairs(self.name, ())
        if self.delete:
            self.facts.delete_ends(self.delete, finished=False)
            self.delete = None


class TreeObjectStore(MemoryObjectStore):
    """A store that is a directory tree. Directories stay."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(now=now)
        self.capabilities = replace(self.capabilities, one_pass=False)
        self._directories = {""}

    def put(self, key: str, body: bytes, *, mode: PutMode, metadata: Mapping[str, str]) -> str:
        version = super().put(key, body, mode=mode, metadata=metadata)
        self._directories |= {key[: at + 1] for at, letter in enumerate(key) if letter == "/"}
        return version

    def names(self, prefix: str) -> list[str]:
        """What is in a directory."""
        keys = [*self._directories, *(each.key for each in super().list_page(prefix).objects)]
        rest = (key.removeprefix(prefix) for key in keys if key.startswith(prefix))
        return [each for each in rest if each and "/" not in each[:-1]]


class ActorDriver(WrapperObjectStore):
    """The store as one actor sees it."""

    def __init__(self, actor: Actor) -> None:
        super().__init__(actor.scheduler.memory)
        self._actor = actor

    def _around(self, operation: str, key: str, request: Callable[[], _T]) -> _T:
        actor = self._actor
        if operation != "delete":
            actor.facts.repairs(actor.name, ())
        fate = actor.wait(operation, key)
        if fate is Fate.FAILS:
            raise InjectedError(Meaning.TRY_AGAIN)
        try:
            if fate in _IN_FLIGHT:
                actor.scheduler.send_late(actor, operation, key, request)
            else:
                answer = request()
        except Exception:
            if fate in _ANSWERED:
                raise
        if fate in _DEADLY:
            actor.dies()
            raise GreenletExit
        if fate in _LOST:
            raise InjectedError(Meaning.TRY_AGAIN)
        if fate is Fate.GARBLED:
            return _garbled(answer, actor.random)  # type: ignore[return-value, arg-type]
        return answer if fate is Fate.DONE else _cut_short(answer)  # type: ignore[return-value, arg-type]

    def put(self, key: str, body: bytes, *, mode: PutMode, metadata: Mapping[str, str]) -> str:
        if self._actor.delete and key.startswith(f"{NAMES.prefix}events/deleted-"):
            self._actor.delete.takes_in = False

        if self._actor.delete and key.startswith(f"{NAMES.prefix}events/deleting-"):
            self._actor.delete.has_begun = True

        def store() -> str:
            version = self.inner.put(key, body, mode=mode, metadata=metadata)
            self._actor.facts.stored(key, body)
            return version

        return self._around("put", key, store)

    def list_page(self, prefix: str, *, start_after: str = "", token: str | None = None) -> Page:
        if not isinstance(self.inner, TreeObjectStore):
            return super().list_page(prefix, start_after=start_after, token=token)
        now = self._actor.scheduler.now()
        return Page(list(walk(self._look_into, prefix, start_after)), None, now)

    def _look_into(self, prefix: str) -> tuple[list[str], Callable[[str], ObjectInfo | None]]:
        """As `walks.LookInto`: time passes between the names and the files."""
        tree = self.inner
        assert isinstance(tree, TreeObjectStore)

        def see(name: str) -> ObjectInfo | None:
            def look() -> ObjectInfo | None:
                return next((each for each in tree.list_page(prefix).objects if each.key == prefix + name), None)

            return self._around("see", prefix + name, look) if self._actor.random.random() < 0.5 else look()

        return self._around("names", prefix, lambda: tree.names(prefix)), see

    def delete_many(self, keys: Sequence[str], *, versions: Mapping[str, str] | None = None) -> Mapping[str, Exception]:
        failed: dict[str, Exception] = {}
        if self._actor.name.startswith("repair"):
            self._actor.facts.repairs(self._actor.name, keys)
        with self._actor.scheduler.deleting(keys):
            for key in self._actor.random.sample(keys, len(keys)):
                if self._actor.delete and self._actor.delete.has_begun and not isinstance(NAMES.parse(key), MarkerKey):
                    self._actor.delete.takes_in = False
                try:
                    self._around("delete", key, partial(self._remove, key, versions))
                except InjectedError as error:
                    if self._actor.random.random() < 0.5:
                        raise
                    failed[key] = error
        return failed

    def _remove(self, key: str, versions: Mapping[str, str] | None) -> None:
        delete_versions(self.inner, [key], versions)
        try:
            self.inner.head(key)
        except KeyError:
            self._actor.facts.removed(key)

    def classify(self, error: Exception) -> Failure | None:
        return Failure(error.meaning, "injected") if isinstance(error, InjectedError) else super().classify(error)


def _cut_short(body: Body) -> Body:
    """A body that breaks off."""
    received = body.stream.read(1 << 20)
    pieces = iter([received[: len(received) // 2]])

    class Stream:
        def read(self, size: int, /) -> bytes:
            piece = next(pieces, b"")
            if not piece:
                raise InjectedError(Meaning.TRY_AGAIN)
            return piece

        def close(self) -> None:
            pass

    return body._replace(stream=Stream())


def _garbled(body: Body, random: Random) -> Body:
    """A body in which one bit of one byte is not what is stored."""
    received = bytearray(body.stream.read(1 << 20))
    if received:
        received[random.randrange(len(received))] ^= 1 << random.randrange(7)
    return body._replace(stream=io.BytesIO(received))


class Scheduler:
    """One schedule.

    Args:
        random: decides all that may happen this way or that.
        page_size: of listings; None: the store is a directory tree.
        conditional: the store deletes one version of an object, where that is asked for.
        weather: how often things go wrong.
    """

    def __init__(self, random: Random, page_size: int | None, weather: Weather, *, conditional: bool) -> None:
        self.random = random
        self.weather = weather
        self.facts = Facts()
        self.seconds = 0.0
        self.is_unsteady = random.random() < 0.4
        self.server_ahead = 0
        self.memory = MemoryObjectStore(page_size=page_size, now=self.now) if page_size else TreeObjectStore(self.now)
        self.memory.capabilities = replace(self.memory.capabilities, conditional_delete=conditional)
        self.actors: list[Actor] = []
        self.late: list[tuple[str, str, Callable[[], object]]] = []
        self.trace: list[tuple[float, str, str, str, Fate]] = []
        self.greenlet = getcurrent()

    def now(self) -> datetime:
        """By the server's clock, which may step."""
        return _EPOCH + timedelta(seconds=int(self.seconds) + self.server_ahead)

    def start(self, name: str, work: Callable[[Actor], None]) -> Actor:
        actor = Actor(self, name, work)
        self.actors.append(actor)
        self._go_on(actor)
        return actor

    def step(self) -> None:
        """One operation of one actor; sometimes of one that is long gone."""
        if len(self.trace) > _MOST_STEPS:
            raise Violation(f"no end after {_MOST_STEPS} steps: {[each.name for each in self.actors]}")
        self.seconds += self.random.random() * 0.5
        if self.is_unsteady and self.random.random() < 0.03:
            self.server_ahead = self.random.choice((-600, -300, -60, 0, 0, 300))
            self.trace.append((self.seconds, f"the server's clock is {self.server_ahead} s ahead", "", "", Fate.DONE))
        if self.late and self.random.random() < 0.05:
            self.land(self.random.randrange(len(self.late)))
            return
        actor = self.random.choice(self.actors)
        if actor.slow and self.random.random() < 0.7:
            actor = self.random.choice(self.actors)
        for _ in range(self.random.choice((1, 1, 1, 6))):
            fate = self._fate(actor)
            self.trace.append((self.seconds, actor.name, *actor.next, fate))
            if fate is Fate.DIES_BEFORE:
                self.kill(actor)
            else:
                self._go_on(actor, fate)
            if actor not in self.actors:
                break

    def run_out(self, weather: Weather | None = None) -> None:
        """Let everybody come to an end; undisturbed, if no weather is given."""
        self.weather = weather or Weather()
        while self.actors:
            self.step()

    def deleting(self, keys: Sequence[str]) -> AbstractContextManager[None]:
        """Some keys are being deleted, inside."""
        return self.facts.unconditional([] if self.memory.capabilities.conditional_delete else keys)

    def send_late(self, actor: Actor, operation: str, key: str, request: Callable[[], object]) -> None:
        """A request is in flight, until it lands."""
        stack = ExitStack()
        if operation == "delete":
            stack.enter_context(self.deleting([key]))
        is_of_delete, births = operation == "delete" and actor.delete is not None, self.facts.births[key]

        def carry_out() -> None:
            with stack:
                if is_of_delete and births == self.facts.births[key]:
                    self.facts.outlived(key)
                request()

        self.late.append((f"{actor.name}'s late {operation}", key, carry_out))

    def land(self, index: int) -> None:
        """A request that was in flight reaches the store."""
        name, key, request = self.late.pop(index)
        self.trace.append((self.seconds, name, "", key, Fate.DONE))
        carry_out(request, self.memory.classify)

    def pass_hours(self) -> None:
        """More than an hour goes by, for all clocks: unless somebody reads, since no listing and no request takes that long."""
        if not self.facts.looks:
            while self.late:
                self.land(0)
            self.seconds += 3700
            for actor in self.actors:
                actor.faults += 1  # its deadlines are over
            self.trace.append((self.seconds, "an hour passes", "", "", Fate.DONE))

    def kill(self, actor: Actor) -> None:
        actor.dies()
        actor.greenlet.throw(GreenletExit)
        self.actors.remove(actor)

    def story(self) -> str:
        """All that happened, a line for each step."""
        steps = ((*step, in_story(key).removeprefix(REF.prefix), fate) for *step, key, fate in self.trace)
        return "\n".join(
            f"{number:5} {seconds:8.1f} s  {name:24} {operation:9} {key:60} {fate.value}".rstrip()
            for number, (seconds, name, operation, key, fate) in enumerate(steps)
        )

    def _go_on(self, actor: Actor, *fate: Fate) -> None:
        actor.greenlet.switch(*fate)
        if actor.greenlet.dead:
            self.actors.remove(actor)

    def _fate(self, actor: Actor) -> Fate:
        weather, operation = self.weather, actor.next[0]
        if actor.outage:
            actor.outage -= 1
            return self.random.choice((Fate.FAILS, Fate.ANSWER_LOST))
        chance = self.random.random()
        if operation == "see":
            return Fate.DONE
        if operation == "delete" and self.random.random() < weather.late_delete:
            return Fate.DIES_LATE if actor.mortal and chance < 0.5 else Fate.LATE
        if chance < weather.death and actor.mortal:
            fates = [Fate.DIES_BEFORE, Fate.DIES_AFTER] + [Fate.DIES_LATE] * (operation in _WRITES)
            return self.random.choice(fates)
        if chance > 1 - weather.failure:
            fates = [Fate.FAILS, Fate.ANSWER_LOST] + [Fate.LATE] * (operation in _WRITES) + [Fate.CUT] * (operation == "get")
            fates += [Fate.GARBLED] * 2 * (operation == "get" and actor.compacts)
            return self.random.choice(fates)
        if self.random.random() < weather.outage:
            actor.outage = self.random.randint(10, 25)
        return Fate.DONE
