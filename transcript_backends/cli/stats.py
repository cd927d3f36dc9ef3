"""``stats``: how large transcripts are, what it costs to read them, and what a compaction would save."""

from __future__ import annotations

import math
from collections.abc import Mapping
from heapq import nlargest
from typing import NamedTuple

import click

from transcript_backends import CompactionEstimate, CompactionPolicy, ObjectTranscriptStore, TranscriptRef
from transcript_backends.cli.choosing import Choice, go_through
from transcript_backends.cli.session import Session, count, examples, json_option, size, store_option
from transcript_backends.prices import PRICES, Prices, dollars, price_list

_PAGE = 1000  # objects that a listing gives at once, on most services
_LARGEST = 10


class _Held(NamedTuple):
    """What one transcript holds, or several together.

    Attributes:
        segments: how many there are, ``merged`` ones among them.
        size: their bytes.
        records: by the numbers in their names.
        gets, lists: requests of one full read.
        gets_after, lists_after: the same once it is compacted, at most.
    """

    segments: int = 0
    merged: int = 0
    size: int = 0
    records: int = 0
    gets: int = 0
    lists: int = 0
    gets_after: int = 0
    lists_after: int = 0


class _Found(NamedTuple):
    held: _Held = _Held()
    plan: CompactionEstimate = CompactionEstimate(0, 0)
    transcripts: int = 0

    def plus(self, other: _Found) -> _Found:
        held = _Held._make(map(sum, zip(self.held, other.held, strict=True)))
        plan = CompactionEstimate._make(map(sum, zip(self.plan, other.plan, strict=True)))
        return _Found(held, plan, self.transcripts + other.transcripts)


@click.command(
    epilog=examples("transcripts stats demo/agent/s1", "transcripts stats acme", "transcripts stats acme/coder/ --prices gcs")
)
@click.argument("what", metavar="[REF|TENANT|TENANT/AGENT/]", required=False)
@click.option("--prices", type=click.Choice(list(PRICES)), help="Whose prices to estimate by (default: the store's own).")
@click.option("--full", is_flag=True, help="Show what 'compact --full' would do, not what 'compact' would.")
@click.option("--jobs", metavar="N", type=click.IntRange(min=1), default=4, show_default=True, help="How many at once.")
@json_option
@store_option
@click.pass_obj
def stats(session: Session, what: str | None, prices: str | None, full: bool, jobs: int) -> None:
    """Show what REF holds and costs; for a tenant, its agent or the whole store, the sum and the ten largest.

    Reads no segment; makes two listings of each transcript. Dollars are estimates by list prices.
    """
    store = session.open_store()
    choice = _choose(store, what, jobs)
    total = _Found()
    largest: list[tuple[int, TranscriptRef, _Held]] = []

    def show(ref: TranscriptRef, found: _Found) -> None:
        nonlocal total, largest
        total = total.plus(found)
        largest = nlargest(_LARGEST, [*largest, (found.held.size, ref, found.held)])

    policy = CompactionPolicy(full=full)
    outcome = go_through(session, store, choice, lambda ref: _look(store, ref, policy), show)
    report = _Report(session, prices or price_list(str(store)))
    if not choice.named:
        report.several(what or str(store), total, [each[1:] for each in largest])
    elif total.transcripts:
        report.one(choice.named[0], total)
    outcome.end(session)


def _choose(store: ObjectTranscriptStore, what: str | None, jobs: int) -> Choice:
    """What the argument names. Two ids may be of an agent's session or of a tenant's agent: the session, if there is one."""
    named: list[TranscriptRef] = []
    tenant = agent = None
    if what is not None:
        ids = what.removesuffix("/").split("/")
        is_ref = len(ids) > 2 or (len(ids) == 2 and what[-1] != "/" and store.list_segments(TranscriptRef.parse(what)))
        if is_ref:
            named = [TranscriptRef.parse(what)]
        else:
            ref = TranscriptRef.parse("/".join([*ids, "any", "any"][:3]))
            tenant, agent = ref.tenant, ref.agent_id if len(ids) == 2 else None
    return Choice(named, tenant, agent, (1, 1), jobs)


def _look(store: ObjectTranscriptStore, ref: TranscriptRef, policy: CompactionPolicy) -> _Found | None:
    segments = store.list_segments(ref)
    if not segments:
        return None
    plan = store.estimate_compaction(ref, policy)
    merged = sum(each.name.generation is not None for each in segments)
    after = plan.segments_after if plan.puts else len(segments)
    merged_after = min(after, merged + plan.puts // 2)
    held = _Held(
        len(segments),
        merged,
        sum(each.size for each in segments),
        sum(each.seq_end - each.seq_start + 1 for each in segments),
        len(segments) + merged,  # an index comes along with each that is merged
        _pages(len(segments) + merged),
        after + merged_after,
        _pages(after + merged_after),
    )
    return _Found(held, plan, 1)


def _pages(objects: int) -> int:
    return max(1, -(-objects // _PAGE))


class _Report:
    """Shows what was found, in dollars too where there is a price list."""

    def __init__(self, session: Session, prices: str | None) -> None:
        self._session, self._name = session, prices
        self._prices: Prices | None = PRICES[prices] if prices else None

    def one(self, ref: TranscriptRef, found: _Found) -> None:
        if self._session.json:
            self._session.show("", ref=str(ref), **self._members(found))
        else:
            click.echo(f"{ref}: {_extent(found.held)}")
            self._show_costs(found)

    def several(self, name: str, found: _Found, largest: list[tuple[TranscriptRef, _Held]]) -> None:
        if self._session.json:
            tops = [{"ref": str(ref), **_extent_members(held)} for ref, held in largest]
            self._session.show("", of=name, transcripts=found.transcripts, **self._members(found), largest=tops)
            return
        click.echo(f"{name}: {count(found.transcripts, 'transcript')}, {_extent(found.held)}")
        self._show_costs(found)
        if largest:
            click.echo("largest:")
        for ref, held in largest:
            click.echo(f"  {ref}: {_extent(held)}")

    def _show_costs(self, found: _Found) -> None:
        held, plan, _ = found
        costs = self._costs(found)

        def line(label: str, text: str, cost: str = "") -> None:
            click.echo(f"  {label + ':':20}{text}" + (f", {dollars(costs[cost])}" if cost in costs else ""))

        line("a full read", _requests(gets=held.gets, lists=held.lists), "read")
        if plan.puts:
            requests = _requests(gets=plan.gets, puts=plan.puts, lists=plan.lists, deletes=plan.deletes)
            line("compacting", f"{count(plan.segments_before, 'segment')} -> {plan.segments_after}, {requests}", "compact")
            line("a full read then", f"at most {_requests(gets=held.gets_after, lists=held.lists_after)}", "read_after")
        else:
            line("compacting", "nothing to merge")
        if (saved := costs.get("read", 0) - costs.get("read_after", 0)) > 0:
            line("pays off after", count(math.ceil(costs["compact"] / saved), "read"))
        line("a month of storage", size(held.size), "storage")
        if self._prices:
            line("prices", f"{self._prices.title}, {self._prices.as_of}; estimates")

    def _members(self, found: _Found) -> dict[str, object]:
        held, plan, _ = found
        return {
            **_extent_members(held),
            "read": {"gets": held.gets, "lists": held.lists},
            "compact": plan._asdict(),
            "read_after": {"gets": held.gets_after, "lists": held.lists_after},
            "prices": self._name,
            "dollars": self._costs(found) or None,
        }

    def _costs(self, found: _Found) -> Mapping[str, float]:
        if not self._prices:
            return {}
        held, plan, _ = found
        return {
            "read": self._prices.requests(gets=held.gets, lists=held.lists, bytes_down=held.size),
            "compact": self._prices.requests(
                gets=plan.gets,
                puts=plan.puts,
                lists=plan.lists,
                bytes_up=plan.bytes_written,
                bytes_down=plan.bytes_written,
            ),
            "read_after": self._prices.requests(gets=held.gets_after, lists=held.lists_after, bytes_down=held.size),
            "storage": self._prices.storage(held.size),
        }


def _extent(held: _Held) -> str:
    about = "about " if held.merged else ""
    return (
        f"{count(held.segments, 'segment')} ({held.merged} merged), {size(held.size)}, {about}{count(held.records, 'record')}"
    )


def _extent_members(held: _Held) -> dict[str, int]:
    return {"segments": held.segments, "merged": held.merged, "size": held.size, "records": held.records}


def _requests(**numbers: int) -> str:
    return ", ".join(count(number, kind[:-1]) for kind, number in numbers.items())
