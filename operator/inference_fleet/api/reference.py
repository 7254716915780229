"""The reference pages of the API, generated from the same schemas and tables as the CRDs: `api.md` and `conditions.md`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from inference_fleet.api.base import API_VERSION
from inference_fleet.api.condition_types import CONDITIONS, ConditionMeaning
from inference_fleet.api.crd import KINDS, Kind, Schema, schema
from inference_fleet.api.reasons import GROUPS, Reason, ReasonGroup


def pages() -> dict[str, str]:
    """File name under docs/reference/ → text."""
    return {"api.md": api_page(), "conditions.md": conditions_page()}


# -- the resources


def api_page() -> str:
    """Every field of every resource: type, bounds, default, meaning, and the rules between fields."""
    return "\n".join([
        f"# API: `{API_VERSION}`",
        "",
        "In the tables `[]` is an item of a list and `{}` a value of a map; **bold** fields are required. Money and quantities are"
        " strings, durations whole seconds or milliseconds. Unknown fields are refused (`kubectl` validates strictly by itself).",
        "",
        *(line for kind in KINDS for line in _resource(kind)),
    ])  # fmt: skip


def _resource(kind: Kind) -> Iterator[str]:
    resource, root = kind.resource, schema(kind)
    scope = "namespaced" if resource.namespaced else "cluster-wide"
    yield from (f"## {resource.kind}", "", root["description"], "")
    yield from (f"`kubectl get {resource.plural}`, short `{', '.join(resource.short_names)}`; {scope}.", "")
    for part in ("spec", "status"):
        node = root["properties"][part]
        yield from (f"### {resource.kind} {part}", "", node["description"], "")
        yield from ("| field | type | default | meaning |", "| --- | --- | --- | --- |")
        yield from _fields(node, part)
        yield ""
    rules = list(_rules(root, ""))
    if rules:
        yield from (f"### {resource.kind} rules", "", "Refused by the API server unless all of these hold:", "")
        yield from (f"- {f'`{path}`: ' if path else ''}{message}" for path, message in rules)
        yield ""


def _fields(node: Schema, path: str) -> Iterator[str]:
    required = node.get("required", [])
    for name, child in node.get("properties", {}).items():
        here = f"{path}.{name}"
        shown = f"**`{here}`**" if name in required else f"`{here}`"
        default = f"`{json.dumps(child['default'])}`" if "default" in child else ""
        yield f"| {shown} | {_cell(_type(child))} | {_cell(default)} | {_cell(child.get('description', ''))} |"
        if name != "conditions":
            yield from _fields(*_inside(child, here))


def _inside(node: Schema, path: str) -> tuple[Schema, str]:
    """The object whose fields come next: the node, or what its lists and maps hold."""
    while True:
        if "items" in node:
            node, path = node["items"], f"{path}[]"
        elif "additionalProperties" in node:
            node, path = node["additionalProperties"], f"{path}{{}}"
        else:
            return node, path


def _type(node: Schema) -> str:
    if node.get("x-kubernetes-int-or-string"):
        return "quantity"
    if "enum" in node:
        return " \\| ".join(f"`{value}`" for value in node["enum"])
    kind = node["type"]
    if kind == "array":
        key = node.get("x-kubernetes-list-map-keys")
        by = f", map on `{key[0]}`" if key else ", set" if node.get("x-kubernetes-list-type") == "set" else ""
        return f"list of {_type(node['items'])}{_between(node, 'minItems', 'maxItems')}{by}"
    if "additionalProperties" in node:
        return f"map of {_type(node['additionalProperties'])}{_between(node, '', 'maxProperties')}"
    if kind == "string":
        return f"{node.get('format', 'string')}{_between(node, 'minLength', 'maxLength', ' characters')}"
    if kind == "integer":
        return f"integer{_between(node, 'minimum', 'maximum')}"
    if node.get("x-kubernetes-preserve-unknown-fields"):
        return "object, any fields"
    return str(kind)


def _between(node: Schema, low: str, high: str, unit: str = "") -> str:
    least, most = node.get(low), node.get(high)
    if most is None:
        return "" if least is None else f", at least {least}{unit}"
    if least is None or (unit and least == 0):
        return f", at most {most}{unit}"
    return f", {least} to {most}{unit}"


def _rules(node: Schema, path: str) -> Iterator[tuple[str, str]]:
    for rule in node.get("x-kubernetes-validations", []):
        yield path, rule["message"]
    for name, child in node.get("properties", {}).items():
        yield from _rules(child, f"{path}.{name}" if path else name)
    if "items" in node:
        yield from _rules(node["items"], f"{path}[]")
    if isinstance(node.get("additionalProperties"), Mapping):
        yield from _rules(node["additionalProperties"], f"{path}{{}}")


# -- conditions and reasons


def conditions_page() -> str:
    """What every condition and every reason means, and what to do."""
    lines = [
        "# Conditions and reasons",
        "",
        "Every condition is positive: True is good, Unknown says that it cannot be told. A condition that speaks of models names"
        " the first that fails and counts the rest; `status.models` has each. `inference-fleet explain` reads all of it aloud.",
        "",
    ]
    for kind in dict.fromkeys(meaning.kind for meaning in CONDITIONS):
        lines += [f"## Conditions of {kind}", ""]
        for meaning in CONDITIONS:
            if meaning.kind == kind:
                lines += _condition(meaning)
    for group in GROUPS:
        lines += [f"## {group.title}", "", group.intro, "", *_reasons(("", reason) for reason in group.reasons), ""]
    return "\n".join(lines)


def _condition(meaning: ConditionMeaning) -> Iterator[str]:
    yield from (f"### {meaning.type}", "", f"- True: {meaning.true}", f"- False: {meaning.false}")
    if meaning.unknown:
        yield f"- Unknown: {meaning.unknown}"
    yield ""
    yield from _reasons((f"{status}", reason) for status, reason in meaning.own)
    if meaning.groups:
        yield from ("", f"Also reasons of: {', '.join(_link(group) for group in meaning.groups)}.")
    yield ""


def _reasons(reasons: Iterable[tuple[str, Reason]]) -> Iterator[str]:
    rows = list(reasons)
    if any(status for status, _ in rows):
        yield from ("| status | reason | meaning | what to do |", "| --- | --- | --- | --- |")
        yield from (f"| {status} | `{r.name}` | {_cell(r.meaning)} | {_cell(r.remedy)} |" for status, r in rows)
    else:
        yield from ("| reason | meaning | what to do |", "| --- | --- | --- |")
        yield from (f"| `{r.name}` | {_cell(r.meaning)} | {_cell(r.remedy)} |" for _, r in rows)


def _link(group: ReasonGroup) -> str:
    return f"[{group.title}](#{group.title.lower().replace(' ', '-')})"


def _cell(text: Any) -> str:
    return str(text).replace("\\|", "|").replace("|", "\\|").replace("\n", " ")
