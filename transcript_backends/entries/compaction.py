"""`SessionCompaction`: shortens what the model sees of a session. The transcript only gets longer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transcript_backends.entries.tree import SessionTree
from transcript_backends.entries.types import CompactionEntry, Entry, MessageEntry, SummaryEntry
from transcript_backends.errors import InvalidEntryError

if TYPE_CHECKING:
    from transcript_backends.writing import TranscriptWriter


class SessionCompaction:
    """A compaction of the model's context that is to be made: what it takes out, and what it keeps.

    Nothing is deleted, so that the session can be replayed in full; only what `SessionTree.context` gives changes, once the
    tree is fed what was appended.

    Args:
        tree: the session.
        keep: how many of the last messages the model goes on seeing, at least; 1 or more.
        leaf_id: the branch that goes on; None for the whole session.

    Attributes:
        replaced: what the summary has to stand for, an earlier summary included.
        kept: the messages that stay.

    Raises:
        InvalidEntryError: there are no more messages than these; nothing would be taken out.
    """

    def __init__(self, tree: SessionTree, *, keep: int = 10, leaf_id: str | None = None) -> None:
        if keep < 1:
            raise ValueError(f"keep must be 1 or more, not {keep}")
        context = tree.context(leaf_id)
        places = [place for place, each in enumerate(context) if isinstance(each, MessageEntry)]
        start = places[-keep] if len(places) >= keep else 0
        while start and not (isinstance(context[start], MessageEntry) and context[start].id):
            start -= 1  # it has to be named
        if start == 0:
            raise InvalidEntryError(f"the context has no message before the last {keep} ones; there is nothing to compact")
        self.replaced: list[Entry] = context[:start]
        self.kept = [each for each in context[start:] if isinstance(each, MessageEntry)]
        ends = tree.entries if leaf_id is None else tree.path(leaf_id)
        self._parent_id = ends[-1].id or None

    def entries(self, summary: str, *, format: str = "structured") -> tuple[SummaryEntry, CompactionEntry]:  # noqa: A002
        """The two entries that make it, to be appended in this order."""
        first = SummaryEntry.new(summary, format=format, parent_id=self._parent_id)
        return first, CompactionEntry.new(self.kept[0].id, first)

    def append(self, writer: TranscriptWriter, summary: str, *, format: str = "structured") -> CompactionEntry:  # noqa: A002
        """Append them. The writer's `flush` makes them durable."""
        first, second = self.entries(summary, format=format)
        writer.append(first)
        writer.append(second)
        return second
