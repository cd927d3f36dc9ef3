"""Which client carries a store's objects: the cloud's SDK, or obstore beside it. Setting ``engine``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from transcript_backends.drivers.driver import ObjectStore
from transcript_backends.errors import InvalidURLError, MissingExtraError
from transcript_backends.extras import needed_by
from transcript_backends.urls import Setting, StoreURL

ENGINE = Setting("engine", choices=("auto", "sdk", "obstore"))


class Choice(NamedTuple):
    """An engine, and why it is this one."""

    engine: Literal["sdk", "obstore"]
    reason: str


@dataclass(frozen=True, slots=True)
class Cloud:
    """What obstore can't do on a cloud.

    Attributes:
        name: of the function in `obstore_services`, and of the extra.
        settings: which it has no way to follow.
        variables: of the environment, of which it would follow what the SDK does not, or the other way round.
        why_not: why it is never chosen by itself; empty where it is.
    """

    name: Literal["s3", "gcs", "azure"]
    settings: tuple[str, ...]
    variables: tuple[str, ...]
    why_not: str = ""


S3 = Cloud(
    "s3",
    ("verify", "expected_bucket_owner", "checksum"),
    (
        "AWS_CHECKSUM_ALGORITHM", "AWS_SERVER_SIDE_ENCRYPTION", "AWS_SSE_KMS_KEY_ID",
        "AWS_SSE_BUCKET_KEY_ENABLED", "AWS_SSE_CUSTOMER_KEY_BASE64",
    ),
)  # fmt: skip
GCS = Cloud(
    "gcs",
    ("verify", "user_project", "kms_key_name"),
    (
        "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY", "SERVICE_ACCOUNT",
        "GOOGLE_CLOUD_QUOTA_PROJECT",
    ),
    "obstore speaks the XML API of GCS, which no server knows that this package is tested on",
)  # fmt: skip
AZURE = Cloud("azure", ("verify", "customer_key", "encryption_scope", "api_version"), ("AZURE_ENCRYPTION_KEY",))


def choose(cloud: Cloud, url: StoreURL, settings: Mapping[str, Any], environment: Mapping[str, str]) -> Choice:
    """The engine for a store.

    Raises:
        InvalidURLError: obstore was asked for, and can't do what else was.
        MissingExtraError: it is not installed.
    """
    asked = settings.get("engine", "auto")
    if asked == "sdk":
        return Choice("sdk", "engine=sdk was asked for")
    obstacle = _obstacle(cloud, url, settings, environment)
    if asked == "obstore":
        if obstacle:
            raise InvalidURLError(f"engine=obstore can't be used, since {obstacle}; leave engine out for the one that can")
        if not _is_installed():
            raise MissingExtraError(f"engine=obstore can't be used, since {_missing(cloud)}", name="obstore")
        return Choice("obstore", "engine=obstore was asked for")
    obstacle = obstacle or cloud.why_not or ("" if _is_installed() else _missing(cloud))
    return Choice("sdk", obstacle) if obstacle else Choice("obstore", "it is installed, and can do all that was asked for")


def _obstacle(cloud: Cloud, url: StoreURL, settings: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """What obstore can't do of what is asked; empty where it can do all."""
    if cloud is S3 and url.container.endswith("--x-s3"):
        return f"{url.container!r} is a directory bucket"
    if cloud is GCS and settings.get("anon") and "endpoint_url" not in settings:
        return "obstore can't write to GCS without credentials"
    for name in cloud.settings:
        if settings.get(name) is not None:
            return f"obstore can't follow the setting {name}"
    credential = settings.get("credential")
    if credential is not None and not hasattr(credential, "get_token"):
        return "obstore takes no credential but one that gives tokens"
    for name in cloud.variables:
        if environment.get(name):
            return f"obstore would read {name} in the environment otherwise than the SDK does"
    return ""


def _missing(cloud: Cloud) -> str:
    return f"obstore is not installed: pip install 'transcript-backends[{cloud.name},fast]' (Python 3.11 or newer)"


def _is_installed() -> bool:
    try:
        import obstore.store  # noqa: F401
    except ImportError:  # or it is damaged
        return False
    return True


def opener(
    cloud: Cloud, open_sdk: Callable[[StoreURL, Mapping[str, Any]], ObjectStore], environment: Mapping[str, str]
) -> Callable[[StoreURL, Mapping[str, Any]], ObjectStore]:
    """Opens a store with the engine chosen for it. The SDK's driver is opened in any case: it checks the settings."""

    def open_url(url: StoreURL, settings: Mapping[str, Any]) -> ObjectStore:
        driver = open_sdk(url, settings)
        if choose(cloud, url, settings, environment).engine == "sdk":
            return driver
        with needed_by("engine=obstore", f"{cloud.name},fast", "obstore"):
            from transcript_backends.drivers import obstore_services
            from transcript_backends.drivers.obstore import ObstoreObjectStore

            return ObstoreObjectStore(driver, getattr(obstore_services, cloud.name)(driver, url, settings))

    return open_url
