"""The rules of structural schemas, read from the Kubernetes documentation and checked without an API server.

https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

TYPES = {"object", "array", "string", "integer", "number", "boolean"}
FORBIDDEN = {"$ref", "$defs", "definitions", "dependencies", "deprecated", "discriminator", "id", "patternProperties", "title",
             "readOnly", "writeOnly", "xml", "uniqueItems", "const", "propertyNames", "examples", "exclusiveMinimum",
             "exclusiveMaximum"}  # fmt: skip
COMMON = {"description", "type", "default", "enum", "x-kubernetes-validations", "x-kubernetes-preserve-unknown-fields"}
BY_TYPE = {
    "object": {"properties", "required", "additionalProperties", "maxProperties", "minProperties"},
    "array": {"items", "maxItems", "minItems", "x-kubernetes-list-type", "x-kubernetes-list-map-keys"},
    "string": {"pattern", "format", "maxLength", "minLength"},
    "integer": {"minimum", "maximum", "format"},
    "number": {"minimum", "maximum", "format"},
    "boolean": set(),
    "int-or-string": {"maxLength", "x-kubernetes-int-or-string"},
}
STRING_FORMATS = {"date", "date-time"}


def faults(schema: Mapping[str, Any]) -> list[str]:
    """Everything that a structural schema of ours may not have, each with its path."""
    return list(_faults(schema, "$"))


def nodes(schema: Mapping[str, Any], path: str = "$") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every node with its path."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if isinstance(schema.get("items"), Mapping):
        yield from nodes(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


def _faults(schema: Mapping[str, Any], root: str) -> Iterator[str]:
    for path, node in nodes(schema, root):
        if path in (f"{root}.apiVersion", f"{root}.kind"):
            continue  # as every CRD has them: API servers check them before any schema
        yield from (f"{path}: {message}" for message in _node(node, path == root))


def _node(node: Mapping[str, Any], is_root: bool) -> Iterator[str]:
    yield from (f"{key} is not allowed in a structural schema" for key in sorted(FORBIDDEN & set(node)))
    for key in ("allOf", "anyOf", "oneOf", "not"):
        if key in node:
            yield f"{key} is not used: it would hide types and bounds"
    either = node.get("x-kubernetes-int-or-string") is True
    kind = "int-or-string" if either else node.get("type")
    if either and "type" in node:
        yield "int-or-string must not have a type"
        return
    if kind not in BY_TYPE:
        yield f"type {kind!r}: every node must have one of {sorted(TYPES)}"
        return
    unknown = set(node) - COMMON - BY_TYPE[kind] - FORBIDDEN - {"allOf", "anyOf", "oneOf", "not"}
    if unknown:
        yield f"{sorted(unknown)} says nothing about a {kind}"
    if "nullable" in node:
        yield "nullable is not used: absent is absent"
    if kind == "object":
        yield from _object(node)
    if kind == "array":
        yield from _array(node)
    if kind == "string":
        yield from _string(node)
    if "default" in node:
        if is_root:
            yield "the root may not have a default"
        yield from (f"default: {message}" for message in misfits(node["default"], node))
    for rule in node.get("x-kubernetes-validations", []):
        yield from _rule(rule, node)


def _object(node: Mapping[str, Any]) -> Iterator[str]:
    properties = node.get("properties", {})
    if "properties" in node and "additionalProperties" in node:
        yield "properties and additionalProperties exclude each other"
    if node.get("additionalProperties") is False:
        yield "additionalProperties: false is not allowed; unknown fields are pruned"
    missing = set(node.get("required", [])) - set(properties)
    if missing:
        yield f"required but not declared: {sorted(missing)}"
    defaulted = [name for name in node.get("required", []) if "default" in properties.get(name, {})]
    if defaulted:
        yield f"required and with a default: {defaulted}"
    if "additionalProperties" in node and "maxProperties" not in node:
        yield "a map must be bounded by maxProperties"


def _array(node: Mapping[str, Any]) -> Iterator[str]:
    items = node.get("items")
    if not isinstance(items, Mapping):
        yield "an array must have one schema for its items"
        return
    if "maxItems" not in node:
        yield "a list must be bounded by maxItems"
    kind, keys = node.get("x-kubernetes-list-type", "atomic"), node.get("x-kubernetes-list-map-keys", [])
    if kind == "map":
        if items.get("type") != "object" or not keys:
            yield "a map list must hold objects and name its keys"
        for key in keys:
            if key not in items.get("required", []) and "default" not in items.get("properties", {}).get(key, {}):
                yield f"the key {key} of a map list must be required or have a default"
    elif keys:
        yield "only a map list has keys"
    if kind == "set" and items.get("type") in ("object", "array"):
        yield "a set must hold scalars"


def _string(node: Mapping[str, Any]) -> Iterator[str]:
    if "format" in node:
        if node["format"] not in STRING_FORMATS:
            yield f"format {node['format']!r} is not known to API servers"
    elif "enum" not in node and "maxLength" not in node:
        yield "a string must be bounded by maxLength, an enum or a format"
    if "pattern" in node:
        if re.search(r"\(\?[=!<]", node["pattern"]):
            yield "RE2 has no look-around"
        re.compile(node["pattern"])


def _rule(rule: Mapping[str, str], node: Mapping[str, Any]) -> Iterator[str]:
    if set(rule) - {"rule", "message", "fieldPath"}:
        yield f"a rule has rule, message and fieldPath only: {sorted(rule)}"
    if not rule.get("message"):
        yield f"a rule must have a message: {rule['rule']}"
    elif "\n" in rule["message"] or len(rule["message"]) > 2048:
        yield "a message is one line of at most 2048 characters"
    path = rule.get("fieldPath", "")
    if path and path.removeprefix(".") not in node.get("properties", {}):
        yield f"fieldPath {path} names no child"


def misfits(value: Any, node: Mapping[str, Any]) -> Iterator[str]:
    """Why a value would be pruned or refused by a node: wrong type, unknown field, out of bounds."""
    kind = node.get("type")
    python = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}.get(str(kind), object)
    if not isinstance(value, python) or (kind == "integer" and isinstance(value, bool)):
        yield f"{value!r} is not of type {kind}"
        return
    if "enum" in node and value not in node["enum"]:
        yield f"{value!r} is not one of {node['enum']}"
    if kind == "integer" and not node.get("minimum", value) <= value <= node.get("maximum", value):
        yield f"{value} is out of bounds"
    if kind == "object":
        properties, rest = node.get("properties", {}), node.get("additionalProperties")
        for name in sorted(set(node.get("required", [])) - set(value)):
            yield f"{name} is required"
        for name, child in value.items():
            if name in properties or rest is not None:
                yield from misfits(child, properties.get(name, rest))
            elif not node.get("x-kubernetes-preserve-unknown-fields"):
                yield f"{name} would be pruned"
    if kind == "array":
        for item in value:
            yield from misfits(item, node["items"])
