"""What keeps clients' words out of the log, whoever writes to it."""

from __future__ import annotations

import asyncio
import logging
import traceback
from types import TracebackType
from typing import Any

from aiohttp.http_exceptions import HttpProcessingError

log = logging.getLogger(__name__)


class KindOnlyFormatter(logging.Formatter):
    """Writes of an exception where it came from and its kind, never its message.

    Messages quote what could not be handled: an HTTP parser's the header it could not read, which may hold a key.
    """

    def formatException(  # noqa: N802 - logging's name
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        kind, _, place = ei
        return "".join(traceback.format_tb(place)) + (kind.__qualname__ if kind else "")


class WithoutBrokenRequests(logging.Filter):
    """Keeps requests that are no HTTP out of the log: anybody who reaches the port can send any number of them."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, HttpProcessingError)


def report_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """For `loop.set_exception_handler`: asyncio's own writes out tasks with the messages of their exceptions."""
    error = context.get("exception")
    log.error("%s", context.get("message", "an error in the event loop"), exc_info=error)


def http_logger() -> logging.Logger:
    """For aiohttp's server."""
    logger = logging.getLogger("inference_fleet.gateway.http")
    if not logger.filters:
        logger.addFilter(WithoutBrokenRequests())
    return logger
