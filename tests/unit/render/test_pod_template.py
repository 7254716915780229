"""A user's piece of a pod: merged strategically, and what we render wins."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_fleet.api.template import PodTemplate
from inference_fleet.render.pod_template import merged_template
from inference_fleet.render.variant import render_variant
from tests.unit.render.samples import SETTINGS, llama_draft, policy, vllm_draft


def rendered(template: dict[str, Any], make: Any = llama_draft) -> dict[str, Any]:
    found: dict[str, Any] = render_variant(make(pod_template=template), policy(), SETTINGS)[0]["spec"]["template"]
    return found


def named(items: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in items}


def test_without_one_nothing_changes() -> None:
    assert rendered({}) == render_variant(llama_draft(), policy(), SETTINGS)[0]["spec"]["template"]


def test_labels_and_annotations_are_added() -> None:
    found = rendered({"metadata": {"labels": {"team": "search"}, "annotations": {"note": "x"}}})["metadata"]
    assert found["labels"]["team"] == "search"
    assert found["labels"]["inference-fleet.dev/policy"] == "chat"
    assert found["annotations"] == {"note": "x"}


def test_fields_that_we_do_not_render_pass_through() -> None:
    spec = rendered(
        {
            "spec": {
                "priorityClassName": "high",
                "affinity": {"podAntiAffinity": {}},
                "imagePullSecrets": [{"name": "registry"}],
                "dnsConfig": {"searches": ["example.com"]},
                "topologySpreadConstraints": [
                    {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
                ],
            }
        }
    )["spec"]
    assert spec["priorityClassName"] == "high"
    assert spec["affinity"] == {"podAntiAffinity": {}}
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["dnsConfig"] == {"searches": ["example.com"]}
    assert spec["topologySpreadConstraints"][0]["topologyKey"] == "zone"


def test_the_engine_container_is_merged_by_name() -> None:
    fragment = {
        "name": "engine",
        "env": [{"name": "HOME", "value": "/root"}, {"name": "NCCL_DEBUG", "value": "INFO"}],
        "resources": {"requests": {"memory": "1Gi", "example.com/rdma": "1"}, "limits": {"example.com/rdma": "1"}},
        "volumeMounts": [{"name": "cache", "mountPath": "/cache"}, {"name": "cache", "mountPath": "/tmp"}],
        "securityContext": {"allowPrivilegeEscalation": True, "runAsGroup": 1000},
        "envFrom": [{"configMapRef": {"name": "more"}}],
    }
    spec = rendered({"spec": {"containers": [fragment], "volumes": [{"name": "cache", "emptyDir": {}}]}})["spec"]
    engine = named(spec["containers"])["engine"]
    assert {v["name"]: v["value"] for v in engine["env"]} == {"HOME": "/tmp", "NCCL_DEBUG": "INFO"}
    assert engine["resources"]["requests"]["memory"] == "3Gi"
    assert engine["resources"]["limits"]["example.com/rdma"] == "1"
    assert {m["mountPath"]: m["name"] for m in engine["volumeMounts"]}.items() >= {
        "/cache": "cache",
        "/tmp": "tmp",
    }.items()
    assert engine["securityContext"]["allowPrivilegeEscalation"] is False
    assert engine["securityContext"]["runAsGroup"] == 1000
    assert engine["envFrom"] == [{"configMapRef": {"name": "more"}}]
    assert [v["name"] for v in spec["volumes"]] == ["target", "draft", "fleet", "tmp", "cache"]


def test_other_containers_come_after_ours() -> None:
    more = {"name": "exporter", "image": "exporter:1"}
    first = {"name": "warm", "image": "warm:1"}
    spec = rendered({"spec": {"containers": [more], "initContainers": [first]}})["spec"]
    assert [c["name"] for c in spec["containers"]] == ["engine", "exporter"]
    assert [c["name"] for c in spec["initContainers"]] == ["stage", "draft", "warm"]


def test_tolerations_of_the_class_and_of_the_user_are_both_meant() -> None:
    own = {"key": "team", "operator": "Equal", "value": "search", "effect": "NoSchedule"}
    same = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    spec = rendered({"spec": {"tolerations": [own, same]}}, vllm_draft)["spec"]
    assert spec["tolerations"] == [same, own]


def test_node_selectors_are_merged_and_the_class_wins() -> None:
    spec = rendered({"spec": {"nodeSelector": {"gpu": "l4", "zone": "a"}}}, vllm_draft)["spec"]
    assert spec["nodeSelector"] == {"gpu": "h100", "zone": "a"}


def test_a_list_without_keys_is_ours_where_we_render_one() -> None:
    """A port of another name on the same number would break the probes."""
    ports = [{"name": "other", "containerPort": 8000}, {"name": "extra", "containerPort": 9000}]
    engine = rendered({"spec": {"containers": [{"name": "engine", "ports": ports}]}})["spec"]["containers"][0]
    assert engine["ports"] == [
        {"name": "http", "containerPort": 8000, "protocol": "TCP"},
        {"name": "extra", "containerPort": 9000},
    ]


KEYS = st.sampled_from(
    ["automountServiceAccountToken", "terminationGracePeriodSeconds", "priorityClassName", "nodeSelector"]
)
WORDS = st.sampled_from(["", "x", "on"])
VALUES = st.one_of(st.booleans(), st.integers(0, 9), WORDS, st.dictionaries(st.sampled_from("ab"), WORDS))


@settings(deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=4), st.dictionaries(KEYS, VALUES, max_size=4))
def test_every_value_that_we_render_stands(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    merged = merged_template({"spec": ours}, PodTemplate.model_validate({"spec": theirs}))["spec"]
    assert set(merged) == set(ours) | set(theirs)
    for key, value in ours.items():
        if isinstance(value, dict):
            assert merged[key].items() >= value.items()
        else:
            assert merged[key] == value
