"""The mutations in the TOML files beside this one: rules of the product, each broken in one place.

::

    file = "transcript_backends/keys.py"      # of all that name no other

    [[mutation]]
    name = "an id of blanks is refused"       # the rule, as it holds
    old = '''if not value.strip():'''         # occurs once in the file; the shorter, the longer it stays true
    new = '''if not value:'''
    caught_by = ["tests/unit/test_keys.py::test_a_blank_id_is_refused_by_its_name"]

``schedules = 300`` has the simulation run as well, where those tests pass or there are none, of the ``world`` that is named:
``stores`` or ``writers``. ``survives`` gives the reason why
nothing can notice: for what is the same to everybody, and is worth saying.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DIRECTORY = Path(__file__).parent


class StaleError(Exception):
    """The code that a mutation changes no longer exists, or exists more than once."""


@dataclass(frozen=True)
class Mutation:
    """A rule of the product, and a change that breaks it.

    Attributes:
        area: the name of its TOML file.
        name: the rule, as it holds in the unchanged product.
        file: to change, relative to the root of the project; of the whole TOML file unless given.
        old, new: the text that is replaced, which must occur exactly once, and its replacement.
        caught_by: what pytest runs, as node ids; at least one test must fail.
        schedules: how many schedules of the simulation are run where those tests pass.
        world: of which of its worlds.
        survives: why no test can fail; empty: one must.
    """

    area: str
    name: str
    file: str
    old: str
    new: str
    caught_by: tuple[str, ...] = ()
    schedules: int = 0
    world: str = "stores"
    survives: str = ""

    def apply(self, text: str) -> str:
        """Return the text of the file with the change.

        Raises:
            StaleError: ``old`` does not occur exactly once.
        """
        if (count := text.count(self.old)) != 1:
            raise StaleError(f"{self.file} has {count} places like {self.old!r}: one is needed")
        return text.replace(self.old, self.new)


def load(directory: Path = DIRECTORY) -> list[Mutation]:
    """Return all mutations, in the order of their files."""
    found: list[Mutation] = []
    for path in sorted(directory.glob("*.toml")):
        content = tomllib.loads(path.read_text())
        for each in content["mutation"]:
            caught_by = tuple(each.pop("caught_by", ()))
            found.append(Mutation(path.stem, caught_by=caught_by, **{"file": content.get("file", ""), **each}))
    return found
