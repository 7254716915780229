"""A plan, or a policy's status, as text for a terminal. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from decimal import Decimal

from inference_fleet.api.conditions import Condition, Status
from inference_fleet.api.money import format_money
from inference_fleet.api.policy import InferencePolicy
from inference_fleet.api.quantities import format_bytes
from inference_fleet.plan.observation import Observation
from inference_fleet.plan.outcome import Plan

WIDTH = 110


def plan_text(observation: Observation, plan: Plan, arguments: Sequence[tuple[str, Sequence[str]]]) -> str:
    """What would run, whether it fits, what it costs an hour, why, and why not the other options."""
    policy = observation.policy
    lines = [f"InferencePolicy {policy.key}", ""]
    rows = [("MODEL", "VARIANT", "ACCELERATOR", "REPLICAS", "MEMORY", "PRICE/H EACH")]
    for v in plan.variants:
        memory = f"{format_bytes(v.memory.needed_bytes)} of {format_bytes(v.memory.available_bytes)}"
        rows.append((v.model.name, v.name, v.accelerator, str(v.replicas), memory, _price(v.price_per_hour, v)))
    placed = {v.model.name for v in plan.variants}
    rows.extend((m.name, "-", "-", "0", m.reason, "-") for m in plan.models if m.name not in placed)
    lines += table(rows)
    lines += ["", f"Together: {_total(plan)}", ""]
    for decision in plan.decisions:
        lines.append(f"{decision.model}: {decision.action} because {decision.reason}")
        lines += _wrapped(decision.message)
        for other in decision.rejected:
            lines += _wrapped(f"not {other.option}: {other.reason}: {other.message}")
    for name, argv in arguments:
        lines += ["", f"{name} would run:"]
        lines += _wrapped(" ".join(argv))
    lines += _failing(plan.conditions, ("Accepted", "ModelsReady", "FitsMemory", "Scheduled"))
    return "\n".join(lines) + "\n"


def status_text(policy: InferencePolicy) -> str:
    """What the operator last decided about a policy and how it stands, from its status."""
    status = policy.status
    name = f"{policy.metadata.namespace}/{policy.metadata.name}"
    lines = [f"InferencePolicy {name}", f"endpoint  {status.endpoint or 'none yet'}", ""]
    rows = [("CONDITION", "STATUS", "REASON", "MESSAGE")]
    rows += [(c.type, c.status.value, c.reason, textwrap.shorten(c.message, 90)) for c in status.conditions]
    lines += table(rows)
    if status.plan is None:
        lines += [
            "",
            "No plan yet: the operator has not seen this policy. Is it running, and does it watch this namespace?",
        ]
        return "\n".join(lines) + "\n"
    lines += ["", f"Plan: {status.plan.summary}", ""]
    for decision in status.plan.decisions:
        counts = f" {decision.from_}→{decision.to}" if decision.from_ != decision.to else ""
        lines.append(f"{decision.model} {decision.variant or ''}: {decision.action}{counts} because {decision.reason}")
        lines += _wrapped(decision.message)
        for other in decision.rejected:
            lines += _wrapped(f"not {other.option}: {other.reason}: {other.message}")
    if status.observed_generation != policy.metadata.generation:
        lines += ["", "This is about an earlier generation of the policy; the operator has not finished the newest."]
    return "\n".join(lines) + "\n"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows in aligned columns, the first row being the heads."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _price(price: Decimal | None, variant: object) -> str:
    return "unknown" if price is None else format_money(price)


def _total(plan: Plan) -> str:
    if plan.cost_per_hour is None:
        return (
            "price unknown (an AcceleratorClass without a price, more than one currency, or a model that is not placed)"
        )
    return f"{format_money(plan.cost_per_hour)} {plan.currency} an hour"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False)


def _failing(conditions: Sequence[Condition], kinds: Sequence[str]) -> list[str]:
    failing = [c for c in conditions if c.type in kinds and c.status is Status.FALSE]
    if not failing:
        return []
    return ["", "What would have to change:"] + [
        line for c in failing for line in _wrapped(f"{c.type}: {c.reason}: {c.message}")
    ]
