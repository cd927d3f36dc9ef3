"""What an agent keeps of a session between two runs: small documents that change, by user, session and key."""

from transcript_backends.state.store import ABSENT, Absent, StateStore

__all__ = ["ABSENT", "Absent", "StateStore"]
