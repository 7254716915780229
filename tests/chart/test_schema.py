"""A value that the chart does not know, or cannot be right, is refused by name."""

from __future__ import annotations

import pytest

from tests.chart.conftest import CHART, Helm

REFUSED = {
    "an unknown value": ("replicas=1", "replicas"),
    "an unknown nested value": ("image.name=x", "name"),
    "a misspelt switch": ("crds.keeps=true", "keeps"),
    "a negative count": ("replicaCount=-1", "replicaCount"),
    "words for a count": ("replicaCount=two", "replicaCount"),
    "an unknown pull policy": ("image.pullPolicy=Sometimes", "pullPolicy"),
    "an empty repository": ("image.repository=", "repository"),
    "a digest that is none": ("image.digest=sha256:12", "digest"),
    "an address without a scheme": ("hubEndpoint=hub.example.com", "hubEndpoint"),
    "a namespace in capitals": ("watchNamespaces={Chat}", "watchNamespaces"),
    "a namespace twice": ("watchNamespaces={chat,chat}", "watchNamespaces"),
    "all but some, of some": ("watchNamespaces={chat},excludeNamespaces={apart}", "not"),
    "an unknown log level": ("logLevel=verbose", "logLevel"),
    "a port out of range": ("metrics.service.port=70000", "port"),
    "an interval without a unit": ("metrics.serviceMonitor.interval=15", "interval"),
    "no time to stop": ("terminationGracePeriodSeconds=0", "terminationGracePeriodSeconds"),
    "a memory in words": ("resources.limits.memory=plenty", "memory"),
}


@pytest.mark.parametrize(("setting", "named"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(helm: Helm, setting: str, named: str) -> None:
    done = helm.run("template", "inference-fleet", CHART, "--set", setting)
    assert done.returncode != 0, f"{setting} was taken"
    assert "schema" in done.stderr, done.stderr
    assert named in done.stderr, done.stderr


def test_a_parent_chart_may_hand_its_globals_down(helm: Helm) -> None:
    helm.template("--set", "global.domain=example.com")
