"""Azure Blob Storage and the servers that speak its protocol, through azure-storage-blob.

Conditional writes: ``If-None-Match: *`` to create, ``If-Match: <ETag>`` to replace (REST reference, Put Blob). A service
other than Azure's own is asked to prove that it honours them before the first write.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import requests
from azure.core import MatchConditions
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import BlobClient, ContainerClient, ContentSettings, StandardBlobTier
from requests.adapters import HTTPAdapter
from urllib3 import Retry

from transcript_backends.drivers import azure_answers as answers
from transcript_backends.drivers.azure_account import default_credential, find_account
from transcript_backends.drivers.clients import SharedClient, read_environment_once
from transcript_backends.drivers.driver import (
    Body,
    Capabilities,
    Failure,
    Head,
    IfMatch,
    Page,
    PutMode,
    content_type,
    empty_body,
)
from transcript_backends.errors import InvalidURLError
from transcript_backends.urls import Setting, StoreURL

SETTINGS = (
    Setting("account_name", aliases=("account", "azure_storage_account_name")),
    Setting("endpoint_url", "url", ("endpoint", "account_url", "azure_storage_endpoint")),
    Setting("anon", "bool", ("anonymous", "skip_signature", "no_sign_request")),
    Setting("tier", aliases=("access_tier", "storage_class"), choices=("Hot", "Cool", "Cold")),
    Setting("encryption_scope"),
    Setting("api_version"),
    Setting("verify", aliases=("ca_bundle",)),
    Setting("allow_http", "bool"),
    Setting("connect_timeout", "seconds"),
    Setting("read_timeout", "seconds"),
    Setting("max_pool_connections", "int"),
    Setting("account_key", aliases=("azure_storage_account_key",), secret=True),
    Setting("sas_token", aliases=("azure_storage_sas_token",), secret=True),
    Setting("connection_string", aliases=("azure_storage_connection_string",), secret=True),
    Setting("credential", "object"),
    Setting("customer_key", "object"),
)

_CONTAINER = re.compile(r"(?=.{3,63}$)[a-z0-9]+(-[a-z0-9]+)*")
_AZURE_HOST = re.compile(r"[a-z0-9-]+(\.[a-z0-9]+)?\.blob\.(core\.[a-z.]+|storage\.azure\.net)")
_MOST_BYTES_IN_ONE_PUT = 5000 * 1024 * 1024  # of Put Blob; above, the SDK sends blocks, and the condition with their list


class AzureObjectStore:
    """One container.

    Args:
        client: an azure-storage-blob client of the container, or a holder that makes one.
        endpoint: ``http(s)://host[:port][/account]``.
        container: its name.
        write, read: what the SDK takes besides for writes, and for reads of objects (tier, encryption).
    """

    def __init__(
        self,
        client: ContainerClient | SharedClient[ContainerClient],
        endpoint: str,
        container: str,
        *,
        write: Mapping[str, Any] | None = None,
        read: Mapping[str, Any] | None = None,
    ) -> None:
        self._shared = client if isinstance(client, SharedClient) else SharedClient(ready=client)
        parts = urlsplit(endpoint)
        known = endpoint == f"https://{parts.netloc}" and _AZURE_HOST.fullmatch(parts.netloc) is not None
        # Keys come in byte order (where they are ASCII); with a hierarchical namespace, directory by directory
        # (azure-sdk-for-go#24210).
        # Which of the two an account has can't be told from outside, so listings never start in the middle.
        self.capabilities = Capabilities(
            create_only="yes" if known else "probe",
            start_after=False,
            delete_batch=256,
            conditional_delete=True,
            unfit_in_names=r"\.\Z",  # "no path segments should end with a dot", its rules for names say
        )
        self.location = f"az://{container}@{parts.netloc}" if known else f"az://{container}"
        self.details = "" if known else f"endpoint {endpoint}"
        # In a batch, the SDK names the account in the path for these hosts only.
        self._batch_delete = not parts.path or parts.netloc.startswith(("127.0.0.1", "localhost"))
        self._write, self._read = write or {}, read or {}

    def put(self, key: str, body: bytes, *, mode: PutMode, metadata: Mapping[str, str]) -> str:
        condition = _if_match(mode.version) if isinstance(mode, IfMatch) else {}
        blob = self._blob(key)
        answer = answers.send(
            lambda: blob.upload_blob(
                body,
                overwrite=mode != "create",  # if not: If-None-Match: *
                metadata=dict(metadata),
                content_settings=ContentSettings(content_type=content_type(key)),
                **self._write,
                **condition,
            )
        )
        return str(answers.member(answer, "etag"))

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> Body:
        if end is not None and end <= start:
            return empty_body(self.head(key))
        ranged = start > 0 or end is not None

        def ask_for_range(request: Any) -> None:  # the SDK's own ends after so many bytes, for another request to go on
            for name in ("x-ms-range", "Range"):
                request.http_request.headers.pop(name, None)
            if ranged:
                request.http_request.headers["x-ms-range"] = f"bytes={start}-{'' if end is None else end - 1}"

        try:
            answer = answers.take(
                self._blob(key).download_blob, offset=start if ranged else None, raw_request_hook=ask_for_range, **self._read
            )
        except HttpResponseError as error:
            if error.status_code != 416:
                raise
            return empty_body(self.head(key))  # past the end
        stream = answers.Stream(answer)
        try:
            info = answers.info_of_body(key, answer, start if ranged else None)
            return Body(info, stream, answers.metadata_of(answer.headers))
        except BaseException:
            stream.close()
            raise

    def head(self, key: str) -> Head:
        headers = answers.take(self._blob(key).get_blob_properties, **self._read).headers
        return Head(answers.info_of(key, headers), answers.metadata_of(headers))

    def list_page(self, prefix: str, *, start_after: str = "", token: str | None = None) -> Page:
        container = self._shared.get()

        def ask(**hooks: Any) -> Any:
            return next(container.list_blobs(name_starts_with=prefix or None, **hooks).by_page(token))

        return answers.page_of(answers.take(ask))

    def delete_many(self, keys: Sequence[str], *, versions: Mapping[str, str] | None = None) -> Mapping[str, Exception]:
        conditions = {key: _if_match(version) for key, version in (versions or {}).items()}
        if self._batch_delete and len(keys) > 1:
            try:
                return self._delete_batch(keys, conditions)
            except HttpResponseError as error:
                if not answers.knows_no_batches(error):
                    raise
                self._batch_delete = False
        failed: dict[str, Exception] = {}
        for key in keys:
            try:
                answers.send(partial(self._blob(key).delete_blob, **conditions.get(key, {})))
            except answers.FAILURES as error:
                if not answers.is_gone(error):
                    failed[key] = error
        return failed

    def _delete_batch(self, keys: Sequence[str], conditions: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Exception]:
        container = self._shared.get()
        blobs: Any = [{"name": key, **conditions[key]} if key in conditions else key for key in keys]
        return answers.failures_of(answers.take(lambda **hooks: container.delete_blobs(*blobs, **hooks)), keys)

    def _blob(self, key: str) -> BlobClient:
        return self._shared.get().get_blob_client(key)

    def classify(self, error: Exception) -> Failure | None:
        return answers.classify(error)

    @property
    def credentials(self) -> object:
        found = self._shared.get().credential
        return () if found is None else getattr(found, "account_key", None) or getattr(found, "signature", None)

    def renew(self) -> bool:
        return self._shared.renew()

    def close(self) -> None:
        self._shared.close()


def _if_match(version: str) -> dict[str, Any]:
    return {"etag": version, "match_condition": MatchConditions.IfNotModified}


# --- from a URL -------------------------------------------------------------------------------------------------------


def open_url(url: StoreURL, settings: Mapping[str, Any]) -> AzureObjectStore:
    """A driver for ``az://container``; the client is made when first used, and anew in a forked child."""
    if not _CONTAINER.fullmatch(url.container):
        raise InvalidURLError(f"no container can be called {url.container!r}: 3 to 63 letters a-z, digits, single hyphens")
    endpoint = find_account(url, settings, os.environ).endpoint
    key, scope, tier = (settings.get(name) for name in ("customer_key", "encryption_scope", "tier"))
    if key is not None and endpoint.startswith("http:"):
        raise InvalidURLError("customer_key goes along with each request, and over https only")
    read = {"cpk": key} if key is not None else {}
    write = {
        **read,
        **({"encryption_scope": scope} if scope else {}),
        **({"standard_blob_tier": StandardBlobTier(tier)} if tier else {}),
    }
    return AzureObjectStore(SharedClient(lambda: _make_client(url, settings)), endpoint, url.container, write=write, read=read)


def _make_client(url: StoreURL, settings: Mapping[str, Any]) -> ContainerClient:
    """A client set up on purpose.

    - time-outs of 5 s to connect and 30 s between bytes, where the SDK waits 20 s and 60 s;
    - one try: `transcript_backends.container` repeats requests, since it alone knows how to resolve a lost create;
    - a create in one request, whatever its size;
    - a pool as large as the threads that may share it;
    - no redirects, which Azure never sends, and which would take a SAS along.
    """
    endpoint, name, credential = find_account(url, settings, os.environ)
    if isinstance(credential, str):
        credential = AzureNamedKeyCredential(name, credential)
    elif credential is None:
        credential = default_credential()
    if hasattr(credential, "get_token"):
        credential = answers.Tokens(credential)
    session = requests.Session()
    read_environment_once(session, endpoint)
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=settings.get("max_pool_connections", 64), max_retries=Retry(False)))
    verify = settings.get("verify")
    try:
        return ContainerClient(
            endpoint,
            url.container,
            credential or None,
            session=session,
            retry_total=0,
            max_single_put_size=_MOST_BYTES_IN_ONE_PUT,
            permit_redirects=False,
            connection_timeout=settings.get("connect_timeout", 5),
            read_timeout=settings.get("read_timeout", 30),
            connection_verify={"true": True, "false": False}.get(verify, verify) if verify else session.verify,
            user_agent="transcript-backends",
            **({"api_version": settings["api_version"]} if settings.get("api_version") else {}),
        )
    except (TypeError, ValueError) as error:
        session.close()
        raise InvalidURLError(f"azure-storage-blob refuses these settings: {str(error).splitlines()[0]}") from error
