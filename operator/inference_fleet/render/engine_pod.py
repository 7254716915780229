"""The pod that an engine runs in: its containers, volumes, resources, probes and how it ends."""

from __future__ import annotations

from inference_fleet.engines.base import Engine
from inference_fleet.engines.contract import HTTP_PORT, Probe
from inference_fleet.plan.observation import OperatorSettings
from inference_fleet.plan.outcome import DesiredVariant
from inference_fleet.render import weights
from inference_fleet.render.amounts import mebibytes, times
from inference_fleet.render.manifests import Manifest
from inference_fleet.render.security import container_security, pod_isolation
from inference_fleet.render.weights import mount

DRAFT_PORT = 8011
METRICS_URL = f"http://127.0.0.1:{HTTP_PORT}/metrics"

DRAIN_MINIMUM_SECONDS = 5
"""Time for EndpointSlices to reach every gateway: a request sent meanwhile is still answered."""

GRACE_MARGIN_SECONDS = 45
"""From the end of the drain to SIGKILL: the engine's own end, and then the sidecar's."""

DRAFT_START_SECONDS = 120
DRAFT_PERIOD_SECONDS = 2


def drain_seconds(desired: DesiredVariant) -> int:
    """Longest time that the preStop hook waits for requests in flight."""
    return DRAIN_MINIMUM_SECONDS + desired.longest_generation_seconds


def pod_spec(desired: DesiredVariant, engine: Engine, settings: OperatorSettings) -> Manifest:
    """The pod's spec, before the user's template is merged in."""
    accelerator = desired.accelerator_class.spec
    init_containers = [weights.stage_container(desired.sidecar_image, desired.target, settings.hub_endpoint)]
    if desired.engine.speculation is not None:
        init_containers.append(_draft_container(desired, settings.hub_endpoint))
    return {
        **pod_isolation(),
        "terminationGracePeriodSeconds": drain_seconds(desired) + GRACE_MARGIN_SECONDS,
        **({"nodeSelector": dict(accelerator.node_selector)} if accelerator.node_selector else {}),
        **({"tolerations": [t.to_dict() for t in accelerator.tolerations]} if accelerator.tolerations else {}),
        **({"runtimeClassName": accelerator.runtime_class_name} if accelerator.runtime_class_name else {}),
        "initContainers": init_containers,
        "containers": [_engine_container(desired, engine)],
        "volumes": _volumes(desired, engine),
    }


def _engine_container(desired: DesiredVariant, engine: Engine) -> Manifest:
    config = desired.engine
    environment = {"HOME": weights.SCRATCH_DIRECTORY, **engine.environment(config)}
    probes = engine.probes(config)
    drain = [
        "/bin/sh",
        weights.DRAIN_SCRIPT,
        engine.type,
        METRICS_URL,
        str(DRAIN_MINIMUM_SECONDS),
        str(drain_seconds(desired)),
    ]
    return {
        "name": "engine",
        "image": desired.engine_image or engine.image(config),
        "imagePullPolicy": "IfNotPresent",
        "args": engine.arguments(config),
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "ports": [{"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"}],
        "resources": _resources(desired, engine),
        "startupProbe": _probe(probes.startup),
        "readinessProbe": _probe(probes.readiness),
        "livenessProbe": _probe(probes.liveness),
        "lifecycle": {"preStop": {"exec": {"command": drain}}},
        "volumeMounts": _engine_mounts(desired, engine),
        "securityContext": container_security(),
    }


def _probe(probe: Probe) -> Manifest:
    return {
        "httpGet": {"path": probe.path, "port": "http"},
        "periodSeconds": probe.period_seconds,
        "timeoutSeconds": probe.timeout_seconds,
        "failureThreshold": probe.failure_threshold,
    }


def _draft_container(desired: DesiredVariant, hub_endpoint: str) -> Manifest:
    """The native sidecar: brings the draft's weights and only then lets the engine start; afterwards it measures."""
    config, draft = desired.engine, desired.draft
    assert config.speculation is not None
    arguments = ["draft", "--engine", config.engine, "--metrics-url", METRICS_URL]
    if draft is not None:
        arguments += weights.artifact_arguments(draft, weights.DRAFT_DIRECTORY)
    arguments += ["--target", config.target.path, "--depth", str(config.speculation.depth), "--port", str(DRAFT_PORT)]
    mounts = [mount("target", weights.TARGET_DIRECTORY, read_only=True), mount("tmp", weights.SCRATCH_DIRECTORY)]
    if draft is not None:
        on_claim = draft.spec.source.volume_claim is not None
        mounts.insert(1, mount("draft", weights.DRAFT_DIRECTORY, read_only=on_claim))
    budget = DRAFT_START_SECONDS + (weights.staging_seconds(draft) if draft is not None else 0)
    return weights.our_container(
        name="draft",
        image=desired.sidecar_image,
        arguments=arguments,
        environment=weights.hub_environment(draft.spec.source, hub_endpoint) if draft is not None else [],
        mounts=mounts,
        resources={"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        restartPolicy="Always",
        ports=[{"name": "draft", "containerPort": DRAFT_PORT, "protocol": "TCP"}],
        startupProbe={
            "httpGet": {"path": "/ready", "port": "draft"},
            "periodSeconds": DRAFT_PERIOD_SECONDS,
            "timeoutSeconds": 3,
            "failureThreshold": -(-budget // DRAFT_PERIOD_SECONDS),
        },
    )


def _resources(desired: DesiredVariant, engine: Engine) -> Manifest:
    """Devices; CPU and memory for each of them; and on every class the disk that the emptyDirs may fill."""
    spec, devices = desired.accelerator_class.spec, desired.engine.devices
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    per_device = spec.requests_per_device
    if per_device is not None and per_device.cpu is not None:
        requests["cpu"] = times(per_device.cpu, devices)
    if per_device is not None and per_device.memory is not None:
        requests["memory"] = times(per_device.memory, devices)
        if spec.resource_name is None:
            # On a CPU class this is what the plan counted with: an engine beyond it would take its neighbours' memory.
            limits["memory"] = requests["memory"]
    requests["ephemeral-storage"] = mebibytes(sum(size for _, size in _directories(desired, engine)))
    if spec.resource_name is not None:
        requests[spec.resource_name] = limits[spec.resource_name] = str(devices)
    return {"requests": requests, **({"limits": limits} if limits else {})}


def _directories(desired: DesiredVariant, engine: Engine) -> list[tuple[str, int]]:
    """The emptyDirs on the node's disk, with their sizes in bytes."""
    sizes = [("target", weights.staged_bytes(desired.target))]
    if desired.draft is not None:
        sizes.append(("draft", weights.staged_bytes(desired.draft)))
    sizes += [("fleet", weights.FLEET_BYTES), ("tmp", engine.scratch_bytes(desired.engine))]
    return [(name, size) for name, size in sizes if size]


def _volumes(desired: DesiredVariant, engine: Engine) -> list[Manifest]:
    volumes = [weights.volume("target", desired.target)]
    if desired.draft is not None:
        volumes.append(weights.volume("draft", desired.draft))
    volumes += [weights.empty_directory(n, size) for n, size in _directories(desired, engine) if n in ("fleet", "tmp")]
    shared = engine.shared_memory_bytes(desired.engine)
    if shared is not None:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": mebibytes(shared)}})
    return volumes


def _engine_mounts(desired: DesiredVariant, engine: Engine) -> list[Manifest]:
    mounts = [mount("target", weights.TARGET_DIRECTORY, read_only=True)]
    if desired.draft is not None:
        mounts.append(mount("draft", weights.DRAFT_DIRECTORY, read_only=True))
    mounts += [mount("fleet", weights.FLEET_DIRECTORY, read_only=True), mount("tmp", weights.SCRATCH_DIRECTORY)]
    if engine.shared_memory_bytes(desired.engine) is not None:
        mounts.append(mount("shm", "/dev/shm"))
    return mounts
