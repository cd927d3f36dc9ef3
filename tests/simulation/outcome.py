"""How a schedule may end."""

from __future__ import annotations

import re
from collections.abc import Callable


class Violation(AssertionError):
    """The library broke its contract."""


class FailedSchedule(Exception):
    """What went wrong, and the story of how."""

    def __init__(self, world: str, seed: int, error: Exception, story: str) -> None:
        self.reason = f"{world}, seed {seed}: {type(error).__name__}: {error}"
        super().__init__(f"{story}\n{self.reason}\nreplay: cd tests && ../.venv/bin/python -m simulation {seed} --of {world}")


def in_story(key: str) -> str:
    """A key as the story of a schedule shows it: without what is chosen at random outside of the seed."""
    return re.sub(r"\.probe-[0-9a-f]+", ".probe", key)


def carry_out(request: Callable[[], object], classify: Callable[[Exception], object]) -> None:
    """Have a request that was in flight reach the store; nobody hears of a refusal."""
    try:
        request()
    except Exception as error:
        if isinstance(error, Violation) or classify(error) is None:
            raise
