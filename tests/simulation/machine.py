"""A simulated machine: processes with threads, and a disk that keeps only what was flushed when the power fails.

One thing happens at a time, in an order and with faults that a seed decides. Time passes between the steps.
"""

from __future__ import annotations

import enum
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from random import Random
from typing import TypeVar

from greenlet import GreenletExit, getcurrent, greenlet
from simulation.outcome import Violation, carry_out, in_story

from transcript_backends import ObjectTranscriptStore
from transcript_backends.container import Container
from transcript_backends.drivers.driver import Failure, Meaning
from transcript_backends.drivers.memory import MemoryObjectStore
from transcript_backends.drivers.wrappers import InjectedError, Operation, WrapperObjectStore

_T = TypeVar("_T")

_MOST_STEPS = 20_000  # a schedule that takes more is a livelock
_EPOCH = datetime(2026, 1, 1, tzinfo=timezone.utc)
_PAGE = 32  # bytes of a file that reach the disk together


class Fate(enum.Enum):
    """What becomes of a step."""

    DONE = ""
    FAILS = "fails"
    RESPONSE_LOST = "response lost"
    LATE = "times out, lands late"
    NO_SPACE = "no space"
    IO_ERROR = "I/O error"
    SHORT = "short"
    KILLED = "killed"
    KILLED_AFTER = "killed right after"
    POWER_CUT = "power cut"


_ERRNO = {Fate.NO_SPACE: errno.ENOSPC, Fate.IO_ERROR: errno.EIO}
_STORE = {"put", "get", "head", "list_page", "delete_many"}
_TAKES_SPACE = {"write", "flush", "flush_directory", "create", "link", "rename"}
_MAY_FAIL = {*_TAKES_SPACE, "truncate", "read", "unlink", "open"}


@dataclass
class Weather:
    """How often things go wrong: chances for each step.

    Attributes:
        store, store_outage: a request fails; many do, one after the other.
        disk, disk_outage: the same for a call on a file.
        death, power: a process is killed; all of them, and the disk forgets what was not flushed.
    """

    store: float = 0.0
    store_outage: float = 0.0
    disk: float = 0.0
    disk_outage: float = 0.0
    death: float = 0.0
    power: float = 0.0


# --- the disk ---------------------------------------------------------------------------------------------------------


class Inode:
    """A file: what processes see, and what the disk has."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.on_disk = bytearray()
        self.dirty: set[int] = set()
        self.lock: Description | None = None

    def append(self, data: bytes) -> None:
        self._touch(len(self.content), len(self.content) + len(data))
        self.content += data

    def truncate(self, size: int) -> None:
        self._touch(size, len(self.content))
        del self.content[size:]

    def _touch(self, start: int, stop: int) -> None:
        self.dirty.update(range(start // _PAGE, (stop + _PAGE - 1) // _PAGE + 1))

    def flush(self, pages: set[int]) -> None:
        """Some of what was changed reaches the disk; the rest never will, unless it is written again."""
        size = len(self.content) if pages else len(self.on_disk)
        del self.on_disk[size:]
        self.on_disk += bytes(size - len(self.on_disk))
        for page in pages & self.dirty:
            start = page * _PAGE
            piece = self.content[start : start + _PAGE][: max(size - start, 0)]
            self.on_disk[start : start + len(piece)] = piece
        self.dirty.clear()

    def lose_power(self, random: Random) -> None:
        self.flush({page for page in sorted(self.dirty) if random.random() < 0.5})
        self.content[:] = self.on_disk
        self.lock = None


@dataclass(eq=False)
class Description:
    """An open file, which forked processes share."""

    inode: Inode
    users: int = 1


class Directory:
    """Names: as processes see them, and as the disk has them."""

    def __init__(self) -> None:
        self.names: dict[str, Inode] = {}
        self._on_disk: dict[str, Inode] = {}
        self._changes: list[dict[str, Inode | None]] = []

    def set(self, change: dict[str, Inode | None]) -> None:
        _apply(self.names, change)
        self._changes.append(change)

    def flush(self) -> None:
        self._on_disk = dict(self.names)
        self._changes.clear()

    def lose_power(self, random: Random) -> None:
        for change in self._changes:
            if random.random() < 0.5:
                _apply(self._on_disk, change)
        self._changes.clear()
        for inode in {id(each): each for each in (*self._on_disk.values(), *self.names.values())}.values():
            inode.lose_power(random)
        self.names = dict(self._on_disk)


def _apply(names: dict[str, Inode], change: dict[str, Inode | None]) -> None:
    for name, inode in change.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


class SimulatedDisk:
    """One directory's files, as one process sees them: `machine.Disk`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world

    @property
    def _names(self) -> dict[str, Inode]:
        return self._world.directory.names

    def _call(self, operation: str, path: str, call: Callable[[], _T], partly: Callable[[], object] = lambda: None) -> _T:
        fate = self._world.pause(operation, path)
        if fate in _ERRNO:
            partly()
            self._process.disk_faults.append(operation)
            self._world.disk_faults += 1
            raise OSError(_ERRNO[fate], os.strerror(_ERRNO[fate]), path)
        result = call()
        if fate is Fate.KILLED_AFTER:
            raise GreenletExit
        return result

    def _inode(self, file: int) -> Inode:
        return self._process.descriptions[file].inode

    def _path(self, file: int) -> str:
        return next((name for name, inode in self._names.items() if inode is self._inode(file)), "a file without a name")

    def _open(self, inode: Inode) -> int:
        self._world.descriptors += 1
        self._process.descriptions[self._world.descriptors] = Description(inode)
        return self._world.descriptors

    def make_directory(self, path: str) -> None:
        pass

    def names(self, directory: str) -> list[str]:
        return sorted(os.path.basename(each) for each in self._names)

    def create(self, path: str) -> int:
        def create() -> int:
            if path in self._names:
                raise FileExistsError(errno.EEXIST, "exists", path)
            self._world.directory.set({path: Inode()})
            return self._open(self._names[path])

        return self._call("create", path, create)

    def open(self, path: str) -> int:
        def open_it() -> int:
            if path not in self._names:
                raise FileNotFoundError(errno.ENOENT, "missing", path)
            return self._open(self._names[path])

        return self._call("open", path, open_it)

    def lock(self, file: int) -> bool:
        self._world.pause("lock", self._path(file))
        description = self._process.descriptions[file]
        if description.inode.lock not in (None, description):
            return False
        description.inode.lock = description
        return True

    def is_at(self, file: int, path: str) -> bool:
        self._world.pause("stat", path)
        return self._names.get(path) is self._inode(file)

    def read(self, file: int) -> bytes:
        return self._call("read", self._path(file), lambda: bytes(self._inode(file).content))

    def write(self, file: int, data: memoryview) -> int:
        part = self._world.random.randrange(len(data))

        def write() -> int:
            size = part + 1 if self._world.fate is Fate.SHORT else len(data)
            self._inode(file).append(bytes(data[:size]))
            return size

        return self._call("write", self._path(file), write, lambda: self._inode(file).append(bytes(data[:part])))

    def truncate(self, file: int, size: int) -> None:
        self._call("truncate", self._path(file), lambda: self._inode(file).truncate(size))

    def flush(self, file: int) -> None:
        inode = self._inode(file)
        random = self._world.random
        self._call(
            "flush",
            self._path(file),
            lambda: inode.flush(set(inode.dirty)),
            lambda: inode.flush({page for page in sorted(inode.dirty) if random.random() < 0.5}),
        )

    def flush_directory(self, path: str) -> None:
        self._call("flush_directory", path, self._world.directory.flush)

    def link(self, path: str, name: str) -> None:
        def link() -> None:
            if name in self._names:
                raise FileExistsError(errno.EEXIST, "exists", name)
            self._world.directory.set({name: self._named(path)})

        self._call("link", name, link)

    def rename(self, path: str, name: str) -> None:
        self._call("rename", name, lambda: self._world.directory.set({path: None, name: self._named(path)}))

    def unlink(self, path: str) -> None:
        self._call("unlink", path, lambda: self._named(path) and self._world.directory.set({path: None}))

    def _named(self, path: str) -> Inode:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "missing", path)
        return self._names[path]

    def close(self, file: int) -> None:
        self._process.close(file)


# --- processes --------------------------------------------------------------------------------------------------------


class Thread:
    """A thread of a process: `machine.Thread`."""

    def __init__(self, process: Process, name: str, run: Callable[[], None]) -> None:
        self.process, self.name = process, name
        self.next: tuple[str, str] = ("start", "")
        self.ready: Callable[[], bool] | None = None  # None: it is; else: when this says so, or it is time
        self.wakes_at: float | None = None
        self.error: BaseException | None = None
        self.greenlet = greenlet(lambda: self._run(run), process.world.greenlet)
        process.world.threads.append(self)

    def _run(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:
            self.error = error

    def may_run(self, now: float) -> bool:
        return self.ready is None or self.ready() or (self.wakes_at is not None and now >= self.wakes_at)

    def join(self, timeout: float | None = None) -> None:
        self.process.world.block("join", self.name, lambda: self.greenlet.dead, timeout)


class SimulatedCondition:
    """`machine.Condition`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._owner: object = None
        self._waiting: set[object] = set()

    def __enter__(self) -> bool:
        if self._world.random.random() < 0.3:
            self._world.pause("acquire", "")
        self._acquire()
        return True

    def _acquire(self) -> None:
        me = getcurrent()
        assert self._owner is not me, "a lock that its owner waits for"
        if self._owner is not None:
            self._world.block("acquire", "", lambda: self._owner is None)
        self._owner = me

    def __exit__(self, *exc_info: object) -> None:
        if self._owner is getcurrent():
            self._owner = None

    def wait(self, timeout: float | None = None) -> bool:
        ticket = object()
        self._waiting.add(ticket)
        self._owner = None
        self._world.block("wait", "", lambda: ticket not in self._waiting, timeout)
        was_notified = ticket not in self._waiting
        self._waiting.discard(ticket)
        self._acquire()
        return was_notified

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        until = None if timeout is None else self._world.seconds + timeout
        while not predicate():
            if until is not None and self._world.seconds >= until:
                return False
            self.wait(None if until is None else until - self._world.seconds)
        return True

    def notify_all(self) -> None:
        self._waiting.clear()


class Process:
    """A process with a store of its own: a `Clock` and a `machine.Machine`."""

    def __init__(self, world: World, name: str, work: Callable[[Process], None]) -> None:
        self.world, self.name, self.random = world, name, world.random
        self.dead = False
        self.mortal = True
        self.deletes = False  # a transcript, at the moment
        self.disk = SimulatedDisk(self)
        self.descriptions: dict[int, Description] = {}
        self.disk_faults: list[str] = []
        self.store_faults = 0
        self.store = ObjectTranscriptStore(Container(ProcessDriver(self), clock=self, parallel=1))
        self.start("main", lambda: work(self))

    def condition(self) -> SimulatedCondition:
        return SimulatedCondition(self.world)

    def start(self, name: str, run: Callable[[], None]) -> Thread:
        return Thread(self, f"{self.name}/{name.partition(' ')[0]}", run)

    def token(self) -> str:
        return f"{self.random.getrandbits(48):012x}"

    def monotonic(self) -> float:
        return self.world.seconds

    def sleep(self, seconds: float) -> None:
        self.world.block("sleep", "", lambda: False, seconds)

    def jitter(self) -> float:
        return self.random.random()

    def fork(self, name: str, work: Callable[[Process], None]) -> Process:
        """Another process that shares the open files."""
        child = Process(self.world, name, work)
        for number, description in self.descriptions.items():
            description.users += 1
            child.descriptions[number] = description
        return child

    def close(self, file: int) -> None:
        description = self.descriptions.pop(file)
        description.users -= 1
        if not description.users and description.inode.lock is description:
            description.inode.lock = None


class ProcessDriver(WrapperObjectStore):
    """The store as one process sees it."""

    def __init__(self, process: Process) -> None:
        super().__init__(process.world.memory)
        self._process = process

    def _around(self, operation: Operation, key: str, request: Callable[[], _T]) -> _T:
        world = self._process.world
        for tell in world.on_request:
            tell(operation, key)
        fate = world.pause(operation, key)
        if fate is Fate.FAILS:
            self._process.store_faults += 1
            raise InjectedError(Meaning.TRY_AGAIN)
        try:
            if fate is Fate.LATE:
                world.late.append((f"{self._process.name}'s late {operation}", key, request))
            else:
                result = request()
        except Exception:
            if fate is not Fate.RESPONSE_LOST:
                raise
        if fate in (Fate.LATE, Fate.RESPONSE_LOST):
            self._process.store_faults += 1
            raise InjectedError(Meaning.TRY_AGAIN)
        if fate is Fate.KILLED_AFTER:
            raise GreenletExit
        return result

    def classify(self, error: Exception) -> Failure | None:
        return Failure(error.meaning, "injected") if isinstance(error, InjectedError) else super().classify(error)


@dataclass
class World:
    """All processes, their disk and their store.

    Args:
        random: decides all that may happen this way or that.
        weather: how often things go wrong.
    """

    random: Random
    weather: Weather
    seconds: float = 0.0
    descriptors: int = 0
    fate: Fate = Fate.DONE
    power_cuts: int = 0
    threads: list[Thread] = field(default_factory=list)
    directory: Directory = field(default_factory=Directory)
    late: list[tuple[str, str, Callable[[], object]]] = field(default_factory=list)
    trace: list[tuple[float, str, str, str, Fate]] = field(default_factory=list)
    on_death: list[Callable[[Process, Fate], None]] = field(default_factory=list)
    on_request: list[Callable[[str, str], None]] = field(default_factory=list)
    disk_faults: int = 0

    def __post_init__(self) -> None:
        self.memory = MemoryObjectStore("world", page_size=3, now=self.now)
        self.greenlet = getcurrent()
        self._current: Thread | None = None
        self._outages = {"store": 0, "disk": 0}

    def now(self) -> datetime:
        return _EPOCH + timedelta(seconds=int(self.seconds))

    # --- in a thread --------------------------------------------------------------------------------------------------

    def pause(self, operation: str, what: str) -> Fate:
        """Stand before a step until the scheduler lets it go on."""
        return self.block(operation, what, None)

    def block(self, operation: str, what: str, ready: Callable[[], bool] | None, timeout: float | None = None) -> Fate:
        """Wait until something is so, or for some seconds."""
        thread = self._current
        assert thread is not None
        assert getcurrent() is thread.greenlet, "the library started a thread of its own"
        if thread.process.dead:
            raise GreenletExit  # the dead do nothing, whatever their code has in its finally clauses
        thread.next, thread.ready = (operation, what), ready
        thread.wakes_at = None if timeout is None else self.seconds + timeout
        self.greenlet.switch()
        return self.fate

    # --- the scheduler ------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One step of one thread, or a request that was in flight lands."""
        if len(self.trace) > _MOST_STEPS:
            raise Violation(f"no end after {_MOST_STEPS} steps: {[each.name for each in self.threads]}")
        self.seconds += self.random.random() * 0.2
        if self.late and self.random.random() < 0.05:
            return self.land(self.random.randrange(len(self.late)))
        running = [each for each in self.threads if each.may_run(self.seconds)]
        if not running:
            waking = [each.wakes_at for each in self.threads if each.wakes_at is not None]
            if not waking:
                raise Violation(f"hangs: {[(each.name, each.next) for each in self.threads]}")
            self.seconds = min(waking)
            return None
        thread = self.random.choice(running)
        self.fate = self._fate(thread)
        self.trace.append((self.seconds, thread.name, *thread.next, self.fate))
        if self.fate is Fate.POWER_CUT:
            return self.cut_power()
        if self.fate is Fate.KILLED:
            return self.kill(thread.process)
        return self._go_on(thread)

    def run_out(self, weather: Weather | None = None) -> None:
        """Let everybody come to an end; undisturbed, if no weather is given."""
        self.weather = weather or Weather()
        if weather is None:
            self._outages = {"store": 0, "disk": 0}
        while self.threads:
            self.step()

    def land(self, index: int) -> None:
        """A request that was in flight reaches the store."""
        name, key, request = self.late.pop(index)
        self.trace.append((self.seconds, name, "", key, Fate.DONE))
        carry_out(request, self.memory.classify)

    def kill(self, process: Process, fate: Fate = Fate.KILLED) -> None:
        """A process ends without a word."""
        if process.dead:
            return
        process.dead = True
        for tell in self.on_death:
            tell(process, fate)
        for file in list(process.descriptions):
            process.close(file)
        for thread in [each for each in self.threads if each.process is process]:
            self._current = thread
            thread.greenlet.throw(GreenletExit)
            self.threads.remove(thread)
        self._current = None

    def cut_power(self) -> None:
        self.power_cuts += 1
        for process in {id(each.process): each.process for each in self.threads}.values():
            self.kill(process, Fate.POWER_CUT)
        self.directory.lose_power(self.random)

    def _go_on(self, thread: Thread) -> None:
        """Let a thread do its step, and what follows up to its next one."""
        self._current = thread
        thread.ready, thread.wakes_at = None, None
        thread.greenlet.switch()
        self._current = None
        if self.fate is Fate.KILLED_AFTER:
            self.kill(thread.process)
        elif thread.greenlet.dead and thread in self.threads:
            self.threads.remove(thread)
            if thread.error is not None:
                raise thread.error
            if thread.name.endswith("/main"):  # the end of the process
                self.kill(thread.process)

    def _fate(self, thread: Thread) -> Fate:
        operation, weather, random = thread.next[0], self.weather, self.random
        is_store, is_disk = operation in _STORE, operation in _MAY_FAIL
        if thread.process.mortal and random.random() < weather.death:
            return Fate.KILLED_AFTER if (is_store or is_disk) and random.random() < 0.5 else Fate.KILLED
        if random.random() < weather.power:
            return Fate.POWER_CUT
        if not is_store and not is_disk:
            return Fate.DONE
        where, chance, outage = (
            ("store", weather.store, weather.store_outage) if is_store else ("disk", weather.disk, weather.disk_outage)
        )
        if random.random() < outage:
            self._outages[where] = random.randint(5, 40)
        is_away = self._outages[where] > 0
        self._outages[where] -= is_away
        if not is_away and random.random() >= chance:
            return Fate.SHORT if operation == "write" and random.random() < 0.1 else Fate.DONE
        if is_store:
            return random.choice([Fate.FAILS, Fate.RESPONSE_LOST] + [Fate.LATE] * (operation == "put"))
        return random.choice([Fate.IO_ERROR] + [Fate.NO_SPACE] * (operation in _TAKES_SPACE))

    def story(self) -> str:
        """All that happened, a line for each step."""
        return "\n".join(
            f"{number:5} {seconds:8.1f} s  {name:24} {operation:16} {in_story(what)[-70:]:70} {fate.value}".rstrip()
            for number, (seconds, name, operation, what, fate) in enumerate(self.trace)
        )
