"""HTTP as inspection and staging need it: blocking, one connection a request, redirects, proxies, nothing hidden.

A token goes to the host that it was meant for and to no other: a redirect to another scheme, host or port (the hub sends downloads
to a CDN) is followed without it. Proxies are those of the environment (HTTPS_PROXY, HTTP_PROXY, NO_PROXY).
"""

from __future__ import annotations

import http.client
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import SplitResult, urljoin, urlsplit

from inference_fleet import __version__
from inference_fleet.facts.failure import Reason, SourceFailure
from inference_fleet.facts.head import Head

MAX_REDIRECTS = 8
BLOCK_BYTES = 2**18
FIRST_WINDOW_BYTES = 2**18
LARGEST_WINDOW_BYTES = 2**24
"""Headers are read by Range requests that grow fourfold between these: a 6 MB GGUF header takes four, 512 MiB takes 36."""

T = TypeVar("T")

_NETWORK_ERRORS = (OSError, http.client.HTTPException)


class Transient(SourceFailure):
    """Worth another try: the network failed, or the server said that it is busy. `retry_after_seconds` is its wish, if any."""

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(Reason.UNREACHABLE, message, "Check that the address is right and reachable from this pod")
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True, slots=True)
class Retries:
    """How often and after what pause a transient failure is tried again; the pause doubles up to `longest_seconds`."""

    attempts: int = 6
    first_seconds: float = 1.0
    longest_seconds: float = 30.0
    sleep: Callable[[float], None] = field(default=time.sleep)

    def pause(self, failures: int, wish_seconds: float | None = None) -> float:
        """Seconds to wait after `failures` failures in a row (1 or more)."""
        own = min(self.longest_seconds, self.first_seconds * 2.0 ** (failures - 1))
        return own if wish_seconds is None else min(self.longest_seconds, max(own, wish_seconds))

    def run(self, action: Callable[[], T]) -> T:
        """Call `action` until it ends with something else than Transient, or attempts are used up."""
        for failures in range(1, self.attempts):
            try:
                return action()
            except Transient as failure:
                self.sleep(self.pause(failures, failure.retry_after_seconds))
        return action()


class Response:
    """An answer whose body is still on the wire."""

    def __init__(self, url: str, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse) -> None:
        self.url = url
        self.status = answer.status
        self._connection = connection
        self._answer = answer

    def header(self, name: str) -> str:
        """A header's value, empty where absent."""
        return self._answer.headers.get(name, "")

    @property
    def length(self) -> int | None:
        """Bytes of this body as announced."""
        text = self.header("Content-Length")
        return int(text) if text.isdigit() else None

    @property
    def total(self) -> int | None:
        """Bytes of the whole file: by Content-Range for a part, by Content-Length for the whole."""
        if self.status != 206:
            return self.length
        text = self.header("Content-Range").rpartition("/")[2]
        return int(text) if text.isdigit() else None

    def blocks(self) -> Iterator[bytes]:
        """The body, piece by piece; closes at its end. Raises Transient where it breaks off."""
        got = 0
        try:
            while block := self._answer.read(BLOCK_BYTES):
                got += len(block)
                yield block
        except _NETWORK_ERRORS as error:
            raise Transient(f"{shown(self.url)} broke off after {got} bytes: {_cause(error)}") from error
        finally:
            self.close()
        if self.length is not None and got < self.length:
            raise Transient(f"{shown(self.url)} broke off after {got} of {self.length} bytes")

    def content(self, limit: int) -> bytes:
        """The whole body. Raises SourceFailure(Malformed) where it is longer than `limit` bytes."""
        body = bytearray()
        for block in self.blocks():
            body += block
            if len(body) > limit:
                self.close()
                raise SourceFailure(Reason.MALFORMED, f"{shown(self.url)} answers with more than {limit} bytes")
        return bytes(body)

    def close(self) -> None:
        """Drop the connection, whatever is still to come."""
        self._answer.close()
        self._connection.close()


@dataclass(frozen=True, slots=True)
class Web:
    """How requests are made. `token` is sent as a bearer token to `token_host`'s origin only."""

    token: str = field(default="", repr=False)
    token_origin: str = ""
    """`scheme://host[:port]` that may see the token."""
    timeout_seconds: float = 30.0
    """For connecting, and for each silence while reading."""
    retries: Retries = field(default_factory=Retries)
    use_proxy: bool = True
    """Whether the environment's proxies are used."""

    def get(self, url: str, headers: Mapping[str, str] | None = None) -> Response:
        """One GET through its redirects. 2xx and 416 are returned; everything else raises SourceFailure or Transient."""
        for _ in range(MAX_REDIRECTS):
            response = self._request(url, headers or {})
            if response.status in (301, 302, 303, 307, 308):
                location = response.header("Location")
                response.close()
                if not location:
                    raise SourceFailure(Reason.UNREACHABLE, f"{shown(url)} redirects to nowhere")
                url = urljoin(url, location)
                continue
            if 200 <= response.status < 300 or response.status == 416:
                return response
            failure = _refused(response)
            response.close()
            raise failure
        raise SourceFailure(Reason.UNREACHABLE, f"{shown(url)} redirects more than {MAX_REDIRECTS} times")

    def content(self, url: str, limit: int) -> bytes:
        """A whole small body, with retries."""
        return self.retries.run(lambda: self.get(url).content(limit))

    def head(self, url: str, name: str = "") -> Head:
        """The front of a file, by growing ranges; a server that ignores Range is read from its start and then hung up on."""
        first = self.retries.run(lambda: self._range(url, 0, FIRST_WINDOW_BYTES))
        return Head(name or shown(url), self._windows(url, first), first.total)

    def _windows(self, url: str, response: Response) -> Iterator[bytes]:
        offset, window, failures = 0, FIRST_WINDOW_BYTES, 0
        total = response.total
        try:
            while True:
                try:
                    for block in response.blocks():
                        offset += len(block)
                        failures = 0
                        yield block
                except Transient as failure:
                    failures += 1
                    if response.status != 206 or failures >= self.retries.attempts:
                        raise
                    self.retries.sleep(self.retries.pause(failures, failure.retry_after_seconds))
                if response.status != 206 or (total is not None and offset >= total):
                    return
                window = min(LARGEST_WINDOW_BYTES, window * 4)
                start, length = offset, window
                response = self.retries.run(lambda: self._range(url, start, length))  # noqa: B023 - called at once
                if response.status != 206:
                    raise Transient(f"{shown(url)} stopped answering ranges at byte {offset}")
        finally:
            response.close()

    def _range(self, url: str, start: int, length: int) -> Response:
        response = self.get(url, {"Range": f"bytes={start}-{start + length - 1}"})
        if response.status == 206 and not response.header("Content-Range").startswith(f"bytes {start}-"):
            response.close()
            raise Transient(f"{shown(url)} answered another range than the one asked for")
        if response.status == 416:
            response.close()
            raise SourceFailure(Reason.MALFORMED, f"{shown(url)} ends before byte {start + 1}")
        return response

    def _request(self, url: str, headers: Mapping[str, str]) -> Response:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SourceFailure(Reason.UNSUPPORTED, f"{shown(url)} is not an http:// or https:// address")
        sent = {
            "User-Agent": f"inference-fleet/{__version__}",
            "Accept-Encoding": "identity",
            "Connection": "close",
            **headers,
        }
        if self.token and origin(parts) == self.token_origin:
            sent["Authorization"] = f"Bearer {self.token}"
        try:
            connection, target = self._connection(parts)
            try:
                connection.request("GET", target, headers=sent)
                return Response(url, connection, connection.getresponse())
            except BaseException:
                connection.close()
                raise
        except ssl.SSLCertVerificationError as error:
            raise SourceFailure(
                Reason.UNREACHABLE,
                f"{shown(url)} shows a certificate that is not trusted: {error.verify_message}",
                "Trust its issuer",
            ) from error
        except (*_NETWORK_ERRORS, ValueError) as error:
            raise Transient(f"{shown(url)} cannot be reached: {_cause(error)}") from error

    def _connection(self, parts: SplitResult) -> tuple[http.client.HTTPConnection, str]:
        """A connection, straight or through the environment's proxy, and the request target to use on it."""
        host, secure = parts.hostname or "", parts.scheme == "https"
        target = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
        proxy = urllib.request.getproxies().get(parts.scheme) if self.use_proxy else None
        if proxy and not urllib.request.proxy_bypass(host):
            via = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
            if secure:
                tunnel = http.client.HTTPSConnection(via.hostname or "", via.port or 3128, timeout=self.timeout_seconds)
                tunnel.set_tunnel(host, parts.port or 443)
                return tunnel, target
            plain = http.client.HTTPConnection(via.hostname or "", via.port or 3128, timeout=self.timeout_seconds)
            return plain, parts._replace(fragment="").geturl()
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        return kind(host, parts.port, timeout=self.timeout_seconds), target


def origin(parts: SplitResult) -> str:
    """`scheme://host:port` with the scheme's own port filled in: who may see a token."""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://{parts.hostname}:{port}"


def shown(url: str) -> str:
    """A URL for messages: without user, password and query, which may hold secrets (presigned addresses do)."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=host, query="", fragment="").geturl()


def _cause(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _refused(response: Response) -> SourceFailure:
    """What an answer outside 2xx means. The hub adds its own words in X-Error-Message."""
    url, status, words = shown(response.url), response.status, response.header("X-Error-Message")[:300]
    said = f" ({words})" if words else ""
    if status in (404, 410):
        return SourceFailure(
            Reason.NOT_FOUND, f"{url} does not exist: HTTP {status}{said}", "Check the address and the revision"
        )
    if status in (401, 403):
        return SourceFailure(
            Reason.UNAUTHORIZED,
            f"{url} refuses access: HTTP {status}{said}",
            "Give a token that may read it (the hub answers the same for a repository that does not exist)",
        )
    if status in (408, 425, 429) or status >= 500:
        wish = response.header("Retry-After")
        return Transient(f"{url} answers HTTP {status}{said}", float(wish) if wish.isdigit() else None)
    return SourceFailure(Reason.UNREACHABLE, f"{url} answers HTTP {status}{said}", "Check the address")
