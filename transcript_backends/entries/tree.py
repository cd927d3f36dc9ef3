"""`SessionTree`: what the entries of a session are together. Only ever reads records, and looks at each of them once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from transcript_backends.entries.types import (
    CompactionEntry,
    Entry,
    MessageEntry,
    RawEntry,
    SummaryEntry,
    ToolResultEntry,
    ToolUseEntry,
    decode,
)
from transcript_backends.errors import InvalidEntryError
from transcript_backends.records import Record

_ROLES = ("user", "assistant", "system", "tool")


class EntryProblem(NamedTuple):
    """Something that is not what it should be in a record. The rest of the session is readable all the same.

    Attributes:
        seq, writer_id: the record.
        member: of its entry; empty where it is the line as a whole.
        reason: what is wrong with it.
    """

    seq: int
    writer_id: str
    member: str
    reason: str


class Node(NamedTuple):
    """An entry of the tree, and the record that it came in."""

    seq: int
    writer_id: str
    entry: Entry


class ToolCall(NamedTuple):
    """A call of a tool and what came of it.

    Attributes:
        use: the call; None where only a result is there.
        results: none where the call is not answered (yet); several where it was answered again.
    """

    use: ToolUseEntry | None
    results: list[ToolResultEntry]


class Totals(NamedTuple):
    """What a session adds up to: numbers of entries, the bytes of their lines, and about how many tokens they say."""

    entries: int = 0
    messages: int = 0
    tool_calls: int = 0
    compactions: int = 0
    bytes: int = 0
    tokens: int = 0


def estimate_tokens(entry: Entry) -> int:
    """About how many tokens an entry has for a model: one for each four characters of its text."""
    return -(-len(entry.text) // 4)


class SessionTree:
    """The entries of a session, each once, and the views that are made of them.

    An id names one entry: of records that hold it again the first that was fed counts. What is wrong with records never
    hides the others; `problems` lists it.

    Args:
        count_tokens: for `totals`.
    """

    def __init__(self, *, count_tokens: Callable[[Entry], int] = estimate_tokens) -> None:
        self._count_tokens = count_tokens
        self._nodes: list[Node] = []
        self._is_sorted = True
        self._by_id: dict[str, Node] = {}
        self._nameless: set[tuple[int, str]] = set()  # records whose entries have no id
        self._children: dict[str, list[Node]] = {}
        self._loops: set[str] = set()  # ids of entries whose parent is not followed
        self._problems: dict[EntryProblem, None] = {}
        self._totals = Totals()

    def feed(self, records: Iterable[Record]) -> int:
        """Take in records, in any order and any number of times; gives how many entries are new. Costs those records only."""
        before = len(self._nodes)
        for record in records:
            self._take(record)
        return len(self._nodes) - before

    # --- views --------------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[Node]:
        """The entries with their records, in the order of the transcript."""
        return list(self._in_order())

    @property
    def entries(self) -> list[Entry]:
        """The entries in the order of the transcript."""
        return [node.entry for node in self._in_order()]

    @property
    def totals(self) -> Totals:
        """Kept while feeding: costs nothing."""
        return self._totals

    def context(self, leaf_id: str | None = None) -> list[Entry]:
        """What the model sees: all entries, or after a compaction its summary and the messages it kept, and later ones.

        The last compaction counts. Where the entry that it keeps first is not there, the messages after it are given. Entries
        of types that are not known are left out; where the path to a leaf has a `gap`, what is below it is given.

        Args:
            leaf_id: only look at the path to this entry, not at the whole session.
        """
        seen: list[Entry] = [each for each in self._chosen(leaf_id) if not isinstance(each, RawEntry)]
        place, compaction = _last_compaction(seen)
        if compaction is None:
            return seen
        kept = compaction.first_kept_entry_id
        start = next((number for number, each in enumerate(seen) if each.id == kept), place)
        summary = self._by_id.get(compaction.summary_entry_id)
        found: list[Entry] = [summary.entry] if summary and isinstance(summary.entry, SummaryEntry) else []
        return found + [each for each in seen[start:] if isinstance(each, MessageEntry)]

    def tool_calls(self, leaf_id: str | None = None) -> list[ToolCall]:
        """Each call with its results, in order of the calls; results without a call stand where they are.

        A result belongs to the call it follows, if that has its ``tool_call_id``; else to the last call before it that has,
        one without a result if there is such; else to the first one after it.

        Args:
            leaf_id: as for `context`.
        """
        pairing = _Pairing()
        for entry in self._chosen(leaf_id):
            if isinstance(entry, ToolUseEntry):
                pairing.add_use(entry)
            elif isinstance(entry, ToolResultEntry):
                pairing.add_result(entry)
        return pairing.calls

    def leaves(self) -> list[Entry]:
        """The entries that no other follows: the ends of the session's branches."""
        return [node.entry for node in self._in_order() if not node.entry.id or node.entry.id not in self._children]

    def path(self, leaf_id: str) -> list[Entry]:
        """The entries from the first one on down to this.

        Raises:
            KeyError: there is no such entry.
        """
        if leaf_id not in self._by_id:
            raise KeyError(f"no entry has the id {leaf_id!r}")
        found: list[Entry] = []
        node: Node | None = self._by_id[leaf_id]
        while node is not None:
            found.append(node.entry)
            node = self._parent(node.entry)
        return found[::-1]

    def gap(self, leaf_id: str) -> str | None:
        """The id at which `path` breaks off: the parent of its first entry, which is not there (yet) or leads in a circle.

        None where the path is whole.

        Raises:
            KeyError: there is no such entry.
        """
        return self.path(leaf_id)[0].parent_id

    def children(self, entry_id: str) -> list[Entry]:
        """The entries that follow this one, in the order of the transcript."""
        return [node.entry for node in sorted(self._children.get(entry_id, ()), key=_position)]

    def forks(self) -> list[Entry]:
        """The entries that several follow: where branches begin. `children` has those."""
        return [node.entry for node in self._in_order() if len(self._children.get(node.entry.id, ())) > 1]

    def orphans(self) -> list[Entry]:
        """The entries whose parent is not there (yet)."""
        return [node.entry for node in self._orphans()]

    def problems(self) -> list[EntryProblem]:
        """What is wrong with the records, in their order: lines, members, ids used twice, loops, and what refers to nothing."""
        return sorted([*self._problems, *self._dangling()], key=lambda each: (each.seq, each.writer_id.encode()))

    # --- inside -------------------------------------------------------------------------------------------------------

    def _in_order(self) -> list[Node]:
        if not self._is_sorted:
            self._nodes.sort(key=_position)
            self._is_sorted = True
        return self._nodes

    def _take(self, record: Record) -> None:
        entry = self._read(record)
        if entry is None:
            return
        node = Node(record.seq, record.writer_id, entry)
        if not self._is_new(node):
            return
        self._is_sorted = self._is_sorted and (not self._nodes or _position(self._nodes[-1]) <= _position(node))
        self._nodes.append(node)
        self._link(node)
        for member, reason in _faults(entry):
            self._report(node, member, reason)
        self._count(record, entry)

    def _read(self, record: Record) -> Entry | None:
        try:
            return decode(record.line)
        except InvalidEntryError as error:
            self._report(record, error.member, str(error).partition("; RawEntry")[0])
        try:
            return RawEntry.read(record.line)
        except InvalidEntryError:
            return None

    def _is_new(self, node: Node) -> bool:
        own = node.entry.id
        if not own:
            place = node.seq, node.writer_id
            is_new = place not in self._nameless
            self._nameless.add(place)
            return is_new
        known = self._by_id.setdefault(own, node)
        if known is not node and not known.entry.says_the_same(node.entry):  # replicas derive one entry, each at its own time
            self._report(
                node,
                "id",
                f"{own!r} is the id of another entry already, in record {known.seq} of {known.writer_id}, which counts",
            )
        return known is node

    def _link(self, node: Node) -> None:
        own, parent = node.entry.id, node.entry.parent_id
        if parent is None:
            return
        if own and (own == parent or own in self._children) and self._is_above(own, parent):
            self._loops.add(own)
            self._report(node, "parentId", f"{parent!r} follows this entry itself; it is taken for one without a parent")
        else:
            self._children.setdefault(parent, []).append(node)

    def _is_above(self, own: str, other: str) -> bool:
        """Whether an entry is the other one, or on the way up from it."""
        node = self._by_id.get(other)
        while node is not None and node.entry.id != own:
            node = self._parent(node.entry)
        return node is not None

    def _parent(self, entry: Entry) -> Node | None:
        return self._by_id.get(entry.parent_id) if entry.parent_id and entry.id not in self._loops else None

    def _count(self, record: Record, entry: Entry) -> None:
        old = self._totals
        self._totals = Totals(
            old.entries + 1,
            old.messages + isinstance(entry, MessageEntry),
            old.tool_calls + isinstance(entry, ToolUseEntry),
            old.compactions + isinstance(entry, CompactionEntry),
            old.bytes + len(record.line),
            old.tokens + self._count_tokens(entry),
        )

    def _report(self, place: Node | Record, member: str, reason: str) -> None:
        self._problems.setdefault(EntryProblem(place.seq, place.writer_id, member, reason))

    def _chosen(self, leaf_id: str | None) -> list[Entry]:
        return self.entries if leaf_id is None else self.path(leaf_id)

    def _orphans(self) -> list[Node]:
        return [each for each in self._in_order() if (parent := each.entry.parent_id) is not None and parent not in self._by_id]

    def _dangling(self) -> list[EntryProblem]:
        """Members that name entries or calls which are not there."""
        found = [(node, "parentId", f"no entry has the id {node.entry.parent_id!r}") for node in self._orphans()]
        calls = {each.tool_call_id for each in self.entries if isinstance(each, ToolUseEntry)}
        for node in self._in_order():
            entry = node.entry
            if isinstance(entry, ToolResultEntry) and entry.tool_call_id not in calls:
                found.append((node, "toolCallId", f"no call has the id {entry.tool_call_id!r}"))
            elif isinstance(entry, CompactionEntry):
                if entry.first_kept_entry_id not in self._by_id:
                    found.append((node, "firstKeptEntryId", f"no entry has the id {entry.first_kept_entry_id!r}"))
                summary = self._by_id.get(entry.summary_entry_id)
                if summary is None or not isinstance(summary.entry, SummaryEntry):
                    found.append((node, "summaryEntryId", f"no summary has the id {entry.summary_entry_id!r}"))
        return [EntryProblem(node.seq, node.writer_id, member, reason) for node, member, reason in found]


class _Pairing:
    """Brings results to their calls."""

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        self._by_call_id: dict[str, list[ToolCall]] = {}
        self._early: dict[str, list[ToolCall]] = {}  # results that came before their call

    def add_use(self, use: ToolUseEntry) -> None:
        call = ToolCall(use, [])
        for early in self._early.pop(use.tool_call_id, ()):
            call.results.extend(early.results)
            self.calls.remove(early)
        self.calls.append(call)
        self._by_call_id.setdefault(use.tool_call_id, []).append(call)

    def add_result(self, result: ToolResultEntry) -> None:
        known = self._by_call_id.get(result.tool_call_id)
        if not known:
            early = ToolCall(None, [result])
            self.calls.append(early)
            self._early.setdefault(result.tool_call_id, []).append(early)
            return
        followed = (each for each in known if each.use is not None and each.use.id == result.parent_id)
        open_ones = (each for each in reversed(known) if not each.results)
        next(followed, next(open_ones, known[-1])).results.append(result)


def _position(node: Node) -> tuple[int, bytes]:
    return node.seq, node.writer_id.encode(errors="surrogatepass")


def _last_compaction(entries: list[Entry]) -> tuple[int, CompactionEntry | None]:
    for place in range(len(entries) - 1, -1, -1):
        entry = entries[place]
        if isinstance(entry, CompactionEntry):
            return place, entry
    return 0, None


def _faults(entry: Entry) -> list[tuple[str, str]]:
    """What is wrong with its members that does not keep it from being read."""
    found = []
    if isinstance(entry, RawEntry):
        if not entry.type:
            found.append(("type", "is missing; a session entry has one"))
        return found
    if not entry.id:
        found.append(("id", "is missing; nothing can follow this entry, and a copy of it is another one"))
    try:
        if entry.timestamp_ns is None:
            found.append(("timestamp", "is missing"))
    except InvalidEntryError as error:
        found.append(("timestamp", str(error)))
    if isinstance(entry, MessageEntry) and entry.speaker not in _ROLES:
        found.append(("role", f"{entry.role!r} is no role; known are {', '.join(_ROLES)}"))
    if isinstance(entry, (ToolUseEntry, ToolResultEntry)) and (entry.original_size or 0) < 0:
        found.append(("originalSize", f"{entry.original_size} is negative"))
    return found
