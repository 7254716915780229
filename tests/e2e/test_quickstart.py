"""What a newcomer does: install by Helm, apply the quickstart, use OpenAI's own client unchanged."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import openai
import pytest

from tests.e2e.conftest import OPERATOR, RELEASE, REPOSITORY, Fleet, condition

NAMESPACE = "quickstart"
MANIFEST = REPOSITORY / "manifests" / "cpu-quickstart.yaml"
KEY = "quickstart-key"
HELLO = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def quickstart(fleet: Fleet) -> Iterator[Fleet]:
    fleet.cluster.kubectl("apply", "-f", MANIFEST)
    fleet.ready("chat", NAMESPACE)
    yield fleet
    fleet.cluster.run("kubectl", "delete", "-f", MANIFEST, "--wait=true", "--timeout=120s")


@pytest.fixture
def client(quickstart: Fleet) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{quickstart.url('chat', NAMESPACE)}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def test_kubectl_can_wait_for_the_release_and_the_policy(quickstart: Fleet) -> None:
    kubectl = quickstart.cluster.kubectl
    kubectl("-n", OPERATOR, "wait", "--for=condition=Available", f"deployment/{RELEASE}", "--timeout=5s")
    kubectl("-n", NAMESPACE, "wait", "--for=condition=Ready", "ipol/chat", "imodel/smollm2-135m", "--timeout=5s")


def test_kubectl_get_shows_how_it_stands(quickstart: Fleet) -> None:
    header, row = quickstart.cluster.kubectl("-n", NAMESPACE, "get", "ipol").splitlines()
    assert header.split() == ["NAME", "READY", "ENDPOINT", "REPLICAS", "LATENCY-SLO", "COST/H", "AGE"]
    assert row.split()[:4] == ["chat", "True", "http://chat-gateway.quickstart.svc", "1/1"] or "1/1" in row.split(), row


def test_its_pods_are_restricted_and_hold_no_token_they_do_not_need(quickstart: Fleet) -> None:
    (pod,) = quickstart.pods("chat", NAMESPACE)
    assert pod["spec"].get("automountServiceAccountToken") is False
    for container in [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False and context["capabilities"] == {"drop": ["ALL"]}


def test_chat_at_once(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="smollm2", messages=HELLO, max_tokens=16, temperature=0)
    (choice,) = answer.choices
    assert choice.message.content and choice.finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 0 and 0 < answer.usage.completion_tokens <= 16
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_streamed_says_the_same(client: openai.OpenAI) -> None:
    at_once = client.chat.completions.create(model="smollm2", messages=HELLO, max_tokens=16, temperature=0, seed=1)
    stream = client.chat.completions.create(
        model="smollm2", messages=HELLO, max_tokens=16, temperature=0, seed=1, stream=True
    )
    pieces, reasons, usages = [], [], []
    for chunk in stream:
        usages.append(chunk.usage)
        for choice in chunk.choices:
            pieces.append(choice.delta.content or "")
            reasons.append(choice.finish_reason)
    assert "".join(pieces) == at_once.choices[0].message.content
    assert len([piece for piece in pieces if piece]) > 1, "it came in one piece"
    assert [reason for reason in reasons if reason] == [at_once.choices[0].finish_reason]
    assert not any(usages), "usage was not asked for"


def test_usage_in_a_stream_where_it_is_asked_for(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="smollm2", messages=HELLO, max_tokens=8, stream=True, stream_options={"include_usage": True}
    )
    *_, last = list(stream)
    assert last.usage is not None and 0 < last.usage.completion_tokens <= 8


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="smollm2", prompt="One, two, three,", max_tokens=8, temperature=0)
    assert answer.choices[0].text
    pieces = client.completions.create(
        model="smollm2", prompt="One, two, three,", max_tokens=8, temperature=0, stream=True
    )
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == answer.choices[0].text


def test_models(client: openai.OpenAI) -> None:
    names = {model.id for model in client.models.list()}
    assert "smollm2" in names
    assert client.models.retrieve("smollm2").id == "smollm2"


@pytest.mark.parametrize("name", ["small", "smollm2", "chat"])
def test_each_name_is_answered(client: openai.OpenAI, name: str) -> None:
    assert client.chat.completions.create(model=name, messages=HELLO, max_tokens=2).choices


def test_a_model_that_nobody_declares(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model="gpt-5", messages=HELLO)
    assert "gpt-5" in str(refused.value)


def test_a_request_that_makes_no_sense(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="smollm2", messages="hello")  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["wrong", f"{KEY}x"])
def test_a_wrong_key(quickstart: Fleet, key: str) -> None:
    url = f"{quickstart.url('chat', NAMESPACE)}/v1"
    with openai.OpenAI(base_url=url, api_key=key, max_retries=0) as stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()


def test_request_ids_are_made_and_echoed(client: openai.OpenAI) -> None:
    made = client.models.with_raw_response.list().headers["x-request-id"]
    assert made
    echoed = client.models.with_raw_response.list(extra_headers={"x-request-id": "mine-1"}).headers["x-request-id"]
    assert echoed == "mine-1"


def test_the_tenant_is_visible_in_metrics(quickstart: Fleet, client: openai.OpenAI) -> None:
    client.chat.completions.create(model="smollm2", messages=HELLO, max_tokens=4)
    (pod,) = quickstart.pods("chat", NAMESPACE, "gateway")
    metrics = quickstart.metrics(pod, 9090)
    assert any(
        line.startswith("inference_fleet_requests_total{") and 'tenant="quickstart"' in line and 'code="200"' in line
        for line in metrics.splitlines()
    ), metrics
    assert any("inference_fleet_tokens_total{" in line and 'kind="completion"' in line for line in metrics.splitlines())
    # The clients' port does not show them.
    assert (
        "inference_fleet_"
        not in quickstart.cluster.run("curl", "-s", f"{quickstart.url('chat', NAMESPACE)}/metrics").stdout
    )


def test_the_objective_is_measured_and_says_nothing_about_ready(quickstart: Fleet, client: openai.OpenAI) -> None:
    for _ in range(3):
        client.chat.completions.create(model="smollm2", messages=HELLO, max_tokens=4)

    def measured() -> bool:
        found = quickstart.cluster.get("ipol", "chat", NAMESPACE) or {}
        requests = [row.get("requests", 0) for row in found["status"].get("objectives", [])]
        assert len(requests) == 1 and requests[0] >= 3, found["status"]
        return condition(found, "Ready")["status"] == "True"

    quickstart.cluster.wait_for("the objective is reported", measured, 120)


def test_explain_tells_what_was_decided(quickstart: Fleet) -> None:
    done = quickstart.cluster.run(REPOSITORY / ".venv/bin/inference-fleet", "explain", f"{NAMESPACE}/chat")
    assert done.returncode == 0, done.stderr
    for word in ("small", "cpu", "Ready"):
        assert word in done.stdout, done.stdout


def test_the_operator_reads_no_secret(quickstart: Fleet) -> None:
    account = f"system:serviceaccount:{OPERATOR}:{RELEASE}"
    for verb in ("get", "list", "watch"):
        done = quickstart.cluster.run("kubectl", "auth", "can-i", verb, "secrets", "--as", account, "-n", NAMESPACE)
        assert done.stdout.strip() == "no", done.stdout
    assert json.loads(quickstart.cluster.kubectl("-n", OPERATOR, "get", "pods", "-o", "json"))["items"]


def test_traffic_alone_is_written_about_at_most_once_a_minute(quickstart: Fleet, client: openai.OpenAI) -> None:
    marker = quickstart.cluster.marker()
    until = time.monotonic() + 45
    while time.monotonic() < until:
        client.chat.completions.create(model="smollm2", messages=HELLO, max_tokens=2)
        time.sleep(3)
    writes = quickstart.cluster.writes_since(marker, user=f"system:serviceaccount:{OPERATOR}:{RELEASE}")
    ours = [write for write in writes if write.namespace in (NAMESPACE, "")]
    assert len([write for write in ours if write.resource == "inferencepolicies/status"]) <= 1, list(map(str, ours))
    assert {write.resource for write in ours} <= {"inferencepolicies/status", "acceleratorclasses/status"}, list(
        map(str, ours)
    )
