"""What names a transcript, and the context a store view is bound to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from transcript_backends import keys
from transcript_backends.errors import InvalidRefError

DEFAULT_TENANT = "default"


@dataclass(frozen=True, slots=True, order=True)
class TranscriptRef:
    """One session's transcript.

    Each part may be any non-blank text: it is escaped (`keys.Spelling`) where it becomes part of a storage key, so no id
    can leave its own prefix and no two ids share one.

    Raises:
        InvalidRefError: a part is blank, not text, not encodable as UTF-8, or over 255 bytes however it is written. (How a
            store writes it may take more: then the store refuses it.)
    """

    tenant: str
    agent_id: str
    session_id: str

    def __post_init__(self) -> None:
        for name in ("tenant", "agent_id", "session_id"):
            keys.RAW.write(getattr(self, name), name.replace("_", " "))

    @classmethod
    def parse(cls, text: str) -> TranscriptRef:
        """Read ``tenant/agent/session`` or ``agent/session`` (tenant ``default``), as written by ``str(ref)``.

        Characters that need no escape may stand for themselves: ``acme/coder/a b`` and ``acme/coder/a=20b`` name the
        same transcript. A literal ``=`` is written ``=3D``.

        Raises:
            InvalidRefError: not two or three parts, or a part can't be read.
        """
        parts = text.split("/") if isinstance(text, str) else []
        if len(parts) not in (2, 3):
            raise InvalidRefError(
                f"{text!r} does not name a transcript: write agent/session or tenant/agent/session "
                "(a '/' inside an id is written =2F)"
            )
        return cls(*[DEFAULT_TENANT] * (3 - len(parts)), *map(keys.unescape, parts))

    def __str__(self) -> str:
        return "/".join(map(keys.escape, (self.tenant, self.agent_id, self.session_id)))

    @property
    def prefix(self) -> str:
        """The key prefix of the transcript below the root of a store with ``ids=escaped``, with its final ``/``."""
        return f"{self}/"


@dataclass(frozen=True, slots=True)
class RuntimeContext:
    """What a request knows about its caller; fills the placeholders of a store URL.

    ``{user_id}``, ``{tenant}`` and ``{session_id}`` take the fields of that name, any other name is looked up in
    ``attributes``.
    """

    user_id: str | None = None
    tenant: str | None = None
    session_id: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", MappingProxyType(dict(self.attributes)))

    def __reduce__(self) -> tuple[type[RuntimeContext], tuple[object, ...]]:
        return type(self), (self.user_id, self.tenant, self.session_id, dict(self.attributes))  # a proxy can't be pickled

    def value(self, name: str) -> str | None:
        """The value a placeholder called ``name`` takes, None where the context has none."""
        if name in ("user_id", "tenant", "session_id"):
            found: str | None = getattr(self, name)
            return found
        return self.attributes.get(name)
