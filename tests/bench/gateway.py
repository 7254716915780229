"""`make bench-gateway`: what the gateway costs, beside vllm-router (written in Rust) in the same run.

Both stand in front of the same engine that costs next to nothing, on a processor of their own, and get the same load in
turn; each figure is of the least disturbed round. What another revision of the gateway costs is measured in the same run
with `--against DIRECTORY`, a checkout of it.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import venv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hack.bench.figures import Figure, table
from hack.bench.gateway_load import Load
from hack.tools.cache import REPOSITORY, cache, locked
from hack.tools.progress import Failure, say, wait

PEER = "vllm-router"
PEER_VERSION = "0.1.17"
PAGE = REPOSITORY / "docs" / "benchmarks" / "gateway.md"
BY_HAND = "<!-- What follows is written by hand and kept. -->"

KEY = "sk-bench"
CHUNKS = 100
GAP_SECONDS = 0.005
LARGE_PROMPT_BYTES = 220_000


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def cores() -> tuple[set[int], set[int]]:
    """Processors for what is measured, and for everything else; the same where there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    return ({usable[-1]}, set(usable[:-1])) if len(usable) > 1 else (set(usable), set(usable))


@contextlib.contextmanager
def running(
    command: Sequence[str], on: set[int], log: Path, environment: dict[str, str] | None = None
) -> Iterator[int]:
    """A process on these processors; its id."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **(environment or {})}, cwd=REPOSITORY
        )
    try:
        os.sched_setaffinity(process.pid, on)
        yield process.pid
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def answers(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1) as answer:
        return bool(answer.status == 200)
    return False


def peer_program() -> Path:
    """The peer in a virtual environment of its own; installed once."""
    folder = cache() / f"{PEER}-{PEER_VERSION}"
    program = folder / "bin" / PEER
    with locked(PEER):
        if not program.exists():
            say(f"installing {PEER} {PEER_VERSION} into the cache")
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=True)
            command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", f"{PEER}=={PEER_VERSION}"]
            if subprocess.run(command).returncode:
                shutil.rmtree(folder, ignore_errors=True)
                raise Failure(f"{PEER} could not be installed from PyPI")
    return program


@dataclass(slots=True)
class Target:
    """Something that is measured."""

    name: str
    port: int
    metrics_port: int
    pid: int
    key: str
    cpu_us: dict[str, list[float]] = field(default_factory=dict)
    rss_mb: float = 0.0
    first_ms: list[float] = field(default_factory=list)

    def least(self, what: str) -> float:
        """Of the least disturbed round: other work on the machine only ever adds."""
        return round(min(self.cpu_us[what]), 1)


@contextlib.contextmanager
def gateway(name: str, source: Path, engine_port: int, authenticated: bool, folder: Path) -> Iterator[Target]:
    port, admin_port = free_port(), free_port()
    own = folder / name.replace(" ", "-")
    (own / "keys").mkdir(parents=True)
    (own / "keys" / "bench").write_text(hashlib.sha256(KEY.encode()).hexdigest())
    (own / "routes.json").write_text(json.dumps(routes(engine_port)))
    command = [
        sys.executable, "-m", "inference_fleet.gateway", "--policy", "bench", "--host", "127.0.0.1",
        "--port", str(port), "--admin-port", str(admin_port), "--routes-file", str(own / "routes.json"),
    ]  # fmt: skip
    if authenticated:
        command += ["--keys-directory", str(own / "keys")]
    on, _ = cores()
    with running(command, on, own / "log", {"PYTHONPATH": str(source / "operator")}) as pid:
        wait(name, lambda: answers(f"http://127.0.0.1:{port}/health"), 30, quiet=True)
        yield Target(name, port, admin_port, pid, KEY if authenticated else "")


@contextlib.contextmanager
def peer(name: str, engine_port: int, folder: Path) -> Iterator[Target]:
    port, metrics_port = free_port(), free_port()
    command = [
        str(peer_program()), "--worker-urls", f"http://127.0.0.1:{engine_port}", "--host", "127.0.0.1",
        "--port", str(port), "--policy", "round_robin", "--log-level", "warning",
        "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port),
    ]  # fmt: skip
    on, _ = cores()
    log = folder / f"{name}.log"
    with running(command, on, log) as pid:
        try:
            wait(name, lambda: answers(f"http://127.0.0.1:{port}/health"), 60, quiet=True)
        except Failure:
            raise Failure(f"{PEER} does not start here:\n{log.read_text()[-2000:]}") from None
        yield Target(name, port, metrics_port, pid, "")


def routes(engine_port: int) -> dict[str, Any]:
    variant = {
        "name": "v", "service": "v", "port": 8000, "weight": 100, "engine": "VLLM",
        "endpoints": [f"127.0.0.1:{engine_port}"],
    }  # fmt: skip
    model = {"name": "m", "servedNames": [], "contextTokens": 8192, "default": True, "variants": [variant]}
    objectives = [
        {"name": metric, "metric": metric, "percentile": 95, "milliseconds": 500}
        for metric in ("TimeToFirstToken", "TimePerOutputToken", "EndToEndLatency")
    ]
    return {
        "revision": "bench", "policy": "bench", "namespace": "default", "holdSeconds": 5, "maxBodyBytes": 32 << 20,
        "windowSeconds": 300, "objectives": objectives, "models": [model], "drain": [],
    }  # fmt: skip


def put(load: Load) -> dict[str, Any]:
    """Runs a load in a process of its own, off the measured processor."""
    _, others = cores()
    done = subprocess.run(
        [sys.executable, "-m", "hack.bench.gateway_load", json.dumps(asdict(load))],
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        timeout=load.seconds * 5 + 120,
        preexec_fn=lambda: os.sched_setaffinity(0, others),
    )
    if done.returncode:
        raise Failure("the load ended with an error")
    result = dict(json.loads(done.stdout))
    if result["failed"]:
        raise Failure(f"{result['failed']} of {result['requests']} answers were wrong")
    return result


@contextlib.contextmanager
def scraped(targets: Sequence[Target]) -> Iterator[None]:
    """Reads everybody's metrics once a second, as a busy Prometheus would."""
    over = threading.Event()

    def read() -> None:
        while not over.wait(1.0):
            for target in targets:
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{target.metrics_port}/metrics", timeout=1).read()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


LOADS: dict[str, dict[str, Any]] = {
    "request": {"stream": False, "clients": 16},
    "chunk": {"stream": True, "clients": 64},
    "request_220kb": {"stream": False, "clients": 4, "prompt_bytes": LARGE_PROMPT_BYTES},
}


def measure(targets: Sequence[Target], direct_port: int, rounds: int, seconds: float) -> None:
    for number in range(1, rounds + 1):
        for what, shape in LOADS.items():
            for target in targets:
                load = Load(ports=[target.port], seconds=seconds, pid=target.pid, key=target.key, **shape)
                result = put(load)
                count = result["chunks"] if what == "chunk" else result["requests"]
                target.cpu_us.setdefault(what, []).append(result["cpu_seconds"] / count * 1e6)
                target.rss_mb = max(target.rss_mb, result["rss_mb"])
                say(
                    f"  round {number} of {rounds}: {target.name}: {target.cpu_us[what][-1]:.1f} us per {what}"
                    f" ({result['requests'] / result['seconds']:.0f} requests/s)"
                )
        ports = [direct_port, *(target.port for target in targets)]
        first = put(Load(ports=ports, stream=True, seconds=seconds, key=KEY, max_tokens=1))["first_ms"]
        for target in targets:
            target.first_ms.append(first[str(target.port)] - first[str(direct_port)])
        say(
            f"  round {number} of {rounds}: added TTFT "
            + ", ".join(f"{t.name} {t.first_ms[-1]:.2f} ms" for t in targets)
        )


MEASURES: tuple[tuple[str, str, float, Callable[[Target], float]], ...] = (
    ("cpu_us_per_request", "us", 250.0, lambda target: target.least("request")),
    ("cpu_us_per_chunk", "us", 30.0, lambda target: target.least("chunk")),
    ("cpu_us_per_request_220kb", "us", 600.0, lambda target: target.least("request_220kb")),
    ("added_ttft_ms_p50", "ms", 1.0, lambda target: round(min(target.first_ms), 2)),
    ("rss_mb", "MB", 120.0, lambda target: round(target.rss_mb, 1)),
)
AUTHENTICATED = "_with_authentication"


def figures(ours: Target, other: Target | None, suffix: str, why: str | None) -> list[Figure]:
    return [
        Figure(
            bench="gateway",
            measure=name + suffix,
            value=read(ours),
            unit=unit,
            target=target,
            peer=f"{PEER} {PEER_VERSION}" if other else None,
            peer_value=read(other) if other else None,
            why=why if other is None else None,
        )
        for name, unit, target, read in MEASURES
    ]


def page(found: list[Figure], before: list[Figure]) -> str:
    model = next(
        (line.partition(": ")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        "?",
    )
    parts = [
        "# What the gateway costs",
        f"""`make bench-gateway` writes this page. Measured on {time.strftime("%Y-%m-%d")}, {os.cpu_count()} processors
({model}, load average {os.getloadavg()[1]:.1f}), Python {platform.python_version()}.
Processor time as the kernel counts it, of the least disturbed of several rounds, for the gateway as for the peer: what else
runs on a machine only ever adds. Both have the same processor in turn.""",
        table(found, f"{PEER} {PEER_VERSION}"),
        f"""- `cpu_us_per_request`: a chat completion without a stream, prompt of 1,600 bytes, 16 clients.
- `cpu_us_per_chunk`: all that a stream of {CHUNKS} chunks costs, {GAP_SECONDS * 1e3:g} ms apart, 64 clients, divided by its chunks:
  the request's own cost is in it.
- `added_ttft_ms_p50`: median time to the first piece through it, less that of the engine asked directly, all of them in
  turn by one client.
- `rss_mb`: the most after any load. The gateway's routes come from a file; with the cluster's client it is some 10 MB more.
- `…{AUTHENTICATED}`: keys are checked, and metrics read once a second. The gateway always counts its metrics. {PEER} has no
  check of clients' keys among its options, so beside these rows stands {PEER} without one, its metrics read as well.""",
    ]
    if before:
        parts += ["## Against another revision, in the same run", table(before, "other revision")]
    return "\n\n".join(parts) + "\n"


def bench(rounds: int, seconds: float, against: Path | None) -> list[Figure]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engine_port = free_port()
        command = [sys.executable, "-m", "hack.bench.gateway_engine", str(engine_port), str(CHUNKS), str(GAP_SECONDS)]
        _, others = cores()
        stack.enter_context(running(command, others, folder / "engine.log"))
        wait("engine", lambda: answers(f"http://127.0.0.1:{engine_port}/"), 30, quiet=True)
        enter = stack.enter_context
        plain = enter(gateway("gateway", REPOSITORY, engine_port, False, folder))
        authenticated = enter(gateway("gateway with authentication", REPOSITORY, engine_port, True, folder))
        targets = [plain, authenticated]
        why, beside, earlier = None, None, None
        try:
            beside = enter(peer(PEER, engine_port, folder))
            targets.append(beside)
        except (Failure, OSError) as error:
            why = str(error).splitlines()[0]
            say(f"no peer: {error}")
        if against is not None:
            earlier = enter(gateway("other revision", against, engine_port, True, folder))
            targets.append(earlier)
        with scraped(targets):
            measure(targets, engine_port, rounds, seconds)
        found = [*figures(plain, beside, "", why), *figures(authenticated, beside, AUTHENTICATED, why)]
        before: list[Figure] = []
        if earlier is not None:
            before = [
                Figure(
                    "gateway", name + AUTHENTICATED, read(authenticated), unit, None, "other revision", read(earlier)
                )
                for name, unit, _, read in MEASURES
            ]
        kept = PAGE.read_text().partition(BY_HAND)[2] if PAGE.exists() else ""
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page(found, before) + "\n" + BY_HAND + (kept or "\n"))
        say(f"written: {PAGE.relative_to(REPOSITORY)}")
        return found + before


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-gateway", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    parser.add_argument("--against", type=Path, help="a checkout of another revision, measured beside this one")
    arguments = parser.parse_args()
    try:
        found = bench(arguments.rounds, arguments.seconds, arguments.against)
    except Failure as error:
        say(str(error))
        return 1
    for figure in found:
        print(figure.as_json(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
