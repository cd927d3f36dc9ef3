"""What the samples of a run say: medians over rounds, and ratios of what was measured in the same round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

Sample = dict[str, Any]
Figure = Callable[[Sample], float]


class Spread(NamedTuple):
    """A median, and the least and the most there was."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))


def rate(sample: Sample) -> float:
    """Operations a second."""
    return float(sample["operations"] / sample["seconds"])


def seconds(sample: Sample) -> float:
    """Of all operations together."""
    return float(sample["seconds"])


def cpu(sample: Sample) -> float:
    """Microseconds of the client's CPU for an operation."""
    return float(1e6 * sample["cpu_seconds"] / sample["operations"])


def requests(sample: Sample) -> float:
    """Requests for an operation, as the server counted them."""
    return float(sum(sample["requests"].values()) / sample["operations"])


def fact(name: str) -> Figure:
    """What a workload has noted."""
    return lambda sample: float(sample[name])


class Figures:
    """All samples of a run."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._found = {(each["workload"], each["client"], each["round"]): each for each in samples}

    def samples(self, workload: str, client: str) -> list[Sample]:
        """One for each round in which the client could do the work."""
        return [
            each
            for (work, name, _), each in self._found.items()
            if (work, name) == (workload, client) and "missing" not in each
        ]

    def missing(self, workload: str, client: str) -> str:
        """Why a client could not."""
        found = [each for (work, name, _), each in self._found.items() if (work, name) == (workload, client)]
        return str(found[0].get("missing", "")) if found else "not run"

    def values(self, workload: str, client: str, figure: Figure) -> list[float]:
        """One for each round that can tell."""
        return [value for each in self.samples(workload, client) for value in _known(figure, each)]

    def ratios(self, one: tuple[str, str], other: tuple[str, str], figure: Figure) -> list[float]:
        """Of a workload and client over another, round by round; nothing where one of them is missing."""
        others = {each["round"]: each for each in self.samples(*other)}
        return [figure(each) / figure(others[each["round"]]) for each in self.samples(*one) if each["round"] in others]


def _known(figure: Figure, sample: Sample) -> list[float]:
    """Nothing where a sample has not what the figure is made of: only the stub counts requests."""
    try:
        return [figure(sample)]
    except KeyError:
        return []
