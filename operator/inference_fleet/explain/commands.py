"""`inference-fleet plan` (offline: what would run, and why) and `inference-fleet explain` (what the operator decided, and why)."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inference_fleet.explain.files import Declared
    from inference_fleet.plan.observation import OperatorSettings


def add_commands(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Registers both commands."""
    plan = subparsers.add_parser(
        "plan",
        help="what would run for these files: placement, memory, price an hour, and why",
        description="Plans InferencePolicies offline, from files. Exit status: 0 all models placed, 1 not all, 2 invalid files.",
    )
    plan.add_argument(
        "-f", "--file", action="append", required=True, type=Path, help="YAML file or folder; may be repeated"
    )
    plan.add_argument(
        "--devices",
        action="append",
        default=[],
        metavar="CLASS=N",
        help="stock of an AcceleratorClass; default: unknown, enough",
    )
    plan.add_argument("--inspect", action="store_true", help="read the headers of models whose facts are not given")
    plan.add_argument("-o", "--output", choices=["text", "json"], default="text")
    plan.set_defaults(run=run_plan)
    explain = subparsers.add_parser(
        "explain",
        help="what the operator decided about a policy in the cluster, and why",
        description="Reads a policy's status.",
    )
    explain.add_argument("policy", help="NAME or NAMESPACE/NAME")
    explain.add_argument("-n", "--namespace", default=None)
    explain.set_defaults(run=run_explain)


def run_plan(args: argparse.Namespace) -> int:
    """Plans every policy in the files and prints the outcome."""
    from inference_fleet.api.policy import Mode
    from inference_fleet.engines import base as engines
    from inference_fleet.explain import files, offline, text
    from inference_fleet.plan.decide import plan
    from inference_fleet.plan.outcome import Memory

    try:
        declared = files.read(args.file)
        devices = _devices(args.devices)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if not declared.policies:
        print("no InferencePolicy in these files", file=sys.stderr)
        return 2
    if args.inspect:
        declared = _inspected(declared)
    settings = _settings()
    complete = True
    for policy in declared.policies:
        observation = offline.observe(policy, declared, settings, devices)
        # What would be applied is asked for, whatever the mode says.
        applying = policy.spec.model_copy(update={"mode": Mode.APPLY})
        observation = replace(observation, policy=replace(observation.policy, spec=applying))
        outcome, _ = plan(observation, Memory(), datetime.now(UTC))
        complete &= len({v.model.name for v in outcome.variants}) == len(policy.spec.models)
        if args.output == "json":
            from pydantic import TypeAdapter

            print(json.dumps(TypeAdapter(type(outcome)).dump_python(outcome, mode="json"), indent=2))
            continue
        arguments = []
        for v in outcome.variants:
            engine = engines.engine(v.engine.engine, v.engine.version)
            if not isinstance(engine, engines.Refusal):
                arguments.append((v.name, engine.arguments(v.engine)))
        print(text.plan_text(observation, outcome, arguments))
    return 0 if complete else 1


def run_explain(args: argparse.Namespace) -> int:
    """Reads the policy from the cluster that kubectl would use and prints its plan and conditions."""
    from kubernetes import client, config

    from inference_fleet.api.base import GROUP, VERSION
    from inference_fleet.api.policy import InferencePolicy
    from inference_fleet.explain import text

    namespace, _, name = args.policy.rpartition("/")
    namespace = args.namespace or namespace or "default"
    try:
        config.load_config()  # type: ignore[no-untyped-call]
        found = client.CustomObjectsApi().get_namespaced_custom_object(
            GROUP, VERSION, namespace, "inferencepolicies", name
        )
    except config.ConfigException as error:
        print(f"no cluster to ask: {error}", file=sys.stderr)
        return 2
    except client.ApiException as error:
        print(f"InferencePolicy {namespace}/{name}: {error.status} {error.reason}", file=sys.stderr)
        return 1
    print(text.status_text(InferencePolicy.model_validate(found)))
    return 0


def _settings() -> OperatorSettings:
    """The chart's defaults: only names of images and the newest revision, neither of which decides what fits."""
    from inference_fleet.plan.observation import OperatorSettings
    from inference_fleet.render.revisions import NEWEST

    return OperatorSettings(image="inference-fleet", llama_cpp_image="", vllm_image="", render_revision=NEWEST)


def _inspected(declared: Declared) -> Declared:
    """Reads the headers of every model that has no facts; one that cannot be read stays uninspected and is said so."""
    from inference_fleet.facts.failure import SourceFailure
    from inference_fleet.facts.inspection import inspect_source, reach_from_environment

    models = []
    for model in declared.models:
        if model.status.facts is None and (model.spec.facts is None or model.spec.facts.missing()):
            try:
                found = inspect_source(model.spec.source, reach_from_environment())
            except SourceFailure as failure:
                print(f"InferenceModel {model.metadata.name}: {failure}", file=sys.stderr)
            else:
                status = model.status.model_copy(update={"resolved": found.resolved, "facts": found.facts})
                model = model.model_copy(update={"status": status})
        models.append(model)
    return replace(declared, models=tuple(models))


def _devices(given: list[str]) -> dict[str, int]:
    devices = {}
    for item in given:
        name, equals, count = item.partition("=")
        if not equals or not count.isdigit():
            raise ValueError(f"--devices {item}: want CLASS=N, such as l4=4")
        devices[name] = int(count)
    return devices
