"""A watch that is open and delivers nothing, while a list shows changes: the one fault for which the process is to be replaced."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest

from tests.support.cluster import KwokCluster
from tests.support.fault_proxy import FaultProxy, Mute
from tests.support.fleet import Fleet, cluster, place
from tests.support.running_operator import USER_AGENT, RunningOperator, running

__all__ = ["cluster", "place"]

SILENCE_SECONDS = 3
FLAGS = ("--resync-seconds", "2", "--relist-seconds", "2", "--silence-seconds", str(SILENCE_SECONDS))


@pytest.fixture(scope="module")
def proxy(cluster: KwokCluster) -> Iterator[FaultProxy]:
    with FaultProxy(cluster.kubeconfig) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def operator(proxy: FaultProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningOperator]:
    folder = tmp_path_factory.mktemp("operator")
    kubeconfig = proxy.write_kubeconfig(folder / "kubeconfig")
    with running(kubeconfig, folder, f"silence-{uuid.uuid4().hex[:6]}", *FLAGS) as operator:
        yield operator


@pytest.mark.parametrize(
    ("agent", "resource", "says"),
    [
        (USER_AGENT, "deployments", "no watch event delivered: deployments"),
        ("kopf", "inferencepolicies", "kopf delivers no events of: inferencepolicies"),
    ],
    ids=["ours", "kopf's"],
)
def test_a_watch_that_stays_silent_while_a_list_shows_changes_makes_it_unhealthy(
    place: Fleet, proxy: FaultProxy, operator: RunningOperator, agent: str, resource: str, says: str
) -> None:
    place.declare()
    place.condition("chat", "Ready")
    name = place.engine()["metadata"]["name"] if resource == "deployments" else "chat"
    with proxy.fault(Mute(), watch=True, agent=agent, path=f"/{resource}"):
        place.cluster.kubectl("-n", place.namespace, "label", resource, name, "by=hand")
        began = time.monotonic()
        place.wait("it is unhealthy", lambda: says in operator.get("/healthz")[1])
        assert time.monotonic() - began >= SILENCE_SECONDS
        assert operator.get("/healthz")[0] == 503
        time.sleep(SILENCE_SECONDS)
        assert operator.get("/healthz")[0] == 503, "also after the stream was opened anew: it is as silent"
        assert operator.get("/readyz")[0] == 503
        # What the lists show is acted on all the same.
        place.replicas(2)
        place.wait("two replicas", lambda: place.engine()["spec"]["replicas"] == 2)
    proxy.cut_watches(resource)
    place.wait("it is well again", lambda: operator.get("/healthz")[0] == 200)
