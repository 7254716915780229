"""What the operator costs with a thousand policies: `make bench-operator`.

A real API server with its controllers, KWOK's fake nodes, the operator as a process of its own. All of them share this machine, so
that the time to converge is theirs together; the CPU of each is measured apart. Nothing here passes or fails.

The same objects are also written by a plain script without any operator ("floor"): what is left of the time then is the API
server's, the controllers' and KWOK's alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from inference_fleet.cluster import kinds
from inference_fleet.cluster.client import ApiError, ApiUnreachable, ClusterClient, list_all, load_configuration
from inference_fleet.cluster.kinds import Kind
from tests.support import fleet
from tests.support.audit import Write
from tests.support.cluster import KwokCluster
from tests.support.running_operator import USER_AGENT, free_port

NAMESPACES = 10
WRITERS = 16
CLASS = "bench"
QUIET_SECONDS = 10.0
TARGETS = {
    "converge_seconds": 60.0,
    "steady_state_api_writes": 0.0,
    "rss_mb": 250.0,
    "loop_lag_ms_p99": 50.0,
}
PAGE = Path("docs/benchmarks/operator.md")
PARTS = ("kube-apiserver", "etcd", "kube-controller-manager", "kube-scheduler", "kwok-controller")


def say(text: str) -> None:
    """Progress, apart from the figures."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Figures:
    """One run. Seconds, MiB, milliseconds; CPU in seconds of one core."""

    policies: int
    converge_seconds: float
    half_seconds: float
    writes: Mapping[str, int]
    steady_writes: Mapping[str, int]
    steady_seconds: float
    rss_peak_mb: float
    rss_steady_mb: float
    lag_p50_ms: float
    lag_p99_ms: float
    steady_lag_p99_ms: float
    cpu: Mapping[str, float]
    steady_cpu: Mapping[str, float]
    passes: int
    steps: Mapping[str, tuple[int, float]]
    """Step of a pass → how often, seconds together."""
    machine_share: float
    """Of all CPU time of this machine in the run, what none of these processes used and was not idle, 0 to 1."""
    floor_seconds: float | None = None
    floor_cpu_seconds: float | None = None
    floor_failure: str = ""
    restart_seconds: float | None = None
    restart_writes: int | None = None


class Operator:
    """The operator's process."""

    def __init__(self, cluster: KwokCluster, log: Path, profile: Path | None) -> None:
        self.port = free_port()
        self.log = log
        self.log.write_bytes(b"")
        self._words = [sys.executable]
        if profile is not None:
            self._words += ["-m", "cProfile", "-o", str(profile)]
        self._words += [
            "-m", "inference_fleet.cli", "operator", "--kubeconfig", str(cluster.kubeconfig), "--lease-name", "bench",
            "--port", str(self.port), "--image", "inference-fleet:bench",
        ]  # fmt: skip
        self.process: psutil.Process | None = None
        self._popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            at = log.tell()
            self._popen = subprocess.Popen(self._words, stdout=log, stderr=log, env=dict(os.environ))
        self.process = psutil.Process(self._popen.pid)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if b"inference_fleet.kernel: serving" in self.log.read_bytes()[at:]:
                return
            if self._popen.poll() is not None:
                break
            time.sleep(0.05)
        raise SystemExit(f"the operator does not start:\n{self.log.read_text()[-3000:]}")

    def stop(self) -> None:
        assert self._popen is not None
        self._popen.terminate()
        self._popen.wait(60)

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def cpu(self) -> float:
        assert self.process is not None
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def memory_mb(self, field: str) -> float:
        assert self.process is not None
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) / 1024
        raise LookupError(field)


class Machine:
    """CPU seconds of the control plane's processes, and of everything."""

    def __init__(self, cluster: KwokCluster) -> None:
        where = str(cluster.kwok.state)
        self._parts: dict[str, psutil.Process] = {}
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if words and words[0].startswith(where):
                self._parts[Path(words[0]).name] = process

    def cpu(self) -> dict[str, float]:
        found = {}
        for name, process in self._parts.items():
            times = process.cpu_times()
            found[name] = float(times.user + times.system)
        return found

    @staticmethod
    def busy() -> tuple[float, float]:
        """CPU seconds spent by anyone, and those that there were, of all cores."""
        times = psutil.cpu_times()
        total = sum(times) - times.guest - times.guest_nice
        return total - times.idle - times.iowait, total


def less(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def quantile(metrics: Mapping[str, float], name: str, share: float) -> float:
    """Of a Prometheus histogram, interpolated within the bucket, as PromQL does. In the histogram's unit."""
    edges: list[tuple[float, float]] = []
    for key, value in metrics.items():
        if key.startswith(f"{name}_bucket"):
            edge = key.split('le="')[1].split('"')[0]
            edges.append((float(edge.replace("+Inf", "inf")), value))
    edges.sort()
    if not edges or not edges[-1][1]:
        return 0.0
    wanted, lower, below = share * edges[-1][1], 0.0, 0.0
    for edge, count in edges:
        if count >= wanted:
            if edge == float("inf"):
                return lower
            return lower + (edge - lower) * (wanted - below) / max(1e-9, count - below)
        lower, below = edge, count
    return lower


def counted(writes: Sequence[Write]) -> dict[str, int]:
    """Writes by verb and resource, the refused ones apart."""
    names = (
        f"{w.verb} {w.resource}" + (f" ({w.code})" if w.code >= 300 else "") for w in writes if w.resource != "leases"
    )
    return dict(Counter(names).most_common())


def prepare(cluster: KwokCluster, policies: int) -> list[str]:
    """CRDs, the gateways' role, nodes with room for every pod, namespaces, models. Returns the namespaces."""
    cluster.kubectl("apply", "--server-side", "-f", "crds")
    cluster.kubectl("create", "clusterrole", "inference-fleet-gateway", "--verb=get", "--resource=configmaps")
    nodes = -(-policies * 2 // 200) + 1
    for number in range(nodes):
        fleet.add_gpu_node(cluster, f"gpu-{number}", CLASS, gpus=-(-policies // nodes) + 10)
    cluster.apply(fleet.accelerator_class(CLASS))
    names = [f"bench-{number}" for number in range(NAMESPACES)]
    for name in names:
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        cluster.apply(fleet.model("tiny"), namespace=name)
        fleet.inspected(cluster, name, "tiny")
    return names


async def connect(cluster: KwokCluster) -> ClusterClient:
    return ClusterClient(await load_configuration(str(cluster.kubeconfig)), time.monotonic, user_agent="bench")


async def write_all(client: ClusterClient, documents: Sequence[tuple[Kind, Mapping[str, Any]]]) -> None:
    """Create everything, a few requests at a time."""
    waiting = iter(documents)

    async def writer() -> None:
        for kind, document in waiting:
            await client.create(kind, document)

    await asyncio.gather(*(writer() for _ in range(WRITERS)))


def is_ready(obj: Mapping[str, Any]) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def is_available(obj: Mapping[str, Any]) -> bool:
    return int((obj.get("status") or {}).get("readyReplicas") or 0) >= 1


async def until_all(
    client: ClusterClient, kind: Kind, selector: str, wanted: int, judge: Any, what: str
) -> list[float]:
    """Watches a kind until `wanted` objects satisfy; when each first did (monotonic)."""
    done: dict[str, float] = {}
    shown = time.monotonic()
    while True:
        items, version = await list_all(client, kind, "", selector)
        for item in items:
            if judge(item):
                done.setdefault(item["metadata"]["uid"], time.monotonic())
        if len(done) >= wanted:
            return sorted(done.values())
        async with contextlib.aclosing(client.watch(kind, "", selector, version)) as events:
            async for event in events:
                obj = event["object"]
                if event["type"] in ("ADDED", "MODIFIED") and judge(obj):
                    done.setdefault(obj["metadata"]["uid"], time.monotonic())
                if time.monotonic() - shown > 5:
                    shown = time.monotonic()
                    say(f"{len(done)} of {wanted} {what}")
                if len(done) >= wanted:
                    return sorted(done.values())


def documents(namespaces: Sequence[str], policies: int) -> list[tuple[Kind, dict[str, Any]]]:
    found = []
    for number in range(policies):
        document = fleet.policy(f"p{number:04d}", CLASS)
        document["metadata"]["namespace"] = namespaces[number % len(namespaces)]
        found.append((kinds.POLICY, document))
    return found


async def floor(client: ClusterClient, cluster: KwokCluster, machine: Machine) -> tuple[float, float]:
    """The same children, written by this script alone, until every Deployment has its replica: seconds, the control plane's CPU."""
    taken: list[tuple[Kind, dict[str, Any]]] = []
    owned = "app.kubernetes.io/managed-by=inference-fleet"
    for kind in (kinds.SERVICE_ACCOUNT, kinds.ROLE_BINDING, kinds.CONFIG_MAP, kinds.DEPLOYMENT, kinds.SERVICE):
        for item in (await list_all(client, kind, "", owned))[0]:
            item |= {"apiVersion": kind.api_version, "kind": kind.name}
            meta = item["metadata"]
            labels = {**meta["labels"], "app.kubernetes.io/managed-by": "floor"}
            place = meta["namespace"].replace("bench", "floor")
            item["metadata"] = {"name": meta["name"], "namespace": place, "labels": labels}
            item.pop("status", None)
            if kind is kinds.SERVICE:
                for key in ("clusterIPs", "ipFamilies", "ipFamilyPolicy"):
                    item["spec"].pop(key, None)
                if item["spec"].get("clusterIP") != "None":
                    item["spec"].pop("clusterIP", None)
            taken.append((kind, item))
    places = sorted({document["metadata"]["namespace"] for _, document in taken})
    for kind, document in taken:
        if kind is kinds.ROLE_BINDING:
            document["subjects"][0]["namespace"] = document["metadata"]["namespace"]
    # The operator's objects go first: the devices are theirs.
    for name in {place.replace("floor", "bench") for place in places}:
        cluster.kubectl("delete", "namespace", name, "--wait=false")
    for _ in range(150):
        if not (await list_all(client, kinds.POD, "", owned))[0]:
            break
        await asyncio.sleep(2)
    for place in places:
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place}})
    await asyncio.sleep(5)
    began, before = time.monotonic(), sum(machine.cpu().values())
    selector = "app.kubernetes.io/managed-by=floor"
    wanted = sum(kind is kinds.DEPLOYMENT for kind, _ in taken)
    watching = asyncio.create_task(
        until_all(client, kinds.DEPLOYMENT, selector, wanted, is_available, "Deployments available without an operator")
    )
    await write_all(client, taken)
    seconds = (await watching)[-1] - began
    return seconds, sum(machine.cpu().values()) - before


async def settle(cluster: KwokCluster, most: float = 180) -> None:
    """Until the operator has written nothing for a while."""
    end = time.monotonic() + most
    while time.monotonic() < end:
        marker = cluster.marker()
        await asyncio.sleep(QUIET_SECONDS)
        left = cluster.writes_since(marker, user_agent=USER_AGENT)
        if not left:
            return
        say(f"not quiet yet: {len(left)} writes in {QUIET_SECONDS:g} s")


async def measure(cluster: KwokCluster, options: argparse.Namespace, folder: Path) -> Figures:
    say(f"preparing namespaces, nodes and models for {options.policies} policies")
    namespaces = prepare(cluster, options.policies)
    client = await connect(cluster)
    log = options.keep_log or folder / "operator.log"
    operator, machine = Operator(cluster, log, options.profile), Machine(cluster)
    operator.start()
    try:
        await asyncio.sleep(2)
        marker = cluster.marker()
        before, parts, busy = operator.cpu(), machine.cpu(), machine.busy()
        say(f"declaring {options.policies} policies")
        began = time.monotonic()
        watching = asyncio.create_task(
            until_all(client, kinds.POLICY, "", options.policies, is_ready, "policies Ready")
        )
        await write_all(client, documents(namespaces, options.policies))
        say(f"declared after {time.monotonic() - began:.1f} s")
        ready = await watching
        converged = ready[-1] - began
        after, parts_after, busy_after = operator.cpu(), machine.cpu(), machine.busy()
        at_converged = operator.metrics()
        cpu = {"operator": after - before, **less(parts_after, parts)}
        total, there = busy_after[0] - busy[0], busy_after[1] - busy[1]
        say(f"all Ready after {converged:.1f} s; waiting until nothing is written any more")
        await settle(cluster)
        writes = counted(cluster.writes_since(marker, user_agent=USER_AGENT))
        quiet = operator.metrics()
        marker = cluster.marker()
        before, parts = operator.cpu(), machine.cpu()
        say(f"at rest: counting writes for {options.steady:g} s")
        await asyncio.sleep(options.steady)
        steady_writes = counted(cluster.writes_since(marker, user_agent=USER_AGENT))
        steady_cpu = {"operator": operator.cpu() - before, **less(machine.cpu(), parts)}
        rest = less(operator.metrics(), quiet)
        prefix = "inference_fleet_operator_"
        lag = f"{prefix}loop_lag_seconds"
        figures = Figures(
            policies=options.policies,
            converge_seconds=converged,
            half_seconds=ready[len(ready) // 2] - began,
            writes=writes,
            steady_writes=steady_writes,
            steady_seconds=options.steady,
            rss_peak_mb=operator.memory_mb("VmHWM"),
            rss_steady_mb=operator.memory_mb("VmRSS"),
            lag_p50_ms=quantile(at_converged, lag, 0.5) * 1000,
            lag_p99_ms=quantile(at_converged, lag, 0.99) * 1000,
            steady_lag_p99_ms=quantile(rest, lag, 0.99) * 1000,
            cpu=cpu,
            steady_cpu=steady_cpu,
            passes=int(sum(v for k, v in at_converged.items() if k.startswith(f"{prefix}passes_total"))),
            steps=_steps(at_converged, prefix),
            machine_share=max(0.0, total - sum(cpu.values())) / there,
        )
        if options.restart:
            figures = await restarted(cluster, operator, figures)
    finally:
        operator.stop()
    if options.floor:
        say("the same objects without an operator")
        try:
            seconds, used = await floor(client, cluster, machine)
            figures = dataclasses.replace(figures, floor_seconds=seconds, floor_cpu_seconds=used)
        except (ApiError, ApiUnreachable) as error:  # what was measured before is not lost by it
            figures = dataclasses.replace(figures, floor_failure=str(error))
    await client.close()
    return figures


async def restarted(cluster: KwokCluster, operator: Operator, figures: Figures) -> Figures:
    say("restarting the operator")
    operator.stop()
    marker = cluster.marker()
    began = time.monotonic()
    operator.start()
    served = time.monotonic() - began
    await asyncio.sleep(20)
    writes = cluster.writes_since(marker, user_agent=USER_AGENT)
    return dataclasses.replace(figures, restart_seconds=served, restart_writes=len(writes))


def _steps(metrics: Mapping[str, float], prefix: str) -> dict[str, tuple[int, float]]:
    found = {}
    for key, value in metrics.items():
        if key.startswith(f"{prefix}step_duration_seconds_sum"):
            step = key.split('step="')[1].split('"')[0]
            found[step] = (int(metrics[key.replace("_sum{", "_count{")]), value)
    return found


def lines(figures: Figures) -> Iterator[dict[str, Any]]:
    """The figures, one JSON object each."""

    def line(measure: str, value: float | None, unit: str, target: float | None = None) -> dict[str, Any]:
        found: dict[str, Any] = {"bench": "operator", "measure": measure, "value": value, "unit": unit}
        return found if target is None else {**found, "target": target}

    written = sum(figures.writes.values())
    converge = round(figures.converge_seconds, 1)
    yield line(f"converge_seconds_{figures.policies}_policies", converge, "s", TARGETS["converge_seconds"])
    if figures.floor_seconds is not None:
        yield line("same_objects_without_operator_seconds", round(figures.floor_seconds, 1), "s")
    elif figures.floor_failure:
        yield {**line("same_objects_without_operator_seconds", None, "s"), "why": figures.floor_failure}
    bound = sum(figures.cpu.values()) / (psutil.cpu_count() or 1)
    yield line("converge_seconds_if_alone_on_this_machine", round(bound, 1), "s", TARGETS["converge_seconds"])
    if figures.floor_cpu_seconds is not None:
        used = round(figures.floor_cpu_seconds, 1)
        yield line("cpu_seconds_control_plane_same_objects_without_operator", used, "s")
    yield line("api_writes_per_policy", round(written / figures.policies, 2), "writes")
    yield line(
        "steady_state_api_writes", sum(figures.steady_writes.values()), "writes", TARGETS["steady_state_api_writes"]
    )
    yield line("rss_mb", round(figures.rss_peak_mb, 1), "MiB", TARGETS["rss_mb"])
    yield line("loop_lag_ms_p99", round(figures.lag_p99_ms, 1), "ms", TARGETS["loop_lag_ms_p99"])
    yield line("cpu_seconds", round(figures.cpu["operator"], 1), "s")
    yield line("cpu_seconds_control_plane", round(sum(figures.cpu.values()) - figures.cpu["operator"], 1), "s")
    steady = 100 * figures.steady_cpu["operator"] / figures.steady_seconds
    yield line("steady_state_cpu_percent", round(steady, 1), "% of a core")


def page(figures: Figures) -> str:
    """docs/benchmarks/operator.md."""
    f = figures
    total = sum(f.cpu.values())
    out = [
        f"# The operator with {f.policies:,} policies",
        "",
        "Written by `make bench-operator`. Each policy has one model, one variant with one replica, and a gateway: "
        f"{f.policies * 7:,} objects and {f.policies * 2:,} pods. The API server, its controllers and KWOK's fake nodes are "
        f"real processes on the same {psutil.cpu_count()} cores as the operator. All policies are declared at once, by "
        f"{WRITERS} writers, in {NAMESPACES} namespaces, on one AcceleratorClass, so that all of them share one stock.",
        "",
        "| measure | value | target |",
        "| --- | --- | --- |",
        f"| all {f.policies:,} policies Ready, since the first was declared | {f.converge_seconds:.1f} s | ≤ 60 s |",
        f"| half of them Ready | {f.half_seconds:.1f} s | |",
    ]
    if f.floor_seconds is not None:
        out.append(f"| the same objects written by a script, without an operator | {f.floor_seconds:.1f} s | |")
    out += [
        f"| what that would be if nothing else ran: CPU seconds of all parts, by {psutil.cpu_count()} cores "
        f"| {total / (psutil.cpu_count() or 1):.1f} s | ≤ 60 s |",
        f"| API writes per policy | {sum(f.writes.values()) / f.policies:.2f} | |",
        f"| API writes at rest, in {f.steady_seconds:g} s | {sum(f.steady_writes.values())} | 0 |",
        f"| memory, peak | {f.rss_peak_mb:.0f} MiB | ≤ 250 MiB |",
        f"| memory, at rest | {f.rss_steady_mb:.0f} MiB | |",
        f"| event loop late, median | {f.lag_p50_ms:.1f} ms | |",
        f"| event loop late, 99th percentile | {f.lag_p99_ms:.1f} ms | ≤ 50 ms |",
        f"| event loop late, 99th percentile, at rest | {f.steady_lag_p99_ms:.1f} ms | |",
        f"| CPU of the operator until all are Ready | {f.cpu['operator']:.1f} s | |",
        f"| CPU of the operator at rest | {100 * f.steady_cpu['operator'] / f.steady_seconds:.1f} % of a core | |",
    ]
    if f.restart_seconds is not None:
        out.append(f"| a restarted operator serves after | {f.restart_seconds:.1f} s | |")
        out.append(f"| API writes of a restarted operator in its first 20 s | {f.restart_writes} | 0 |")
    out += [
        "",
        "The event loop's lag is sampled four times a second from the operator's start.",
        "",
        "## Who uses the CPU until all are Ready",
        "",
        "| process | CPU seconds | share |",
        "| --- | --- | --- |",
    ]
    for name, seconds in sorted(f.cpu.items(), key=lambda pair: -pair[1]):
        out.append(f"| {name} | {seconds:.1f} | {100 * seconds / total:.0f} % |")
    if f.floor_cpu_seconds is not None:
        out += [
            "",
            f"For the same objects written by a script, without an operator, the control plane alone uses "
            f"{f.floor_cpu_seconds:.1f} CPU seconds.",
        ]
    out += [
        "",
        f"{100 * f.machine_share:.0f} % of the machine's CPU time went to other processes (the bench's own writers and "
        "watch among them) meanwhile.",
        "",
        "## Where the operator's passes spend their time",
        "",
        f"{f.passes:,} passes until all were Ready. The time is from begin to end of each step, waiting for the API server "
        "and for other passes included; up to eight passes run at once.",
        "",
        "| step | times | seconds together | milliseconds each |",
        "| --- | --- | --- | --- |",
    ]
    for step, (count, seconds) in sorted(f.steps.items(), key=lambda pair: -pair[1][1]):
        out.append(f"| {step} | {count} | {seconds:.1f} | {1000 * seconds / max(1, count):.2f} |")
    out += ["", "## What the operator writes", "", "| request | times | per policy |", "| --- | --- | --- |"]
    for name, count in f.writes.items():
        out.append(f"| {name} | {count} | {count / f.policies:.2f} |")
    if f.steady_writes:
        out += ["", "At rest:", ""]
        out += [f"- {name}: {count}" for name, count in f.steady_writes.items()]
    return "\n".join(out) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", type=int, default=1000)
    parser.add_argument("--steady", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--cluster", default=f"bench-operator-{os.getpid()}", metavar="NAME")
    parser.add_argument("--profile", type=Path, help="where to write a cProfile of the operator's main thread")
    parser.add_argument("--keep-log", type=Path, help="where to write the operator's log")
    parser.add_argument("--no-floor", dest="floor", action="store_false")
    parser.add_argument("--no-restart", dest="restart", action="store_false")
    parser.add_argument("--no-page", dest="page", action="store_false", help=f"leave {PAGE} as it is")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # so that the cluster and the operator end with it
    cluster = KwokCluster(options.cluster)
    cluster.start(fresh=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            figures = asyncio.run(measure(cluster, options, Path(folder)))
    finally:
        if not os.environ.get("INFERENCE_FLEET_KEEP"):
            cluster.stop()
    if options.page:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page(figures))
        say(f"written: {PAGE}")
    else:
        print(page(figures), file=sys.stderr)
    for line in lines(figures):
        print(json.dumps(line, ensure_ascii=False))


if __name__ == "__main__":
    main()
