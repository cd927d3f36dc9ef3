"""Session entries: the lines of a transcript as typed values, and what a session is that is made of them."""

from transcript_backends.entries.compaction import SessionCompaction
from transcript_backends.entries.tree import EntryProblem, Node, SessionTree, ToolCall, Totals, estimate_tokens
from transcript_backends.entries.types import (
    CompactionEntry,
    Entry,
    MessageEntry,
    RawEntry,
    SessionEntry,
    SummaryEntry,
    ToolResultEntry,
    ToolUseEntry,
    decode,
    encode,
)

__all__ = [
    "CompactionEntry",
    "Entry",
    "EntryProblem",
    "MessageEntry",
    "Node",
    "RawEntry",
    "SessionCompaction",
    "SessionEntry",
    "SessionTree",
    "SummaryEntry",
    "ToolCall",
    "ToolResultEntry",
    "ToolUseEntry",
    "Totals",
    "decode",
    "encode",
    "estimate_tokens",
]
