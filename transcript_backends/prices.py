"""What object stores charge: list prices in US dollars, to estimate with. What an account pays depends on region and contract.

Where they are from, and what they rest on:

- ``s3``, ``s3-express``: the AWS Price List API for us-east-1, effective 2026-07-01 (``$0.005 per 1,000 PUT, COPY, POST, or
  LIST requests``, ``$0.004 per 10,000 GET and all other requests``, ``$0.023 per GB`` of the first 50 TB), and the worked
  examples of the S3 FAQ on S3 Express One Zone (per 1,000: PUT $0.00113, GET $0.00003; per GB: $0.0032 up, $0.0006 down,
  $0.11 stored). That a listing of a directory bucket costs what a PUT does is taken over from the other classes.
- ``gcs``: https://cloud.google.com/storage/pricing as read on 2026-09-20, us-central1, Standard, flat namespace: class A
  $0.005 and class B $0.0004 per 1,000 operations, $0.000027397 a GiB and hour, 730 hours a month.
- ``azure``: hot tier, locally redundant. Requests by the samples of https://learn.microsoft.com/azure/storage/blobs/
  blob-storage-estimate-costs (per 10,000: writes and listings $0.055, reads $0.0044), which are those of dearer US regions;
  storage by the Azure Retail Prices API for East US ($0.0208). The least certain of the four: other regions are up to a tenth
  cheaper.

Deletes are free on all of them, and so is moving bytes inside a region but for ``s3-express``. A month of storage counts what
is there, not what versions and soft deletes keep. A GB is 2^30 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

_GB = 2**30
_MILLION = 1_000_000


class Prices(NamedTuple):
    """One service's price list, in US dollars.

    Attributes:
        title: what it is the price list of.
        as_of: year and month.
        put, get, list: a million requests; a HEAD costs what a GET does.
        month: a GB stored for a month.
        up, down: a GB sent to the service and fetched from it, in its own region.
    """

    title: str
    as_of: str
    put: float
    get: float
    list: float
    month: float
    up: float = 0.0
    down: float = 0.0

    def requests(
        self, *, puts: float = 0, gets: float = 0, lists: float = 0, bytes_up: float = 0, bytes_down: float = 0
    ) -> float:
        """Dollars for so many requests that move so many bytes."""
        return (puts * self.put + gets * self.get + lists * self.list) / _MILLION + (
            bytes_up * self.up + bytes_down * self.down
        ) / _GB

    def storage(self, size: float) -> float:
        """Dollars for a month of so many bytes."""
        return size * self.month / _GB


PRICES: Mapping[str, Prices] = MappingProxyType(
    {
        "s3": Prices("Amazon S3 Standard, us-east-1", "2026-07", put=5.0, get=0.4, list=5.0, month=0.023),
        "s3-express": Prices(
            "Amazon S3 Express One Zone, us-east-1", "2026-07", 1.13, 0.03, 1.13, month=0.11, up=0.0032, down=0.0006
        ),
        "gcs": Prices("Google Cloud Storage Standard, us-central1", "2026-09", put=5.0, get=0.4, list=5.0, month=0.02),
        "azure": Prices("Azure Blob Storage hot LRS, US", "2026-09", put=5.5, get=0.44, list=5.5, month=0.0208),
    }
)


def price_list(location: str) -> str | None:
    """Which of `PRICES` a store's URL speaks for; None where its service is none of them, or free.

    Args:
        location: as ``str(store)`` gives it.
    """
    scheme, _, rest = location.partition("://")
    if scheme == "s3":
        return "s3-express" if rest.partition("/")[0].endswith("--x-s3") else "s3"
    return {"gs": "gcs", "az": "azure"}.get(scheme)


def dollars(amount: float) -> str:
    """An amount as text: cents from a dollar on, two significant digits below."""
    if amount == 0:
        return "$0"
    return f"${amount:,.{max(2, 1 - math.floor(math.log10(abs(amount))))}f}"
