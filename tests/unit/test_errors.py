from __future__ import annotations

import inspect
import pickle

import pytest

import transcript_backends
from transcript_backends import errors

PARENTS = {
    "InvalidURLError": ValueError,
    "InvalidRefError": ValueError,
    "InvalidSegmentError": ValueError,
    "InvalidEntryError": ValueError,
    "InvalidEventError": ValueError,
    "StoreClosedError": ValueError,
    "SegmentNotFoundError": FileNotFoundError,
    "ContainerNotFoundError": FileNotFoundError,
    "SegmentConflictError": FileExistsError,
    "VersionConflictError": Exception,
    "AccessDeniedError": PermissionError,
    "StoreUnavailableError": ConnectionError,
    "UnexpectedResponseError": ConnectionError,
    "ConditionalWritesUnsupportedError": Exception,
    "CorruptSegmentError": Exception,
    "JournalError": OSError,
    "PartialDeleteError": Exception,
    "MissingExtraError": ImportError,
}
CLASSES = {name: each for name, each in vars(errors).items() if inspect.isclass(each) and issubclass(each, Exception)}


def test_every_error_is_in_the_table_and_exported():
    assert CLASSES.keys() == {*PARENTS, "TranscriptStoreError"}
    assert CLASSES.keys() <= set(transcript_backends.__all__)
    assert all(getattr(transcript_backends, name) is each for name, each in CLASSES.items())
    assert all(name in errors.__doc__ for name in CLASSES)


@pytest.mark.parametrize(("name", "parent"), PARENTS.items())
def test_an_error_is_ours_and_the_built_in_one(name, parent):
    assert issubclass(CLASSES[name], errors.TranscriptStoreError)
    assert issubclass(CLASSES[name], parent)


@pytest.mark.parametrize("name", CLASSES)
def test_an_error_says_its_message_and_survives_pickling(name):
    error = CLASSES[name]("what failed; what to do")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(error) == str(again) == "what failed; what to do"
    assert str(CLASSES[name]("")) == ""


def test_the_keys_that_are_left_survive_pickling():
    error = errors.PartialDeleteError("1 of 2 left", {"a/b": "denied"})
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.failed) == ("1 of 2 left", {"a/b": "denied"})
    assert errors.PartialDeleteError("x").failed == {}
