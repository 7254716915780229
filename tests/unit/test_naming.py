"""Names: valid, stable, and never shared by two owners."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_fleet.naming import canonical_json, gateway_name, identity_json, inspection_name, variant_name


@dataclass(frozen=True, slots=True)
class Identity:
    model: str
    digest: str = "sha256:aa"
    devices_per_replica: int = 1


LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
POLICIES = st.from_regex(r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?", fullmatch=True)
MODELS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)


def test_a_short_name_is_readable() -> None:
    name = variant_name("chat", Identity("small"))
    assert re.fullmatch(r"chat-small-[0-9a-f]{8}", name)


def test_the_suffix_is_of_the_identity() -> None:
    import hashlib

    identity = Identity("small")
    text = json.dumps(
        {"model": "small", "digest": "sha256:aa", "devices_per_replica": 1}, sort_keys=True, separators=(",", ":")
    )
    assert variant_name("chat", identity) == f"chat-small-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    assert identity_json(identity) == text


@settings(deadline=None)
@given(policy=POLICIES, model=MODELS)
def test_a_variants_name_is_a_services_name_with_room_for_a_pods_suffix(policy: str, model: str) -> None:
    name = variant_name(policy, Identity(model))
    assert LABEL.fullmatch(name)
    assert len(name) <= 53


@settings(deadline=None)
@given(first=st.tuples(POLICIES, MODELS), second=st.tuples(POLICIES, MODELS))
def test_two_models_never_share_a_name(first: tuple[str, str], second: tuple[str, str]) -> None:
    if first != second:
        assert variant_name(first[0], Identity(first[1])) != variant_name(second[0], Identity(second[1]))


def test_names_that_are_cut_alike_differ() -> None:
    long = "a" * 50
    names = {variant_name(f"{long[:-1]}{end}", Identity("small")) for end in "abc"}
    assert len(names) == 3


def test_any_change_of_identity_is_another_name() -> None:
    identity = Identity("small")
    assert variant_name("chat", identity) != variant_name("chat", replace(identity, devices_per_replica=2))


@settings(deadline=None)
@given(policy=POLICIES)
def test_a_gateways_name_is_a_services_name(policy: str) -> None:
    assert gateway_name(policy) == f"{policy}-gateway"
    assert len(gateway_name(policy)) <= 63


@settings(deadline=None)
@given(model=st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", fullmatch=True))
def test_an_inspections_name_is_a_label(model: str) -> None:
    name = inspection_name(model, "uid")
    assert LABEL.fullmatch(name)
    assert len(name) <= 63
    assert "-inspect-" in name


def test_models_that_are_altered_alike_differ() -> None:
    assert inspection_name("qwen-3", "uid") != inspection_name("qwen.3", "uid")


def test_canonical_json_does_not_depend_on_order() -> None:
    assert canonical_json({"b": 1, "a": [1, {"d": 1, "c": "é"}]}) == '{"a":[1,{"c":"é","d":1}],"b":1}'
