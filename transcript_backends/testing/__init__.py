"""The suites that every backend of this package passes, for backends of your own (needs pytest).

A driver proves itself with one fixture::

    class TestMyDriver(DriverContract):
        @pytest.fixture
        def driver(self):
            return MyObjectStore(...)

and a whole store, of whatever make, with one as well::

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self):
            return open_store("mine://...")

`StateContract` proves with the same fixture what a `StateStore` does on that store. `SharedStoreContract` and
`SharedStateContract` add processes: their fixture ``store_url`` is a URL that several of them can open at once.
"""

from transcript_backends.errors import MissingExtraError

try:
    import pytest
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "transcript_backends.testing needs pytest, which is not installed: pip install pytest", name="pytest"
    ) from error

for _module in ("drivers", "stores", "shared", "states"):
    pytest.register_assert_rewrite(f"{__name__}.{_module}")

from transcript_backends.testing.drivers import DriverContract  # noqa: E402
from transcript_backends.testing.shared import SharedStoreContract  # noqa: E402
from transcript_backends.testing.states import SharedStateContract, StateContract  # noqa: E402
from transcript_backends.testing.stores import StoreContract  # noqa: E402

__all__ = ["DriverContract", "SharedStateContract", "SharedStoreContract", "StateContract", "StoreContract"]
