"""What the tests of faults share."""

from __future__ import annotations

import os
import random
import signal
import traceback
from collections.abc import Callable

from transcript_backends import ObjectTranscriptStore, TranscriptRef

REF = TranscriptRef("acme", "coder", "s1")
NAME = "0000000000000000000-0000000000000000000-w.jsonl"
KEY = f"p/acme/coder/s1/events/{NAME}"
OpenS3 = Callable[..., ObjectTranscriptStore]


class FakeClock:
    """Never waits: a pause is written down, and time passes by as much."""

    def __init__(self, seed: int = 7) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self._random = random.Random(seed)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def jitter(self) -> float:
        return self._random.random()


def run_forked(child: Callable[[], object]) -> int:
    """Run `child` in a forked process and give its exit status: 0 where it returned, 14 where it took half a minute."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(30)
            child()
            status = 0
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
