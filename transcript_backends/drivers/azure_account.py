"""Which storage account a store is in, and what authorizes requests to it: from a URL, settings and the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from azure.core.credentials import AzureSasCredential

from transcript_backends.drivers.azure_answers import NoCredentials
from transcript_backends.errors import InvalidURLError
from transcript_backends.extras import needed_by
from transcript_backends.urls import StoreURL, check_endpoint, refuse_plain_http

ANONYMOUS = False

# Printed in Microsoft's documentation of its storage emulator, and the same everywhere.
_EMULATOR = "devstoreaccount1"
_EMULATOR_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Account(NamedTuple):
    """A storage account, or as much as one source tells of it.

    Attributes:
        endpoint: ``http(s)://host[:port][/account]`` without a final slash; may be empty.
        name: may be empty.
        credential: the account's key as text, `ANONYMOUS`, a credential object of the SDK; None where nothing is said.
    """

    endpoint: str = ""
    name: str = ""
    credential: Any = None


def find_account(url: StoreURL, settings: Mapping[str, Any], environment: Mapping[str, str]) -> Account:
    """The account: from the arguments and the URL, else from the environment.

    The environment's credentials are used only for the account they are for.

    Raises:
        InvalidURLError: there is none, or two different ones; or the endpoint is not to be trusted with credentials.
    """
    given = _given(url, settings)
    complete = given.endpoint and given.credential is not None
    around = Account() if complete else _in_environment(environment)
    endpoint, name = given.endpoint or around.endpoint, given.name or around.name
    credential = given.credential
    if credential is None and around.name in ("", name):
        credential = around.credential
    if not endpoint:
        raise InvalidURLError(
            f"{str(url)!r} names no account; write az://container@account/prefix or ?account_name=, or set "
            "AZURE_STORAGE_ACCOUNT_NAME or AZURE_STORAGE_CONNECTION_STRING"
        )
    refuse_plain_http(check_endpoint("the endpoint of the account", endpoint), settings)
    if endpoint.startswith("http:") and (credential is None or hasattr(credential, "get_token")):
        raise InvalidURLError(
            "tokens of Azure are sent over https only: use https, or give account_key, sas_token or anon for this endpoint"
        )
    if isinstance(credential, str) and not name:
        raise InvalidURLError("the endpoint does not tell the account that the key is for; add account_name")
    return Account(endpoint, name, credential)


def _given(url: StoreURL, settings: Mapping[str, Any]) -> Account:
    """What the URL and the arguments beside it say."""
    names = ("credential", "account_key", "sas_token", "connection_string", "anon")
    credentials = {each: settings[each] for each in names if settings.get(each)}
    if len(credentials) > 1:
        raise InvalidURLError(f"{' and '.join(credentials)} are given together; one of them is enough")
    connection = of_connection_string(credentials.pop("connection_string", ""))
    endpoint, name = settings.get("endpoint_url"), settings.get("account_name")
    if url.host:
        account, _, suffix = url.host.partition(".")
        if endpoint or name not in (None, account):
            raise InvalidURLError(f"{str(url)!r} names the account already; leave out account_name and endpoint_url")
        # The two endpoints of an account differ in this label, and the SDK speaks to this one.
        endpoint, name = _endpoint(account, suffix.replace("dfs.", "blob.", 1)), account
    elif name and not endpoint:
        endpoint = _endpoint(name)
    name = name or account_of(endpoint or "")
    if name and connection.name not in ("", name):
        raise InvalidURLError(f"connection_string is that of the account {connection.name!r}, not of {name!r}")
    credential = next(iter(credentials.values()), connection.credential)
    if "sas_token" in credentials:
        credential = AzureSasCredential(credential.lstrip("?"))
    return Account(endpoint or connection.endpoint, name or connection.name, ANONYMOUS if credential is True else credential)


def _in_environment(environment: Mapping[str, str]) -> Account:
    """What the variables of Azure's own tools say."""
    is_login = environment.get("AZURE_STORAGE_AUTH_MODE", "").lower() == "login"  # whatever keys there are
    if connection := environment.get("AZURE_STORAGE_CONNECTION_STRING"):
        found = of_connection_string(connection)
        return found._replace(credential=None) if is_login else found
    name = environment.get("AZURE_STORAGE_ACCOUNT_NAME") or environment.get("AZURE_STORAGE_ACCOUNT") or ""
    key = environment.get("AZURE_STORAGE_ACCOUNT_KEY") or environment.get("AZURE_STORAGE_KEY")
    sas = environment.get("AZURE_STORAGE_SAS_TOKEN")
    credential = None if is_login else key or (AzureSasCredential(sas.lstrip("?")) if sas else None)
    endpoint = environment.get("AZURE_STORAGE_SERVICE_ENDPOINT", "").rstrip("/")
    return Account(endpoint or (_endpoint(name) if name else ""), name or account_of(endpoint), credential)


def of_connection_string(text: str) -> Account:
    """What a connection string says; nothing where it is empty."""
    if not text.strip(" ;"):
        return Account()
    pairs = (each.partition("=") for each in text.split(";"))
    found = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if found.get("usedevelopmentstorage", "").lower() == "true":
        return Account(f"http://127.0.0.1:10000/{_EMULATOR}", _EMULATOR, _EMULATOR_KEY)
    name, endpoint = found.get("accountname", ""), found.get("blobendpoint", "").partition("?")[0].rstrip("/")
    if name and not endpoint:
        host = f"{name}.blob.{found.get('endpointsuffix', 'core.windows.net')}"
        endpoint = f"{found.get('defaultendpointsprotocol', 'https')}://{host}"
    if not endpoint:
        raise InvalidURLError("the connection string holds neither AccountName nor BlobEndpoint; copy it again, whole")
    sas = found.get("sharedaccesssignature", "").lstrip("?")
    return Account(
        endpoint, name or account_of(endpoint), found.get("accountkey") or (AzureSasCredential(sas) if sas else None)
    )


def account_of(endpoint: str) -> str:
    """The account's name in an endpoint: the path's last part (emulators), or the first of the host; else empty."""
    parts = urlsplit(endpoint)
    host = parts.hostname or ""
    return parts.path.strip("/").rpartition("/")[2] or (host.partition(".")[0] if ".blob." in host else "")


def _endpoint(account: str, suffix: str = "") -> str:
    return f"https://{account}.{suffix or 'blob.core.windows.net'}"


def default_credential() -> Any:
    """Azure's own chain: environment, workload identity, managed identity, the log-in of its command line."""
    with needed_by("a store without account_key, sas_token and anon", "azure", "azure-identity"):
        from azure.identity import DefaultAzureCredential

        try:
            return DefaultAzureCredential()
        except ImportError:
            raise
        except Exception as error:  # what the environment names can't be read, or is none
            raise NoCredentials(type(error).__name__) from error
