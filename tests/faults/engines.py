"""Both engines, for the tests of faults that import these fixtures."""

from __future__ import annotations

import importlib.util

import pytest

from transcript_backends import ObjectTranscriptStore

HAS_OBSTORE = importlib.util.find_spec("obstore") is not None  # there is none for Python 3.10


@pytest.fixture(name="engine", params=["sdk", "auto"] if HAS_OBSTORE else ["sdk"])
def sdk_and_auto(request: pytest.FixtureRequest) -> str:
    """``auto`` is obstore, but for settings that it can't follow."""
    return str(request.param)


@pytest.fixture(name="engine", params=["sdk", "obstore"] if HAS_OBSTORE else ["sdk"])
def sdk_and_obstore(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def check_engine(store: ObjectTranscriptStore, engine: str) -> None:
    """See that a store without peculiar settings is served as the tests mean it to be."""
    assert ("Obstore" in type(store._container.driver).__name__) == (engine != "sdk")
