"""What a variant's Deployment and Service must hold, whatever the variant."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from inference_fleet.api.accelerator import AcceleratorClassSpec
from inference_fleet.api.model import ModelSource, ResolvedArtifact
from inference_fleet.api.quantities import parse_bytes
from inference_fleet.engines.base import Refusal, engine
from inference_fleet.plan.observation import ClassView, VariantIdentity
from inference_fleet.plan.outcome import DesiredVariant
from inference_fleet.render.manifests import rendered_hash, with_replicas
from inference_fleet.render.revisions import NEWEST
from inference_fleet.render.variant import RENDERERS, render_variant
from tests.unit.engines.samples import QWEN3_0_6B, SMOLLM2
from tests.unit.render.samples import (
    CLAIM,
    GPU,
    SETTINGS,
    VARIANTS,
    hub,
    llama_claim,
    llama_draft,
    llama_ngram,
    llama_plain,
    model,
    policy,
    smollm2,
    vllm_draft,
)

EACH = pytest.mark.parametrize("make", VARIANTS.values(), ids=VARIANTS)
Make = Callable[..., DesiredVariant]


def deployment(desired: DesiredVariant) -> dict[str, Any]:
    return render_variant(desired, policy(), SETTINGS)[0]


def service(desired: DesiredVariant) -> dict[str, Any]:
    return render_variant(desired, policy(), SETTINGS)[1]


def pod(desired: DesiredVariant) -> dict[str, Any]:
    found: dict[str, Any] = deployment(desired)["spec"]["template"]["spec"]
    return found


def containers(desired: DesiredVariant) -> dict[str, dict[str, Any]]:
    spec = pod(desired)
    return {item["name"]: item for item in [*spec["initContainers"], *spec["containers"]]}


def after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


@EACH
def test_replicas_are_never_in_the_payload(make: Make) -> None:
    assert "replicas" not in deployment(make())["spec"]


def test_a_deployment_is_created_with_its_replicas() -> None:
    rendered = deployment(llama_plain())
    created = with_replicas(rendered, 3)
    assert created["spec"]["replicas"] == 3
    assert "replicas" not in rendered["spec"]
    assert created["metadata"] == rendered["metadata"]


@EACH
def test_more_replicas_are_no_change_of_what_is_rendered(make: Make) -> None:
    assert deployment(make(replicas=1)) == deployment(make(replicas=7))


@EACH
def test_the_hash_is_of_the_object_without_it(make: Make) -> None:
    for item in render_variant(make(), policy(), SETTINGS):
        annotations = dict(item["metadata"]["annotations"])
        stamp = annotations.pop("inference-fleet.dev/rendered-hash")
        bare = {**item, "metadata": {**item["metadata"], "annotations": annotations}}
        if not annotations:
            del bare["metadata"]["annotations"]
        assert stamp == rendered_hash(bare)


@EACH
def test_rendering_is_repeatable(make: Make) -> None:
    assert render_variant(make(), policy(), SETTINGS) == render_variant(make(), policy(), SETTINGS)


@EACH
def test_labels_selector_and_owner(make: Make) -> None:
    desired = make()
    for item in render_variant(desired, policy(), SETTINGS):
        meta = item["metadata"]
        assert meta["name"] == desired.name
        assert meta["namespace"] == "apps"
        assert meta["labels"] == {
            "app.kubernetes.io/managed-by": "inference-fleet",
            "inference-fleet.dev/policy": "chat",
            "inference-fleet.dev/component": "engine",
            "inference-fleet.dev/model": "small",
            "inference-fleet.dev/variant": desired.name,
        }
        assert meta["ownerReferences"] == [
            {
                "apiVersion": "inference-fleet.dev/v1alpha1",
                "kind": "InferencePolicy",
                "name": "chat",
                "uid": policy().uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ]
    selector = {"inference-fleet.dev/variant": desired.name}
    assert deployment(desired)["spec"]["selector"] == {"matchLabels": selector}
    assert service(desired)["spec"]["selector"] == selector
    assert deployment(desired)["spec"]["template"]["metadata"]["labels"].items() >= selector.items()


@EACH
def test_annotations_tell_a_later_pass_what_this_is(make: Make) -> None:
    desired = make()
    annotations = deployment(desired)["metadata"]["annotations"]
    assert VariantIdentity(**json.loads(annotations["inference-fleet.dev/identity"])) == desired.identity
    assert annotations["inference-fleet.dev/render-revision"] == "1"
    assert annotations["inference-fleet.dev/sidecar-image"] == SETTINGS.image
    configuration = json.loads(annotations["inference-fleet.dev/configuration"])
    assert configuration["model"] == "small"
    assert configuration["devicesPerReplica"] == desired.engine.devices
    assert configuration["pricePerHour"] == (None if desired.price_per_hour is None else str(desired.price_per_hour))


@EACH
def test_the_service_is_headless_and_lists_only_ready_pods(make: Make) -> None:
    spec = service(make())["spec"]
    assert spec["clusterIP"] == "None"
    assert spec["publishNotReadyAddresses"] is False
    assert [(p["name"], p["port"]) for p in spec["ports"]] == [("http", 8000)]


@EACH
def test_every_container_is_restricted(make: Make) -> None:
    spec = pod(make())
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 65532
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(make()).values():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }


@EACH
def test_every_mount_has_its_volume_and_every_volume_is_mounted(make: Make) -> None:
    volumes = [v["name"] for v in pod(make())["volumes"]]
    mounted = {m["name"] for c in containers(make()).values() for m in c["volumeMounts"]}
    assert len(volumes) == len(set(volumes))
    assert mounted == set(volumes)


@EACH
def test_the_engine_gets_the_arguments_of_its_own_file(make: Make) -> None:
    desired = make()
    known = engine(desired.engine.engine, desired.engine.version)
    assert not isinstance(known, Refusal)
    container = containers(desired)["engine"]
    assert container["args"] == known.arguments(desired.engine)
    assert "command" not in container  # the image's own entrypoint


@EACH
def test_the_engine_sees_weights_read_only_and_has_a_writable_home(make: Make) -> None:
    container = containers(make())["engine"]
    mounts = {m["mountPath"]: m for m in container["volumeMounts"]}
    assert mounts["/models/target"]["readOnly"] is True
    assert not mounts["/tmp"].get("readOnly")
    assert {"name": "HOME", "value": "/tmp"} in container["env"]


@EACH
def test_it_drains_before_it_ends_and_is_given_the_time(make: Make) -> None:
    desired = make(longest_generation_seconds=300)
    command = containers(desired)["engine"]["lifecycle"]["preStop"]["exec"]["command"]
    assert command == [
        "/bin/sh", "/fleet/drained", desired.engine.engine, "http://127.0.0.1:8000/metrics", "5", "305"
    ]  # fmt: skip
    assert pod(desired)["terminationGracePeriodSeconds"] >= 305 + 30
    stage = containers(desired)["stage"]
    assert after(stage["args"], "--drain-script") == "/fleet/drained"
    assert {"name": "fleet", "mountPath": "/fleet"} in stage["volumeMounts"]


@EACH
def test_disk_is_requested_for_what_the_pod_may_write(make: Make) -> None:
    spec = pod(make())
    directories = [v["emptyDir"] for v in spec["volumes"] if "emptyDir" in v]
    sizes = [parse_bytes(one["sizeLimit"]) for one in directories if one.get("medium") != "Memory"]
    requested = parse_bytes(containers(make())["engine"]["resources"]["requests"]["ephemeral-storage"])
    assert sum(sizes) - len(sizes) * 2**20 <= requested <= sum(sizes)


@EACH
def test_a_rollout_is_not_called_stuck_while_a_pod_may_still_be_starting(make: Make) -> None:
    desired = make()
    spec = deployment(desired)["spec"]
    startup = containers(desired)["engine"]["startupProbe"]
    assert spec["progressDeadlineSeconds"] > startup["periodSeconds"] * startup["failureThreshold"] + 600
    assert spec["minReadySeconds"] < 10


def test_surge_only_where_a_device_is_free() -> None:
    assert deployment(llama_plain(surge=True))["spec"]["strategy"]["rollingUpdate"] == {
        "maxSurge": 1,
        "maxUnavailable": 0,
    }
    assert deployment(llama_plain(surge=False))["spec"]["strategy"]["rollingUpdate"] == {
        "maxSurge": 0,
        "maxUnavailable": 1,
    }


def test_stage_is_told_exactly_what_to_bring() -> None:
    desired = vllm_draft()
    words = containers(desired)["stage"]["args"]
    assert words[0] == "stage"
    assert ModelSource.model_validate_json(after(words, "--source")) == desired.target.spec.source
    assert ResolvedArtifact.model_validate_json(after(words, "--resolved")) == desired.target.resolved
    assert after(words, "--into") == "/models/target"


def test_a_claim_is_mounted_and_never_copied() -> None:
    volumes = {v["name"]: v for v in pod(llama_claim())["volumes"]}
    assert volumes["target"]["persistentVolumeClaim"] == {"claimName": "weights", "readOnly": True}
    for container in containers(llama_claim()).values():
        for mount in container["volumeMounts"]:
            assert mount["name"] != "target" or mount["readOnly"] is True
    assert after(containers(llama_claim())["engine"]["args"], "--model") == "/models/target/smollm2/model.gguf"


def test_target_and_draft_may_lie_on_one_claim() -> None:
    both = llama_draft(draft=smollm2({"volumeClaim": {"name": "weights", "path": "tiny.gguf"}}), target=smollm2(CLAIM))
    volumes = {v["name"]: v for v in pod(both)["volumes"]}
    assert volumes["target"]["persistentVolumeClaim"] == volumes["draft"]["persistentVolumeClaim"]


def test_the_draft_sidecar_starts_first_and_gates_the_engine() -> None:
    spec = pod(llama_draft())
    assert [c["name"] for c in spec["initContainers"]] == ["stage", "draft"]
    sidecar = containers(llama_draft())["draft"]
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["startupProbe"]["httpGet"] == {"path": "/ready", "port": "draft"}
    assert sidecar["ports"] == [{"name": "draft", "containerPort": 8011, "protocol": "TCP"}]
    words = sidecar["args"]
    assert words[:5] == ["draft", "--engine", "LlamaCpp", "--metrics-url", "http://127.0.0.1:8000/metrics"]
    assert after(words, "--into") == "/models/draft"
    assert after(words, "--depth") == "4"
    assert after(words, "--target") == after(containers(llama_draft())["engine"]["args"], "--model")


def test_n_gram_speculation_has_a_sidecar_that_only_measures() -> None:
    words = containers(llama_ngram())["draft"]["args"]
    assert not {"--source", "--resolved", "--into"} & set(words)
    assert "draft" not in {v["name"] for v in pod(llama_ngram())["volumes"]}


def test_without_speculation_there_is_no_sidecar() -> None:
    assert set(containers(llama_plain())) == {"stage", "engine"}


def test_a_token_is_only_where_it_is_needed() -> None:
    """The kubelet reads the Secret; neither the operator nor the engine does."""
    found = containers(vllm_draft())
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    assert token in found["stage"]["env"]
    assert "env" not in found["draft"]
    assert token not in found["engine"]["env"]


def test_the_draft_has_its_own_token() -> None:
    draft = model("d", hub("a/b", token=True), QWEN3_0_6B, 10**9, "Safetensors")
    assert containers(vllm_draft(draft=draft))["draft"]["env"][0]["name"] == "HF_TOKEN"


def test_a_mirror_of_the_hub() -> None:
    settings = replace(SETTINGS, hub_endpoint="http://mirror.example")
    spec = render_variant(vllm_draft(), policy(), settings)[0]["spec"]["template"]["spec"]
    for container in spec["initContainers"]:
        assert {"name": "HF_ENDPOINT", "value": "http://mirror.example"} in container["env"]
    assert "HF_ENDPOINT" not in str(spec["containers"])


def test_a_cpu_class_requests_its_devices_cpu_and_memory_and_limits_memory() -> None:
    resources = containers(llama_plain())["engine"]["resources"]
    assert resources["requests"]["cpu"] == "2"
    assert resources["requests"]["memory"] == resources["limits"]["memory"] == "3Gi"
    assert "cpu" not in resources["limits"]


def test_gpus_are_requested_and_limited_alike() -> None:
    resources = containers(vllm_draft())["engine"]["resources"]
    assert resources["requests"]["nvidia.com/gpu"] == resources["limits"]["nvidia.com/gpu"] == "2"
    assert resources["requests"]["cpu"] == "16"
    assert resources["requests"]["memory"] == "128Gi"
    assert "memory" not in resources["limits"]


def test_nodes_of_the_class() -> None:
    spec = pod(vllm_draft())
    assert spec["nodeSelector"] == {"gpu": "h100"}
    assert spec["runtimeClassName"] == "nvidia"
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert not {"nodeSelector", "tolerations", "runtimeClassName", "affinity"} & set(pod(llama_plain()))


def test_several_gpus_share_memory() -> None:
    volumes = {v["name"]: v for v in pod(vllm_draft())["volumes"]}
    assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
    assert {"name": "shm", "mountPath": "/dev/shm"} in containers(vllm_draft())["engine"]["volumeMounts"]
    assert "shm" not in {v["name"] for v in pod(llama_plain())["volumes"]}


def test_without_an_image_the_official_one_runs() -> None:
    assert containers(llama_plain(engine_image=""))["engine"]["image"] == "ghcr.io/ggml-org/llama.cpp:server-b11549"


def test_an_upgrade_of_the_operator_rolls_nothing() -> None:
    """Its own new image is in the settings; a variant keeps the one it was made with."""
    newer = replace(SETTINGS, image="registry.example/inference-fleet:2.0", render_revision=99)
    assert render_variant(llama_draft(), policy(), newer) == render_variant(llama_draft(), policy(), SETTINGS)


def test_a_revision_that_is_not_rendered_any_more_gives_way_to_the_newest() -> None:
    assert NEWEST in RENDERERS
    assert deployment(llama_plain(render_revision=0)) == deployment(llama_plain(render_revision=NEWEST))


def test_quantities_are_multiplied_in_their_own_unit() -> None:
    spec = AcceleratorClassSpec.model_validate({**GPU, "requestsPerDevice": {"cpu": "500m", "memory": "1.5Gi"}})
    resources = containers(vllm_draft(accelerator_class=ClassView("cpu", spec)))["engine"]["resources"]
    assert resources["requests"]["cpu"] == "1000m"
    assert resources["requests"]["memory"] == "3Gi"


def test_room_for_weights() -> None:
    big = model(
        "smollm2", {"http": {"url": "https://models.example/m.gguf", "sha256": "b" * 64}}, SMOLLM2, 10 * 2**30, "GGUF"
    )
    volumes = {v["name"]: v for v in pod(llama_plain(target=big))["volumes"]}
    assert 10.9 * 2**30 < parse_bytes(volumes["target"]["emptyDir"]["sizeLimit"]) < 11.2 * 2**30
