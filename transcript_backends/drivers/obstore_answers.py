"""What obstore says of a failure, which is text alone: read for its few facts, and for nothing else.

That text holds the request's URL, which may hold a signature, and the whole answer, which may repeat a key: it goes no
further than this module.
"""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from obstore.exceptions import BaseError

from transcript_backends.drivers.driver import Failure, Meaning
from transcript_backends.drivers.interrupting import interruptibly
from transcript_backends.drivers.refusals import sentence

_T = TypeVar("_T")

_ANSWERED = re.compile(r" - Server returned non-2xx status code: ([0-9]{3})[^:]*: (.*)", re.DOTALL)
_DEBUG = "\n\nDebug source:\n"
_CODE = re.compile(r"<Code>([A-Za-z0-9._-]{1,80})</Code>")
_MESSAGE = re.compile(r"<(?:Details|Message)>([^<]{1,2000})</(?:Details|Message)>")
_REQUEST = re.compile(r"<RequestId>([A-Za-z0-9-]{1,80})</RequestId>|RequestId:([A-Za-z0-9-]{1,80})")
_REDIRECT = "Received redirect without LOCATION"
_CREDENTIALS = re.compile(r"^The operation lacked valid authentication credentials for path External \w+ credential provider:")
_PAST_THE_END = re.compile(  # also as Azurite has it
    r"^Generic \w+ error: (Wanted range starting at [0-9]+, but object was only|"
    r'Failed to parse value for CONTENT_RANGE header: "bytes 0--1/0")'
)


class Refusal(NamedTuple):
    """An answer other than a success.

    Attributes:
        status: of HTTP.
        code: the service's word for it; empty where its answer has none, as a head's never does.
        request_id: for the service's own people; may be empty.
        body: the answer; not for messages.
    """

    status: int
    code: str = ""
    request_id: str = ""
    body: str = ""

    @property
    def sentence(self) -> str:
        """What the service says, fit for a message; the last that it says is the most exact."""
        told = _MESSAGE.findall(self.body)
        return sentence(html.unescape(told[-1])) if told else ""


class Refused(Exception):
    """Carries a refusal to whoever knows the service."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__()
        self.refusal = refusal


class Lost(Exception):
    """No answer came, or only a part of it."""


class NotSetUp(Exception):
    """obstore refuses the settings."""


class AskTheSDK(Exception):
    """The reason of the refusal stands in headers, which obstore does not show: the request is to be made anew by the SDK."""


class Elsewhere(AskTheSDK):
    """The container is in another region, which the SDK finds, and all later requests are to be made by it."""


class NoContainer(Exception):
    """The bucket is missing."""


class NotAnAnswer(Exception):
    """A success that is none: a header which the service always sends is missing."""


class TLSFailed(Exception):
    """The connection was not trusted."""


class NoCredentials(Exception):
    """Whoever gives the credentials gave none, or none that can be used."""


def set_up(make: Callable[[], _T]) -> _T:
    """Make a store; what obstore says where it can't be made may hold a secret."""
    with contextlib.suppress(BaseError):
        return make()
    raise NotSetUp


def ask(request: Callable[[], _T]) -> _T:
    """Send a request; what obstore says of its failure is raised as one of the above, without a trace of the text."""
    try:
        return interruptibly(request)
    except (BaseError, OSError) as error:
        failed = _read(str(error))
    raise failed


def _read(text: str) -> Exception:
    if found := _ANSWERED.search(text):
        body = found[2].rpartition(_DEBUG)[0]
        code, request = _CODE.search(body), _REQUEST.search(body)
        told = (request[1] or request[2]) if request else ""
        return Refused(Refusal(int(found[1]), code[1] if code else "", told, body))
    if _REDIRECT in text:
        return Refused(Refusal(301))
    if _PAST_THE_END.match(text):
        return Refused(Refusal(416))
    if _CREDENTIALS.match(text):
        return NoCredentials()
    if "HTTP error: " in text or "HttpError" in text:
        if "InvalidCertificate" in text:
            return TLSFailed()
        return Lost("time-out" if "TimedOut" in text else "connection lost")
    return NotAnAnswer("a success without the headers of this service")


def classify(error: Exception) -> Failure | None:
    """What one of these exceptions means; None for any other."""
    if isinstance(error, Lost):
        return Failure(Meaning.TRY_AGAIN, str(error))
    if isinstance(error, NoCredentials):
        return Failure(Meaning.UNAUTHENTICATED, "no usable credentials found")
    if isinstance(error, NoContainer):
        return Failure(Meaning.CONTAINER_NOT_FOUND, str(error))
    if isinstance(error, NotAnAnswer):
        return Failure(Meaning.NO_ANSWER, str(error))
    if isinstance(error, NotSetUp):
        return Failure(Meaning.OTHER, "obstore can't work with these settings or certificates; engine=sdk does without it")
    if isinstance(error, TLSFailed):
        return Failure(Meaning.OTHER, "the TLS connection failed (certificate not trusted? see the setting verify)")
    return None
