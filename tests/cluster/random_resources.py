"""Random resources, right and wrong in about equal parts: every rule is met and broken many times. A seed fixes them all."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

Document = dict[str, Any]

API_VERSION = "inference-fleet.dev/v1alpha1"


NAMES = ("r", "m0", "m1")
BAD_NAMES = ("7r", "r.x", "r" * 51, *("r" * 64,) * 5)


def resources(seed: int, count: int) -> Iterator[Document]:
    """`count` resources of all kinds, few of their names differ."""
    random = Random(seed)
    kinds = (_model, _accelerator, _policy, _policy, _policy)
    for _ in range(count):
        document = random.choice(kinds)(random)
        document["metadata"] = {"name": _rarely(random, random.choice(NAMES), *BAD_NAMES, chance=0.15)}
        yield document


def _rarely(random: Random, usual: Any, *unusual: Any, chance: float = 0.06) -> Any:
    return random.choice(unusual) if random.random() < chance else usual


def _maybe(random: Random, chance: float, **fields: Any) -> Document:
    return {name: value for name, value in fields.items() if random.random() < chance}


def _model(random: Random) -> Document:
    http = {
        "url": _rarely(
            random,
            "https://host/a/b.gguf?x=1",
            "https://host/",
            "https://host",
            "s3://a/b",
            "https://h/ a",
            "https://h/a\n",
            "https://h/a\u2003b",
            chance=0.4,
        ),
        "sha256": _rarely(random, "a" * 64, "A" * 64, "a" * 63),
    }
    hugging_face = {
        "repository": _rarely(random, "Qwen/Qwen3-8B", "Qwen", "a/b/c", "/b", "a/", "a/b\n", chance=0.3),
        **_maybe(random, 0.2, revision=_rarely(random, "main", "-x", "", "a b", chance=0.3)),
        **_maybe(
            random,
            0.4,
            file=_rarely(
                random, "x/y.gguf", "/y.gguf", "../y.gguf", "y.bin", "y.gguf\n", "a..b/y.safetensors", "", chance=0.5
            ),
        ),
        **_maybe(
            random,
            0.2,
            tokenSecretRef=_rarely(random, {"name": "hub", "key": "token"}, {"name": "hub"}, {"name": "H", "key": "t"}),
        ),
    }
    claim = {"name": "weights", "path": _rarely(random, "a/b", "/a", "..", "a/../b", "a/..b", "", chance=0.4)}
    chance = random.choice([0.35, 1.0]) if random.random() < 0.2 else 0.0
    source = _maybe(random, chance, http=http, huggingFace=hugging_face, volumeClaim=claim)
    if not chance:
        name, value = random.choice([("http", http), ("huggingFace", hugging_face), ("volumeClaim", claim)])
        source = {name: value}
    return {"apiVersion": API_VERSION, "kind": "InferenceModel", "spec": {"source": source}}


QUANTITIES = (
    "22Gi",
    8,
    "500m",
    "1e3",
    "0.5Gi",
    "4.",
    "1Ei",
    "1n",
    "+1Gi",
    "0",
    "0Gi",
    "-1Gi",
    "1 Gi",
    "1GB",
    "",
    ".5G",
    "0.0",
    "1e",
    "12E-1",
    -1,
    0,
)


def _accelerator(random: Random) -> Document:
    spec = {
        "memory": _rarely(random, "4Gi", *QUANTITIES, chance=0.5),
        **_maybe(
            random,
            0.6,
            resourceName=_rarely(
                random, "nvidia.com/gpu", "cpu", "a/", "/b", "A.com/x", "a.b/c\n", "a.b/C_d.e", chance=0.3
            ),
        ),
        **_maybe(
            random,
            0.7,
            requestsPerDevice=_maybe(
                random,
                0.85,
                cpu=_rarely(random, 4, *QUANTITIES),
                memory=_rarely(random, "8Gi", *QUANTITIES, chance=0.3),
            ),
        ),
        **_maybe(
            random,
            0.5,
            capacity={
                "type": random.choice(["Fixed", "Elastic"]),
                **_maybe(random, 0.5, maxDevices=random.choice([0, 1, 8])),
            },
        ),
        **_maybe(random, 0.4, tolerations=[_toleration(random) for _ in range(random.randint(0, 2))]),
        **_maybe(random, 0.4, price=_price(random)),
        **_maybe(random, 0.3, capabilities=random.choice([["FP8"], [], ["FP8", "FP8"], ["BF16"]])),
    }
    return {"apiVersion": API_VERSION, "kind": "AcceleratorClass", "spec": spec}


def _toleration(random: Random) -> Document:
    return _maybe(
        random, 0.6, key="gpu", operator=random.choice(["Exists", "Equal"]), value="yes",
        effect=random.choice(["NoSchedule", "NoExecute"]), **_maybe(random, 0.3, tolerationSeconds=random.choice([0, 60, -1])),
    )  # fmt: skip


def _price(random: Random) -> Document:
    return {
        "currency": _rarely(random, "USD", "usd", "US", "DOLLAR"),
        "onDemandPerHour": _rarely(random, "3.99", "0", "1\n", "-1", "1.", ".5", "1.1234567", "1e3", 4, chance=0.3),
        **_maybe(random, 0.5, effectiveDate=_date(random)),
    }  # fmt: skip


DATES = ("2026-13-09", "2026-02-30", "9.11.2026", "2026-1-1")


def _date(random: Random) -> str:
    return str(_rarely(random, "2026-11-09", *DATES, chance=0.4))


WEIGHTS = ("AsStored", "F32", "F16", "BF16", "FP8", "Int8", "Int4", "Q8_0", "Q4_K_M", "Q2_K")
METHODS = ("None", "None", "AWQ", "GPTQ", "FP8", "CompressedTensors")
ARGUMENTS = ("--seed", "7", "--flash-attn", "on", "--enforce-eager", "--generation-config=vllm", "-ub")
RESERVED = (
    "--model",
    "--model=x",
    "--max_model_len",
    "-c",
    "-tp=2",
    "--speculative-config.model",
    "--port",
    "-m",
    "--alias",
    "--ctx_size=4",
)


def _entry(random: Random, index: int) -> Document:
    quantization = _maybe(
        random, 0.4, weights=random.choice(WEIGHTS), method=random.choice(METHODS),
        keyValueCache=random.choice(["Auto", "Auto", "F16", "FP8", "Q8_0", "Q4_0"]),
    )  # fmt: skip
    build = {"name": "main", "modelRef": {"name": "m"}, **_maybe(random, 0.5, quantization=quantization)}
    arguments = [_rarely(random, random.choice(ARGUMENTS), *RESERVED, chance=0.15) for _ in range(random.randint(0, 3))]
    speculation = {
        "method": random.choice(["DraftModel", "NGram"]),
        "maxDepth": _rarely(random, random.choice([1, 4, 16]), 0, 17),
    }
    if (speculation["method"] == "DraftModel") != (random.random() < 0.06):
        speculation["draftRef"] = {"name": "draft"}
    return {
        "name": _rarely(random, f"m{index}", "r0", "m0", "M", chance=0.05),
        **_maybe(random, 0.4, servedNames=[_rarely(random, f"s{index}", "m0", "s0", "m1", "a b", chance=0.35)]),
        "engine": {"type": random.choice(["VLLM", "LlamaCpp"]), "version": "1", **_maybe(random, 0.4, extraArguments=arguments)},
        "builds": _rarely(random, [build], [build, {**build, "name": "b"}], [], [build, build]),
        "contextTokens": _rarely(random, 4096, 255, 256, 2097152, 2097152, 524288, chance=0.5),
        **_maybe(random, 0.4, batching=_batching(random)),
        **_maybe(random, 0.4, speculation=speculation),
        "accelerators": [{"name": "a", "classRef": {"name": "l4"}}],
        **_maybe(random, 0.3, podTemplate=_template(random)),
    }  # fmt: skip


def _batching(random: Random) -> Document:
    sequences = _rarely(random, 8, 128, 256, 257, 1024, 0, chance=0.5)
    return _maybe(random, 0.7, maxSequences=sequences, maxBatchedTokens=random.choice([7, 8, 1024]))


def _template(random: Random) -> Document:
    def container() -> Document:
        name = _rarely(random, f"c{random.randint(0, 5)}", "engine", "engine", "stage", "draft", chance=0.35)
        return {"name": name, **_maybe(random, 0.3, image="i", command=["c"], args=["a"], env=[{"name": "A"}])}

    labels = {_rarely(random, "team", "inference-fleet.dev/x", "app.kubernetes.io/name", chance=0.3): "x"}
    spec = _maybe(
        random, 0.4, hostNetwork=random.random() < 0.1, hostPID=random.random() < 0.1, hostIPC=False,
        containers=[container() for _ in range(random.randint(1, 2))], initContainers=[container()], nodeName="n",
    )  # fmt: skip
    return _maybe(random, 0.7, metadata=_maybe(random, 0.6, labels=labels, annotations=dict(labels)), spec=spec)


def _policy(random: Random) -> Document:
    objective = {
        "name": "o", "metric": "EndToEndLatency", "percentile": _rarely(random, 95, 49, 100), "milliseconds": _rarely(random, 5, 0),
    }  # fmt: skip
    authentication = {"type": random.choice(["APIKeys", "None"])}
    if (authentication["type"] == "APIKeys") != (random.random() < 0.06):
        authentication["secretRef"] = {"name": "keys"}
    service = _maybe(
        random,
        0.6,
        type=random.choice(["NodePort", "LoadBalancer"]),
        annotations={_rarely(random, "a", "inference-fleet.dev/a"): "x"},
    )
    spec = {
        "models": [_entry(random, index) for index in range(_rarely(random, random.randint(1, 2), 0, 3))],
        "gateway": _rarely(
            random,
            {"authentication": authentication, **_maybe(random, 0.3, service=service, holdSeconds=0)},
            {},
            {"replicas": 1},
        ),
        **_maybe(random, 0.3, slo={"objectives": _rarely(random, [objective], [objective, objective], [])}),
        **_maybe(random, 0.2, mode=random.choice(["Apply", "Plan"]), priority=_rarely(random, -1000, 1001)),
    }
    return {"apiVersion": API_VERSION, "kind": "InferencePolicy", "spec": spec}
