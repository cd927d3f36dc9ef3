"""Store URLs: pure parsing, no I/O.

``scheme://container/prefix?name=value&...`` for object stores, ``file:///absolute/path?...`` for directories; Azure's may
name the account too: ``az://container@account/prefix``, ``https://account.blob.core.windows.net/container/prefix``. Prefixes
are percent-decoded once. A path segment that is exactly ``{name}`` is a placeholder (`TranscriptStore.with_runtime_context`).
Secrets are refused in a URL: they come as arguments of ``open_store`` or from the environment.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit

from transcript_backends import keys
from transcript_backends.errors import InvalidURLError

FSSPEC = "fsspec+"  # before the name of one of fsspec's filesystems
DIRECTORY_SCHEMES = frozenset({"file", "local", f"{FSSPEC}file", f"{FSSPEC}local"})
_ACCOUNT_SCHEMES = frozenset({"az", "azure", "abfs", "abfss"})  # take container@account

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)(/[^?#]*)?(?:\?([^#]*))?")
_SINGLE_SLASH = re.compile(r"(file|local):(/(?!/).*)", re.DOTALL | re.IGNORECASE)
_USER_INFO = re.compile(r"[^/?#]*://(?:[^/?#]*@|[^/?#]*:.*@)", re.DOTALL)  # a password may hold / ? # unescaped
_CONTAINER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WITH_ACCOUNT = re.compile(r"([A-Za-z]+)://[a-z0-9-]+@[A-Za-z0-9.-]+(?=[/?#]|$)")  # too narrow for a password
_ACCOUNT = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*((\.[a-z0-9-]+)*\.(blob|dfs)(\.[a-z0-9]+(-[a-z0-9]+)*)+)?")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # half characters can't be written either
_SECRET = re.compile(
    r"key$|secret|token|passw|pwd|credential|connection_?string|signature|^sas|^x-(amz|goog)-"
    r"|^s([eiprtv]|ig|ip|pr|rt|k[esvt]|k[ot]id)$",  # of a shared access signature
    re.IGNORECASE,
)
_SAFE_IN_PATH = "/{}=:@!$&'()*+,;~"


@dataclass(frozen=True, slots=True)
class StoreURL:
    """A parsed store URL.

    Attributes:
        scheme: lower case.
        container: bucket or container; for ``file`` the absolute directory; may be empty for ``memory``.
        root: prefix of every key in the container, empty or ending in ``/``; may hold placeholders.
        query: parameter name -> value, as written, each once.
        host: lower case, the account or its address, where the URL names it (Azure); else empty.
    """

    scheme: str
    container: str
    root: str
    query: Mapping[str, str] = field(default_factory=dict)
    host: str = ""

    def __str__(self) -> str:
        """``scheme://container/prefix`` without the parameters; parsing it gives the same location."""
        path = quote(self.root.rstrip("/"), safe=_SAFE_IN_PATH)
        if self.scheme in DIRECTORY_SCHEMES:
            directory = quote(self.container.rstrip("/"), safe=_SAFE_IN_PATH.replace("{}", ""))
            return f"{self.scheme}://{directory}/{path}" if path or not directory else f"{self.scheme}://{directory}"
        if self.scheme == "https":
            place = f"{self.host}/{self.container}"
        else:
            place = f"{self.container}@{self.host}" if self.host else self.container
        return f"{self.scheme}://{place}/{path}" if path else f"{self.scheme}://{place}"


def parse(url: str) -> StoreURL:
    """Read a store URL, or a bare absolute path as a directory.

    Raises:
        InvalidURLError: says which part is wrong and how to write it. Values of parameters are never repeated in it.
    """
    if not isinstance(url, str):
        raise InvalidURLError(f"a store URL is text, not {type(url).__name__}")
    if not url.strip():
        raise InvalidURLError("the store URL is empty; write s3://bucket/prefix or file:///absolute/path, for example")
    named = _WITH_ACCOUNT.match(url)
    with_account = named is not None and named.group(1).lower() in _ACCOUNT_SCHEMES
    if _USER_INFO.match(url) and not with_account:
        raise InvalidURLError(
            "the store URL holds user information (text and an '@' before the bucket); secrets do not belong in a URL"
        )
    shown = url.split("?")[0] if with_account else url.split("?")[0].rpartition("@")[2]
    if _CONTROL.search(url) or url != url.strip():
        raise InvalidURLError(f"store URL {shown!r} holds control characters or blanks around it; remove them")
    if url.startswith("/"):
        return _directory("file", _segments(url[1:], shown, decode=False), {}, shown)
    if single := _SINGLE_SLASH.fullmatch(url):
        url = f"{single.group(1)}://{single.group(2)}"
    found = _URL.fullmatch(url)
    if not found:
        if "#" in url:
            raise InvalidURLError(f"store URL {shown!r} holds a '#'; write it as %23 in a prefix")
        raise InvalidURLError(
            f"{shown!r} is not a store URL; write scheme://container/prefix (s3://bucket/prefix) or an absolute path"
        )
    scheme, authority, path, query = found.group(1).lower(), found.group(2), found.group(3) or "", found.group(4)
    parameters = _parse_query(query or "", shown)
    segments = _segments(path[1:], shown, decode=True)
    if scheme in DIRECTORY_SCHEMES:
        if authority not in ("", "localhost"):
            raise InvalidURLError(
                f"{shown!r} names a host, {authority!r}: a directory is written with three slashes and absolute, "
                f"{scheme}:///{authority}{path}"
            )
        return _directory(scheme, segments, parameters, shown)
    host = ""
    if scheme == "https":
        host, authority, segments = authority.lower(), "".join(segments[:1]), segments[1:]
        if "." not in host or not _ACCOUNT.fullmatch(host) or not _CONTAINER.fullmatch(authority):
            raise InvalidURLError(
                f"{shown!r} is no container of Azure; write https://account.blob.core.windows.net/container/prefix. Another "
                "server's address goes into ?endpoint_url="
            )
    elif with_account:
        authority, _, host = authority.partition("@")
        host = host.lower()
        if not _ACCOUNT.fullmatch(host):
            raise InvalidURLError(
                f"{host!r} in {shown!r} is no account of Azure; write {scheme}://{authority}@account/prefix or "
                f"{scheme}://{authority}@account.blob.core.windows.net/prefix"
            )
    if authority and not _CONTAINER.fullmatch(authority):
        raise InvalidURLError(
            f"{authority!r} in {shown!r} is no name for a bucket or container; a server's address goes into ?endpoint_url="
        )
    if not authority and scheme.removeprefix(FSSPEC) != "memory":
        raise InvalidURLError(f"store URL {shown!r} names no bucket or container; write {scheme}://name/prefix")
    return StoreURL(scheme, authority, _as_root(segments), parameters, host)


def _directory(scheme: str, segments: list[str], query: Mapping[str, str], shown: str) -> StoreURL:
    """A directory's URL: the container is the path up to the first placeholder, the root what follows."""
    if not segments:
        raise InvalidURLError(f"store URL {shown!r} names no directory; write {scheme}:///absolute/path")
    plain = next((i for i, part in enumerate(segments) if keys.placeholders(part)), len(segments))
    return StoreURL(scheme, "/" + "/".join(segments[:plain]), _as_root(segments[plain:]), query)


def _as_root(segments: list[str]) -> str:
    return "".join(f"{part}/" for part in segments)


def as_root(prefix: str) -> str:
    """A prefix given beside a ready client as a root: checked, and with its final ``/``."""
    return _as_root(_segments(prefix, prefix, decode=False))


def _segments(path: str, shown: str, *, decode: bool) -> list[str]:
    """The segments of a path; one trailing slash is allowed."""
    parts = path.removesuffix("/").split("/") if path.strip("/") else [""] * (path.count("/") + 1 if path else 0)
    if decode:
        parts = [_decode(part, shown) for part in parts]
    for part in parts:
        if part in ("", ".", ".."):
            raise InvalidURLError(f"the path of {shown!r} has an empty, '.' or '..' segment; write it without")
        if "\\" in part or "/" in part or _CONTROL.search(part):
            raise InvalidURLError(
                f"segment {part!r} in the path of {shown!r} holds a slash, a backslash or a control character"
            )
        if ("{" in part or "}" in part) and not keys.placeholders(part):
            raise InvalidURLError(
                f"segment {part!r} in the path of {shown!r} mixes text and braces: a placeholder is a whole segment, {{name}}"
            )
    return parts


def _decode(text: str, shown: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidURLError(f"the percent-encoding in {shown!r} is not UTF-8") from error


def _parse_query(query: str, shown: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, item in enumerate(query.split("&") if query else [], 1):
        name, equals, value = item.partition("=")
        if not name or not equals:  # a piece of a value, perhaps: not repeated
            raise InvalidURLError(f"parameter {number} of {shown!r} is not of the form name=value")
        name, value = _decode(name, shown), _decode(value, shown)
        if not value:
            raise InvalidURLError(f"parameter {name!r} of {shown!r} has no value; write name=value")
        if name in found:
            raise InvalidURLError(f"parameter {name!r} of {shown!r} is given twice")
        found[name] = value
    return found


# --- settings ---------------------------------------------------------------------------------------------------------

Kind = Literal["text", "bool", "int", "seconds", "url", "object"]

_DIGITS = re.compile(r"[0-9]+(\.[0-9]+)?")
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting a backend takes, as a URL parameter or as an argument.

    Attributes:
        name: the canonical name.
        kind: how a URL's text is read; ``object`` can only be an argument.
        aliases: other tools' names for it.
        choices: the only values allowed, empty for any.
        secret: never in a URL, where ``<name>_env`` may name an environment variable instead.
    """

    name: str
    kind: Kind = "text"
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    secret: bool = False


def settings(
    url: StoreURL, options: Mapping[str, Any], known: Iterable[Setting], environment: Mapping[str, str]
) -> dict[str, Any]:
    """The settings of a URL and of the arguments beside it, by canonical name; an argument wins over the URL, None is no value.

    Raises:
        InvalidURLError: unknown (with the near names), given twice, a secret in the URL, or a value of the wrong kind.
    """
    known = list(known)
    merged: dict[str, Any] = {}
    for source, given in ((f"in {str(url)!r}", url.query), ("among the arguments", options)):
        level: dict[str, Any] = {}
        for name, value in given.items():
            setting, name_is_env = _find(name, known, source, in_url=given is url.query)
            if value is None:
                continue
            if setting.name in level:
                raise InvalidURLError(f"{setting.name} is given twice {source} (as {name!r} too)")
            if name_is_env:
                if not isinstance(value, str) or value not in environment:
                    raise InvalidURLError(f"{name} names an environment variable that is not set")
                value = environment[value]
            level[setting.name] = _convert(setting, value, source)
        merged.update(level)
    return merged


def looks_secret(name: str) -> bool:
    """Whether a setting of this name is likely to be a secret."""
    return _SECRET.search(name) is not None


def _find(name: str, known: list[Setting], source: str, *, in_url: bool) -> tuple[Setting, bool]:
    """The setting of this name, and whether the name is ``<secret>_env``."""
    secret = in_url and looks_secret(name)
    for setting in known:
        if name == setting.name or name in setting.aliases:
            if not in_url or not (setting.secret or setting.kind == "object"):
                return setting, False
            secret = setting.secret
        if setting.secret and name == f"{setting.name}_env":
            return setting, True
    names = {each.name for each in known if not (in_url and (each.secret or each.kind == "object"))}
    if secret:
        raise InvalidURLError(
            f"parameter {name!r} {source} looks like a secret, and a URL ends up in logs: pass it as an argument of "
            "open_store, or set the environment variable of the cloud's own tools"
        )
    near = difflib.get_close_matches(name, sorted(names), n=3) or sorted(names)
    raise InvalidURLError(f"unknown setting {name!r} {source}; did you mean {', '.join(near)}?")


def _convert(setting: Setting, value: Any, source: str) -> Any:
    """The value in its kind. Text from a URL and Python values of the right type are both taken."""
    try:
        if setting.kind == "object":
            return value
        if setting.kind == "bool":
            return value if isinstance(value, bool) else _BOOLEANS[value.lower()]
        if setting.kind == "int" and _is_number(value, int) and int(value) > 0:
            return int(value)
        if setting.kind == "seconds" and _is_number(value, (int, float)) and 0 < float(value) < 1e9:
            return float(value)
        if setting.kind in ("text", "url") and isinstance(value, str) and (not setting.choices or value in setting.choices):
            return check_endpoint(setting.name, value) if setting.kind == "url" else value
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        if isinstance(error, InvalidURLError):
            raise
    expected = {
        "bool": "true or false",
        "int": "a whole number above 0",
        "seconds": "a number of seconds above 0",
    }.get(setting.kind) or ("one of " + ", ".join(setting.choices) if setting.choices else "text")
    raise InvalidURLError(f"{setting.name} {source} must be {expected}")


def _is_number(value: object, kinds: type | tuple[type, ...]) -> bool:
    """Whether a value is of such a type, or text in digits and a point: int() and float() take more than that."""
    return bool(_DIGITS.fullmatch(value)) if isinstance(value, str) else isinstance(value, kinds) and value is not True


def refuse_plain_http(endpoint: str, settings: Mapping[str, Any], name: str = "endpoint_url") -> None:
    """Refuse an address that is http beyond this machine, unless ``allow_http`` accepts the risk.

    Args:
        endpoint: what requests are really sent to, whoever has said so.
        settings: of the store.
        name: of what has said so, for the message.
    """
    parts = urlsplit(endpoint)
    if parts.scheme == "http" and not settings.get("allow_http") and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        raise InvalidURLError(f"{name} is http beyond this machine: use https, or allow_http=true to accept the risk")


def check_endpoint(name: str, value: str) -> str:
    """An address without the slash at its end.

    Raises:
        InvalidURLError: it is none, or holds user information or parameters, which are not repeated.
    """
    try:
        parts = urlsplit(value)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or _CONTROL.search(value) or value != value.strip():
        raise InvalidURLError(f"{name} must be http://host[:port] or https://host[:port]")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidURLError(f"{name} holds user information or parameters; give just http(s)://host[:port]")
    return value.rstrip("/")
