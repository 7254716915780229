#!/usr/bin/env python3
"""`llama-server` for hosts where no llama.cpp image can be pulled: its own server and parser out of a Python wheel.

The wheel `xllamacpp` carries the whole of llama.cpp's server as one shared library, but its Python interface takes no
command line. The library does export the parser that `llama-server` itself uses, so this launcher hands argv (and with
it the `LLAMA_ARG_*` environment) to that parser: what the real program refuses is refused here, with its own message.

Stopping is better than the real program's, which cuts every stream on SIGTERM: here SIGTERM closes the listening
socket, waits until nothing is being processed or queued, or until LLAMA_SERVER_DRAIN_SECONDS (default 600, so that in
Kubernetes the pod's grace period decides) have passed, and then leaves.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import urllib.request
from pathlib import Path

import xllamacpp

WHEEL_VERSION = "2026.10.11549"
"""The parser is called on the object's memory, whose layout belongs to one build: no other version is accepted."""

PARSER_SYMBOL = "_Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E"
SERVER_EXAMPLE = 12  # llama_example::LLAMA_EXAMPLE_SERVER, chooses which flags exist
PARAMS_OFFSET = 16  # common_params follows the Python object's header: reference count and type pointer
DEFAULT_PORT = 8080  # llama-server's; the wheel's own default is 0

# Reading the counters goes through the same queue as the requests. Polled faster than about every 0.1 s, llama.cpp no
# longer notices that a client without a stream has gone, and finishes its answer for nobody.
POLL_SECONDS = 0.5
QUIET_POLLS = 2  # a request that is just being parsed is in no counter yet

LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where to reach a socket that is bound to every address."""

ACTIVE = re.compile(r"^llamacpp:requests_(?:processing|deferred) (\S+)$", re.MULTILINE)


def parse(arguments: list[str]) -> xllamacpp.CommonParams:
    """llama.cpp's own reading of a `llama-server` command line.

    Ends the process as the real program does: status 1 after a refused argument (the parser has printed why), 0 after
    `--help`, `--version` and the like.
    """
    library = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
    parser = library[PARSER_SYMBOL]
    parser.restype = ctypes.c_bool
    parser.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    argv = (ctypes.c_char_p * (len(arguments) + 1))(*(os.fsencode(word) for word in arguments), None)

    params = xllamacpp.CommonParams()
    params.port = DEFAULT_PORT
    if not parser(len(arguments), argv, id(params) + PARAMS_OFFSET, SERVER_EXAMPLE, None):
        sys.stderr.flush()
        os._exit(1)
    return params


def say(text: str) -> None:
    print(f"llama-server launcher: {text}", file=sys.stderr, flush=True)


def move_intake(port: int) -> str:
    """Has the running server listen on a private loopback address instead of `port`; returns that address.

    Closing the listener would end the server's accept loop, and with it the server. So the descriptor it accepts from
    is given another socket to mean. A thread that is inside `accept` still holds the old one: a connection of our own
    ends that call, and with it the old socket.
    """
    private = socket.create_server(("127.0.0.1", 0))
    for descriptor in listening_descriptors(port):
        with socket.socket(fileno=os.dup(descriptor)) as public:
            address = public.getsockname()
            family = public.family
        os.dup2(private.fileno(), descriptor)
        with contextlib.suppress(OSError), socket.socket(family) as wake:
            wake.settimeout(1)
            wake.connect((LOOPBACK.get(address[0], address[0]), *address[1:]))
    return f"127.0.0.1:{private.getsockname()[1]}"


def listening_descriptors(port: int) -> list[int]:
    """This process's own descriptors of sockets that listen on `port`."""
    found = []
    for entry in list(Path("/proc/self/fd").iterdir()):
        # Not a socket, or closed since it was listed: not what is looked for.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(entry.name))) as candidate:
            if (
                candidate.family in (socket.AF_INET, socket.AF_INET6)
                and candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                and candidate.getsockname()[1] == port
            ):
                found.append(int(entry.name))
    return found


def active_requests(server: xllamacpp.Server, params: xllamacpp.CommonParams, address: str) -> int | None:
    """Requests being processed or waiting for a slot; None where the command line forbids to look."""
    if params.endpoint_metrics:
        return sum(int(float(value)) for value in ACTIVE.findall(server.handle_metrics()))
    if params.endpoint_slots:
        key = {"Authorization": f"Bearer {params.api_keys[0]}"} if params.api_keys else {}
        request = urllib.request.Request(f"http://{address}{params.api_prefix}/slots", headers=key)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return sum(slot["is_processing"] for slot in json.load(answer))
    return None


def drain(server: xllamacpp.Server, params: xllamacpp.CommonParams, seconds: float) -> None:
    """Takes no new connection, and returns when nothing is in flight or after `seconds`."""
    address = move_intake(params.port)
    deadline = time.monotonic() + seconds
    quiet = 0
    reported: int | None = -1
    while True:
        active = active_requests(server, params, address)
        if active != reported:
            say(f"stopping, {'an unknown number of' if active is None else active} requests in flight")
            reported = active
        quiet = quiet + 1 if active == 0 else 0
        if quiet == QUIET_POLLS:
            return
        if time.monotonic() >= deadline:
            say(f"the deadline of {seconds:g} s has passed, what is still in flight is cut")
            return
        time.sleep(min(POLL_SECONDS, deadline - time.monotonic()))


def main() -> None:
    if xllamacpp.__version__ != WHEEL_VERSION:
        sys.exit(f"this launcher needs xllamacpp {WHEEL_VERSION}, not {xllamacpp.__version__}")
    drain_seconds = float(os.environ.get("LLAMA_SERVER_DRAIN_SECONDS", "600"))
    # Every thread made from here on inherits this mask: the signals come to `sigwait` below and nowhere else.
    stop_signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals)
    params = parse(["llama-server", *sys.argv[1:]])
    started = threading.Event()
    failed: list[BaseException] = []
    servers: list[xllamacpp.Server] = []

    def start() -> None:
        try:
            servers.append(xllamacpp.Server(params))  # returns when the model is loaded and the port answers
        except BaseException as error:
            failed.append(error)
            os.kill(os.getpid(), signal.SIGTERM)
        started.set()

    threading.Thread(target=start, name="server", daemon=True).start()
    signal.sigwait(stop_signals)
    if failed:
        say(str(failed[0]))
        os._exit(1)
    if started.is_set():
        drain(servers[0], params, drain_seconds)
    # Not sys.exit: destroying the server waits, and hangs where a request is still running.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
