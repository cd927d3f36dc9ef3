"""Making new in a forked child what it must not share with its parent, or may have inherited in use."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class ForkAware(Protocol):
    """Has something to make new in a child."""

    def after_fork(self) -> None: ...


_told: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def tell_after_fork(each: ForkAware) -> None:
    """Call ``each.after_fork()`` in every child forked from now on, while ``each`` is alive."""
    _told.add(each)


def _tell() -> None:
    failed: list[Exception] = []
    for each in list(_told):
        try:
            each.after_fork()
        except Exception as error:  # the others need to know all the more
            failed.append(error)
    if failed:
        raise failed[0]  # which Python prints


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell)
