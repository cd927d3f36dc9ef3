"""How far a long command has come, on a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

Steps = Callable[[str, int], Callable[[int], None]]


@contextlib.contextmanager
def steps(*, shown: bool) -> Iterator[Steps]:
    """Gives a function that begins a step, given its name and its total, and gives a function that advances it.

    Draws on standard error, where that is a terminal, and leaves nothing behind.
    """
    if not (shown and sys.stderr is not None and sys.stderr.isatty()):
        yield lambda name, total: lambda amount: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:

        def begin(name: str, total: int) -> Callable[[int], None]:
            task = bars.add_task(name, total=total)
            return lambda amount: bars.advance(task, amount)

        yield begin


@contextlib.contextmanager
def tally(thing: str, *, shown: bool) -> Iterator[Callable[[], None]]:
    """Gives a function that counts one more ``thing``; drawn as `steps` are, below what is printed meanwhile."""
    if not (shown and sys.stderr is not None and sys.stderr.isatty()):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed} {task.description}"), TimeElapsedColumn())
    same_screen = sys.stdout is not None and sys.stdout.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=same_screen) as bars:
        task = bars.add_task(thing, total=None)
        yield lambda: bars.advance(task)
