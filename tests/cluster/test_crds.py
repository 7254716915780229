"""Real API servers, the newest and the oldest supported, judge the CustomResourceDefinitions and what is written by them.

Every file under invalid/ must be refused with its sentence, every one under valid/ accepted strictly. What the server's defaults
make of a resource must be what our own reading makes of it. And rules must stay cheap: see `copies_of`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from hack.cluster.api_server import VERSIONS, ApiServer
from inference_fleet.api import crd
from inference_fleet.api.crd import KINDS, Kind
from inference_fleet.api.faults import sentences
from tests.cluster import random_resources
from tests.cluster.dry_run import DryRun
from tests.support.cluster import Cluster
from tests.unit.api.resources import BY_NAME, REPOSITORY, Refused, refused, valid
from tests.unit.api.structural import nodes

VALID = dict(valid())
PER_KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource.kind)


@pytest.fixture(scope="module", params=sorted(VERSIONS))
def api(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """etcd and an API server of one version, with our CustomResourceDefinitions as they are committed."""
    server = ApiServer(request.param)
    server.start()
    try:
        cluster = Cluster(server)
        cluster.kubectl("apply", "-f", REPOSITORY / "crds")
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        yield cluster
    finally:
        server.stop()


def apply(cluster: Cluster, document: dict[str, Any], *words: str) -> str:
    return cluster.kubectl("apply", "--validate=strict", *words, "-f", "-", input=json.dumps(document))


def stored(cluster: Cluster, document: dict[str, Any]) -> dict[str, Any]:
    kind = BY_NAME[document["kind"]].resource
    found = cluster.get(f"{kind.plural}.{crd.GROUP}", document["metadata"]["name"])
    assert found is not None
    return found


def delete(cluster: Cluster, document: dict[str, Any]) -> None:
    kind = BY_NAME[document["kind"]].resource
    cluster.kubectl("delete", f"{kind.plural}.{crd.GROUP}", document["metadata"]["name"], "--ignore-not-found")


# -- accepted and refused


def test_there_are_enough_refusals() -> None:
    assert len(refused()) >= 30
    assert len({case.refused for case in refused()}) >= 30


@pytest.mark.parametrize("case", refused(), ids=str)
def test_refused_with_its_sentence(api: Cluster, case: Refused) -> None:
    *before, last = case.documents
    try:
        for document in before:
            apply(api, document)
        said = api.refused("apply", "--validate=strict", "-f", "-", input=json.dumps(last))
        assert case.refused in said
    finally:
        for document in before:
            delete(api, document)


@pytest.mark.parametrize("name", VALID)
def test_accepted_strictly_and_read_as_we_read_it(api: Cluster, name: str) -> None:
    document = VALID[name]
    kind = BY_NAME[document["kind"]]
    apply(api, document)
    try:
        found = stored(api, document)
        assert kind.model_validate(found).spec == kind.model_validate(document).spec, "the defaults differ"
        written = {**kind.model_validate(document).to_dict(), "metadata": document["metadata"]}
        del written["status"]
        apply(api, written)
        assert kind.model_validate(stored(api, document)).spec == kind.model_validate(document).spec
    finally:
        delete(api, document)


def test_what_is_not_the_source_can_be_changed(api: Cluster) -> None:
    document = copy.deepcopy(VALID["models:InferenceModel:qwen3-8b"])
    apply(api, document)
    try:
        document["spec"]["facts"] = {"layers": 36}
        document["metadata"]["labels"] = {"team": "search"}
        apply(api, document)
        assert stored(api, document)["spec"]["facts"] == {"layers": 36}
    finally:
        delete(api, document)


def test_a_policy_at_every_bound_is_accepted(api: Cluster) -> None:
    """Rules are not only cheap by estimate: at run time the server stops a rule, and a request, at budgets of their own."""
    policy = largest_policy()
    api.kubectl("create", "--validate=strict", "-f", "-", input=json.dumps(policy))
    try:
        assert len(stored(api, policy)["spec"]["models"]) == 16
    finally:
        delete(api, policy)


def largest_policy() -> dict[str, Any]:
    def entry(index: int) -> dict[str, Any]:
        name = f"m{index:02}".ljust(63, "x")
        filler = "-" * 244
        return {
            "name": name,
            "servedNames": [f"served-{index:02}-{i}".ljust(128, "x") for i in range(8)],
            "engine": {
                "type": "VLLM",
                "version": "0.32",
                "extraArguments": [f"--seed-{i:02}-{filler}"[:256] for i in range(32)],
            },
            "builds": [{"name": "main", "modelRef": {"name": "qwen3"}, "quantization": {"method": "FP8"}}],
            "contextTokens": 2097152,
            "batching": {"maxSequences": 1024, "maxBatchedTokens": 1048576},
            "speculation": {"method": "DraftModel", "draftRef": {"name": "draft"}, "maxDepth": 16},
            "accelerators": [{"name": f"a{i}", "classRef": {"name": f"class-{i}"}} for i in range(8)],
            "podTemplate": {
                "metadata": {"labels": {f"label-{i:02}.example.com/{'k' * 60}": "v" * 63 for i in range(32)}},
                "spec": {"containers": [{"name": f"c{i:02}", "image": "i" * 256} for i in range(16)]},
            },
        }

    objectives = [
        {"name": f"o{i}", "metric": "EndToEndLatency", "percentile": 99, "milliseconds": 3600000} for i in range(8)
    ]
    return {
        "apiVersion": "inference-fleet.dev/v1alpha1",
        "kind": "InferencePolicy",
        "metadata": {"name": "largest".ljust(50, "x")},
        "spec": {
            "models": [entry(index) for index in range(16)],
            "slo": {"windowSeconds": 3600, "objectives": objectives},
            "gateway": {"authentication": {"type": "APIKeys", "secretRef": {"name": "keys"}}, "replicas": 50},
        },
    }


# -- status, columns


STATUSES: dict[str, dict[str, Any]] = {
    "InferenceModel": {
        "observedGeneration": 1,
        "resolved": {
            "revision": "c1899de289a04d12100db370d81485cdf75e47ca",
            "digest": "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "format": "Safetensors",
            "weightBytes": 16381470720,
            "files": [{"path": "model-00001-of-00005.safetensors", "bytes": 3996250744, "digest": "sha256:31d6a825"}],
        },
        "facts": {
            "architecture": "Qwen3ForCausalLM", "parameters": 8190735360, "layers": 36, "hiddenSize": 4096, "keyValueHeads": 8,
            "attentionHeads": 32, "headDimension": 128, "attention": "GQA", "vocabularySize": 151936,
            "tokensDigest": "sha256:aeb13307", "maxContextTokens": 40960, "weightBits": 16, "tokenizerModel": "BPE",
        },
    },
    "AcceleratorClass": {"observedGeneration": 1, "devices": {"allocatable": 8, "usedByOthers": 1, "claimed": 4}},
    "InferencePolicy": {
        "observedGeneration": 1,
        "endpoint": "http://minimal-gateway.default.svc/v1",
        "replicas": "1/2",
        "models": [{"name": "minimal", "ready": True, "replicas": {"desired": 2, "ready": 1}, "reason": "Serving", "message": ""}],
        "variants": [
            {
                "name": "minimal-minimal-1a2b3c4d", "model": "minimal", "build": "main", "accelerator": "any",
                "replicas": {"desired": 2, "ready": 1}, "pricePerHour": "0.81", "upToDate": True,
                "memory": {"neededBytes": 9663676416, "availableBytes": 23622320128, "sequences": 11},
                "speculation": {"depth": 4, "acceptedPercent": 71},
            }
        ],
        "objectives": [{"name": "whole", "observedMilliseconds": 2710, "attainmentPercent": 97, "requests": 1200}],
        "cost": {"currency": "USD", "perHour": "1.62"},
        "plan": {
            "summary": "minimal: 2 × any; 1.62 USD an hour",
            "decisions": [
                {"model": "minimal", "variant": "minimal-minimal-1a2b3c4d", "action": "Scale", "from": 1, "to": 2,
                 "reason": "BelowMinimum", "message": "replicas.min is 2.",
                 "rejected": [{"option": "h100", "reason": "ClassMissing", "message": "There is no such class."}]}
            ],
        },
    },
}  # fmt: skip
CONDITIONS = [
    {"type": "Ready", "status": "False", "reason": "Loading", "message": "", "observedGeneration": 1,
     "lastTransitionTime": "2026-12-01T12:00:00Z"},
    {"type": "LatencySLOMet", "status": "True", "reason": "Met", "message": "", "observedGeneration": 1,
     "lastTransitionTime": "2026-12-01T12:00:00Z"},
]  # fmt: skip


@PER_KIND
def test_a_status_is_stored_as_written_and_shown(api: Cluster, kind: Kind) -> None:
    name = kind.resource.kind
    document = VALID[f"minimal:{name}:minimal"]
    apply(api, document)
    try:
        status = {**STATUSES[name], "conditions": CONDITIONS}
        resource = kind.model_validate({**stored(api, document), "status": status})
        written = {**stored(api, document), "status": resource.status.to_dict()}
        api.kubectl("replace", "--subresource=status", "--validate=strict", "-f", "-", input=json.dumps(written))
        found = stored(api, document)
        assert found["status"] == status, "something was pruned, or written otherwise"
        assert kind.model_validate(found).status == resource.status
        assert found["metadata"]["generation"] == 1, "a status write is no new generation"
        for short in kind.resource.short_names:
            header, row = api.kubectl("get", short, "minimal", "-o", "wide").splitlines()
            assert header.split()[1:] == [column.name.upper() for column in kind.resource.columns]
            assert row.split()[1] == "False"
        if name == "InferencePolicy":
            assert row.split()[2:7] == ["http://minimal-gateway.default.svc/v1", "1/2", "True", "1.62", "Loading"]
        assert f"{kind.resource.kind.lower()}.{crd.GROUP}/minimal" in api.kubectl("get", "inference", "-o", "name")
    finally:
        delete(api, document)


@PER_KIND
def test_fields_are_explained(api: Cluster, kind: Kind) -> None:
    said = api.kubectl("explain", f"{kind.resource.plural}.spec", "--recursive")
    assert "DESCRIPTION" in said
    first = next(iter(crd.schema(kind)["properties"]["spec"]["properties"]))
    assert first in said


# -- the cost of rules


def copies_of(kind: Kind, count: int) -> dict[str, Any]:
    """A CustomResourceDefinition whose objects hold up to `count` of ours, each with all its rules.

    The API server estimates a rule by its cost for one object times the number of objects that it can hang on, and refuses a
    definition in which one rule, or all together, pass a limit. In a map of at most `count` copies every estimate is therefore
    exactly `count` times what it is in our own definition: that the server accepts two copies says, in its own words and by its own
    estimator, that each rule and the whole stay under half of the budget. (A map and not a list, since rules about changes are
    allowed in maps.)
    """
    definition = crd.definition(kind)
    names, version = definition["spec"]["names"], definition["spec"]["versions"][0]
    for key in ("kind", "listKind"):
        names[key] = f"Copied{names[key]}"
    for key in ("plural", "singular"):
        names[key] = f"copied{names[key]}"
    names["shortNames"] = []
    definition["spec"]["group"] = f"copied.{crd.GROUP}"
    definition["metadata"]["name"] = f"{names['plural']}.copied.{crd.GROUP}"
    version["additionalPrinterColumns"] = []
    one = version["schema"]["openAPIV3Schema"]
    version["schema"]["openAPIV3Schema"] = {
        "type": "object",
        "properties": {"copies": {"type": "object", "maxProperties": count, "additionalProperties": one}},
    }
    return definition


@PER_KIND
def test_rules_cost_less_than_half_of_the_budget(api: Cluster, kind: Kind) -> None:
    api.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(copies_of(kind, 2)))


def test_costs_would_be_noticed(api: Cluster) -> None:
    """The same measure, large enough, is refused: so it is the estimator that accepts two copies."""
    policy = BY_NAME["InferencePolicy"]
    said = api.refused("create", "--dry-run=server", "-f", "-", input=json.dumps(copies_of(policy, 100)))
    assert "estimated rule cost exceeds budget" in said
    assert "estimated rule cost total for entire OpenAPIv3 schema exceeds budget" in said


# -- the definitions themselves


def test_applying_them_again_changes_nothing(api: Cluster) -> None:
    said = api.kubectl("apply", "-f", REPOSITORY / "crds")
    assert [line for line in said.splitlines() if not line.endswith("unchanged")] == []


@PER_KIND
def test_the_server_finds_the_schema_structural(api: Cluster, kind: Kind) -> None:
    name = f"{kind.resource.plural}.{crd.GROUP}"
    definition = json.loads(api.kubectl("get", "crd", name, "-o", "json"))
    conditions = {condition["type"]: condition["status"] for condition in definition["status"]["conditions"]}
    assert conditions.get("NonStructuralSchema", "False") == "False"
    assert conditions["Established"] == "True"


def test_each_file_holds_one_definition() -> None:
    for path in sorted(Path(REPOSITORY / "crds").glob("*.yaml")):
        (document,) = yaml.safe_load_all(path.read_text())
        assert document["kind"] == "CustomResourceDefinition"


# -- our own reading against the server's


MESSAGES = {
    rule["message"]
    for kind in KINDS
    for _, node in nodes(crd.schema(kind))
    for rule in node.get("x-kubernetes-validations", [])
    if "oldSelf" not in rule["rule"]
}
"""What each rule says, but for those about changes."""


def test_the_server_and_our_own_reading_agree(api: Cluster) -> None:
    """Each rule is written twice, in CEL and in Python. On random resources both must come to the same answer."""
    server = DryRun(api.kubeconfig)
    differences, ours, documents = [], 0, list(random_resources.resources(seed=20261201, count=1200))
    broken: set[str] = set()
    for document in documents:
        theirs, verdict = server.create(document), reading(document)
        ours += not verdict
        broken |= {message for message in MESSAGES if message in verdict}
        if bool(theirs) != bool(verdict):
            differences.append(
                f"{json.dumps(document)}\n  server: {theirs or 'accepted'}\n  we: {verdict or 'accepted'}"
            )
    assert not differences, f"{len(differences)} of {len(documents)}:\n" + "\n".join(differences[:10])
    assert broken == MESSAGES, "these rules were never broken"
    assert 0.2 < ours / len(documents) < 0.8, f"{ours} accepted: too one-sided to say much"


def reading(document: dict[str, Any]) -> str:
    """What our own reading complains of; empty when it takes the resource."""
    kind = BY_NAME[document["kind"]]
    try:
        kind.model_validate(document)
    except ValidationError as error:
        return "; ".join(sentences(error, kind))
    return ""
