"""Session transcripts of agents on object storage: durable, cheap, safe with several writers.

The public names are loaded when first used, so importing the package costs next to nothing.
"""

from importlib import import_module as _import_module

TYPE_CHECKING = False  # typing's own constant would be this package's most expensive import
if TYPE_CHECKING:
    from transcript_backends.background import BackgroundCompactor, CompactionTotals
    from transcript_backends.catalog import Glance, Skipped, SkippedCount
    from transcript_backends.copying import CopyResult, copy_transcript
    from transcript_backends.deletion import DeleteResult
    from transcript_backends.diagnosis import Check, diagnose
    from transcript_backends.errors import (
        AccessDeniedError,
        ConditionalWritesUnsupportedError,
        ContainerNotFoundError,
        CorruptSegmentError,
        InvalidEntryError,
        InvalidEventError,
        InvalidRefError,
        InvalidSegmentError,
        InvalidURLError,
        JournalError,
        MissingExtraError,
        PartialDeleteError,
        SegmentConflictError,
        SegmentNotFoundError,
        StoreClosedError,
        StoreUnavailableError,
        TranscriptStoreError,
        UnexpectedResponseError,
        VersionConflictError,
    )
    from transcript_backends.listing import SegmentInfo
    from transcript_backends.object_store import ObjectTranscriptStore
    from transcript_backends.planning import CompactionEstimate
    from transcript_backends.records import Record, check_jsonl
    from transcript_backends.refs import RuntimeContext, TranscriptRef
    from transcript_backends.registry import Backend, open_store
    from transcript_backends.state.store import ABSENT, StateStore
    from transcript_backends.store import CompactionPolicy, CompactionResult, TranscriptStore
    from transcript_backends.stores import AzureTranscriptStore, FsspecTranscriptStore, GCSTranscriptStore, S3TranscriptStore
    from transcript_backends.verifying import Problem, VerifyReport

__version__ = "0.1.0"

__all__ = [
    "ABSENT",
    "AccessDeniedError",
    "AzureTranscriptStore",
    "Backend",
    "BackgroundCompactor",
    "Check",
    "CompactionEstimate",
    "CompactionPolicy",
    "CompactionResult",
    "CompactionTotals",
    "ConditionalWritesUnsupportedError",
    "ContainerNotFoundError",
    "CopyResult",
    "CorruptSegmentError",
    "DeleteResult",
    "FsspecTranscriptStore",
    "GCSTranscriptStore",
    "Glance",
    "InvalidEntryError",
    "InvalidEventError",
    "InvalidRefError",
    "InvalidSegmentError",
    "InvalidURLError",
    "JournalError",
    "MissingExtraError",
    "ObjectTranscriptStore",
    "PartialDeleteError",
    "Problem",
    "Record",
    "RuntimeContext",
    "S3TranscriptStore",
    "SegmentConflictError",
    "SegmentInfo",
    "SegmentNotFoundError",
    "Skipped",
    "SkippedCount",
    "StateStore",
    "StoreClosedError",
    "StoreUnavailableError",
    "TranscriptRef",
    "TranscriptStore",
    "TranscriptStoreError",
    "UnexpectedResponseError",
    "VerifyReport",
    "VersionConflictError",
    "check_jsonl",
    "copy_transcript",
    "diagnose",
    "open_store",
]

_HOMES = {
    "Glance": "catalog",
    "BackgroundCompactor": "background",
    "CompactionTotals": "background",
    "Skipped": "catalog",
    "SkippedCount": "catalog",
    "CopyResult": "copying",
    "copy_transcript": "copying",
    "DeleteResult": "deletion",
    "Check": "diagnosis",
    "diagnose": "diagnosis",
    "SegmentInfo": "listing",
    "ObjectTranscriptStore": "object_store",
    "CompactionEstimate": "planning",
    "Record": "records",
    "check_jsonl": "records",
    "RuntimeContext": "refs",
    "TranscriptRef": "refs",
    "Backend": "registry",
    "open_store": "registry",
    "ABSENT": "state.store",
    "StateStore": "state.store",
    "CompactionPolicy": "store",
    "CompactionResult": "store",
    "TranscriptStore": "store",
    "AzureTranscriptStore": "stores",
    "FsspecTranscriptStore": "stores",
    "GCSTranscriptStore": "stores",
    "S3TranscriptStore": "stores",
    "Problem": "verifying",
    "VerifyReport": "verifying",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(_import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
