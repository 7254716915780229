"""aiohttp's client as the way to the engines: a thin shell around `ports.Upstream`."""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp
from yarl import URL

from inference_fleet.gateway.ports import Disconnected, TimedOut, Unreachable, UpstreamFailed

KEEP_ALIVE_SECONDS = 3.0
"""Engines close an idle connection after 5 seconds (llama.cpp, vLLM): ours must be gone before, or a request now and
then meets a connection that is just being closed."""


class HttpAnswer:
    """An engine's answer."""

    __slots__ = ("_response", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    async def chunk(self) -> bytes:
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise _failure(error) from None

    async def read(self) -> bytes:
        try:
            return await self._response.read()
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise _failure(error) from None

    def close(self) -> None:
        # Gives a connection whose answer is whole back to the pool, and drops any other.
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


class HttpUpstream:
    """Sends requests over plain HTTP. A generation may take as long as it takes; only silence has a limit."""

    def __init__(self, connect_seconds: float, read_seconds: float) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS, ttl_dns_cache=10),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds, sock_read=read_seconds),
            auto_decompress=False,
            # A cookie of one tenant's answer must not go out with another tenant's request.
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent",),
        )

    async def post(self, address: str, target: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        url = URL(f"http://{address}{target}", encoded=True)
        try:
            response = await self._session.post(url, data=body, headers=headers, allow_redirects=False)
        except aiohttp.InvalidURL:
            raise Unreachable("not an address") from None
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise _failure(error) from None
        return HttpAnswer(response)

    async def close(self) -> None:
        await self._session.close()


def _failure(error: Exception) -> UpstreamFailed:
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        return Unreachable(type(error).__name__)
    if isinstance(error, TimeoutError):
        return TimedOut(type(error).__name__)
    return Disconnected(type(error).__name__)
