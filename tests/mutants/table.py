"""docs/mutants.md: the results, a row for each mutation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from mutants.mutations import Mutation
from mutants.running import ROOT, Result

TABLE = ROOT / "docs/mutants.md"

_HEAD = """\
# Mutations

Each rule below was broken in the product, one at a time, and the tests named beside it were run: at least one must fail.
`make mutants` does all of it again and writes this page; `make mutants ONLY=listing` tries those whose area or rule has that in
it. The changes are in `tests/mutants/*.toml`, and a new one is four lines there.

"""
_COLUMNS = "| area | rule | noticed by | seconds |\n|---|---|---|---|\n"


def read(path: Path = TABLE) -> dict[tuple[str, str], str]:
    """Return the rows of the page by area and rule."""
    lines = path.read_text().splitlines() if path.exists() else []
    rows = (line for line in lines if line.startswith("| ") and not line.startswith("| area |"))
    return {(row.split(" | ")[0][2:], row.split(" | ")[1]): row for row in rows}


def write(results: Iterable[Result], mutations: Sequence[Mutation], path: Path = TABLE) -> None:
    """Put results on the page. Rows of other mutations stay; those of mutations that no longer exist do not."""
    rows = read(path)
    for each in results:
        by = (
            f"nothing: {each.by}"
            if each.verdict == "survived"
            else f"`{each.by}`"
            if each.verdict == "caught"
            else each.verdict
        )
        rows[each.mutation.area, each.mutation.name] = (
            f"| {each.mutation.area} | {each.mutation.name} | {by} | {each.seconds:.0f} |"
        )
    present = [rows[each.area, each.name] for each in mutations if (each.area, each.name) in rows]
    path.write_text(_HEAD + _COLUMNS + "".join(f"{row}\n" for row in present))
