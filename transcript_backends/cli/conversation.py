"""A session as people read it: turn by turn, calls with their results, where branches and compactions begin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from transcript_backends import InvalidEntryError, Record
from transcript_backends.cli.rendering import ASIDE, CALL, describe, members, style_of
from transcript_backends.cli.session import size, visible
from transcript_backends.entries import (
    CompactionEntry,
    MessageEntry,
    Node,
    RawEntry,
    SessionTree,
    SummaryEntry,
    ToolCall,
    ToolResultEntry,
    ToolUseEntry,
    encode,
)

_LONGEST = 1000  # characters of a line, where lines are limited
_WIDTH = 100  # cells of an entry of a type that is not known, which is one line


class Conversation:
    """Tells a session, or one branch of it.

    Args:
        tree: the session.
        nodes: what to tell of it, in order.
        most_lines: how many lines of each text; None for all.
    """

    def __init__(self, tree: SessionTree, nodes: Sequence[Node], calls: Sequence[ToolCall], *, most_lines: int | None) -> None:
        self._tree, self._nodes, self._most_lines = tree, nodes, most_lines
        self._calls = {id(call.use): call for call in calls if call.use}
        self._told = {id(result) for call in self._calls.values() for result in call.results}
        self._seqs = {node.entry.id: node.seq for node in nodes}
        self._has_writers = len({node.writer_id for node in nodes}) > 1
        self._turn = 0

    def __iter__(self) -> Iterator[Text]:
        for node in self._nodes:
            if id(node.entry) not in self._told:
                yield from self._tell(node)

    def _tell(self, node: Node) -> Iterator[Text]:
        match node.entry:
            case MessageEntry() as entry:
                yield from self._begin(node, entry)
                yield self._heading(entry.speaker, node)
                yield from self._body(entry.content)
                yield from (_aside(f"[{each}]") for each in entry.block_types or ())
            case ToolUseEntry() as entry:
                yield self._call(entry.name, members(entry.input), node)
                yield from self._results(self._calls[id(entry)].results)
            case ToolResultEntry() as entry:
                yield self._call(entry.name, None, node)
                yield from self._results([entry])
            case SummaryEntry() as entry:
                yield self._heading("summary", node)
                yield from self._body(entry.summary)
            case CompactionEntry() as entry:
                first = self._seqs.get(entry.first_kept_entry_id)
                kept = "messages from here on" if first is None else f"messages from {first} on"
                yield _rule(f"compaction ({node.seq}): the model sees the summary, and {kept}")
            case RawEntry() as entry:
                yield describe(Record(node.seq, node.writer_id, encode(entry)), _WIDTH, with_writer=False)

    def _begin(self, node: Node, entry: MessageEntry) -> Iterator[Text]:
        """The lines between a message and what was before it."""
        siblings = self._tree.children(entry.parent_id) if entry.parent_id else []
        if any(each is not entry for each in siblings[:1]):
            yield _rule(f"branch: follows {self._seqs.get(entry.parent_id or '', entry.parent_id)} again")
        if entry.speaker == "user":
            self._turn += 1
            yield _rule(f"turn {self._turn}")

    def _results(self, results: Sequence[ToolResultEntry]) -> Iterator[Text]:
        if not results:
            yield _aside("[no result]")
        for number, each in enumerate(results, 1):
            if number > 1:
                yield _aside("[answered again]")
            yield from self._body(each.output)
            if each.truncated and each.original_size is not None:
                yield _aside(f"[cut from {size(each.original_size)}]")

    def _heading(self, kind: str, node: Node) -> Text:
        return Text.assemble((visible(kind), style_of(kind)), self._place(node))

    def _call(self, name: str, arguments: str | None, node: Node) -> Text:
        said = f"{name}({arguments})" if arguments is not None else f"{name}: a result without a call"
        return Text.assemble((visible(said), CALL), self._place(node))

    def _place(self, node: Node) -> tuple[str, str]:
        """The record and its time, to be read beside what it says."""
        try:
            moment = node.entry.timestamp
        except InvalidEntryError:
            moment = None
        time = f"  {moment:%Y-%m-%d %H:%M:%S}" if moment else ""
        writer = f"  {visible(node.writer_id)}" if self._has_writers else ""
        return f"  {node.seq}{time}{writer}", ASIDE

    def _body(self, text: str) -> Iterator[Text]:
        lines = text.strip("\n").split("\n") if text.strip() else []
        most = self._most_lines
        for line in lines[:most]:
            cut = line if most is None or len(line) <= _LONGEST else f"{line[:_LONGEST]} …"
            yield Text(f"  {visible(cut.expandtabs().rstrip())}".rstrip())
        if most is not None and len(lines) > most:
            yield _aside(f"[{len(lines) - most} more lines]")


def _rule(text: str) -> Text:
    return Text(f"\n── {visible(text)} ──", ASIDE)


def _aside(text: str) -> Text:
    return Text(f"  {visible(text)}", ASIDE)
