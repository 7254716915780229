"""What every API object is built on: frozen models, named rules in CEL and Python, names, references, bounded lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

GROUP = "inference-fleet.dev"
VERSION = "v1alpha1"
API_VERSION: Final = "inference-fleet.dev/v1alpha1"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rule:
    """Something that must hold in one object, said three times: for the API server, for people, for Python.

    `cel` is put into the CRD's `x-kubernetes-validations`, where `self` is the object it hangs on. `holds` is the same in Python,
    for files that are read without a cluster; None for rules about a change (`oldSelf`), which a single object cannot break.
    `field` names the one child that the message is about, in API spelling; empty: the object itself.
    """

    cel: str
    message: str
    holds: Callable[[Any], bool] | None
    field: str = ""

    def schema(self) -> dict[str, str]:
        """The rule as one item of `x-kubernetes-validations`."""
        item = {"rule": self.cel, "message": self.message}
        if self.field:
            item["fieldPath"] = f".{self.field}"
        return item


class ApiModel(BaseModel):
    """Frozen, camelCase outside and snake_case inside; an unknown field is an error; attribute docstrings are descriptions."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        broken = [rule for rule in type(self).rules if rule.holds is not None and not rule.holds(self)]
        if broken:
            raise PydanticCustomError("rule", "{broken}", {"broken": "; ".join(rule.message for rule in broken)})
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The schema with this class's rules."""
        document = handler.resolve_ref_schema(handler(schema))
        if cls.rules:
            document["x-kubernetes-validations"] = [rule.schema() for rule in cls.rules]
        return document

    def to_dict(self) -> dict[str, Any]:
        """As it is written in YAML or JSON: camelCase, only plain types, absent fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class StatusModel(ApiModel):
    """Part of a status. A newer operator may have written fields that this one does not know: they are left out."""

    model_config = ConfigDict(extra="ignore")


@dataclass(frozen=True, slots=True)
class ByName:
    """Marks a list as a map on `name` (`x-kubernetes-list-type: map`): names in it are unique."""

    key: str = "name"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Refuse a name that is given twice, as the API server does."""
        return core_schema.no_info_after_validator_function(self._unique, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Add the list type and its key."""
        return {**handler(schema), "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [self.key]}

    def _unique(self, items: Sequence[T]) -> Sequence[T]:
        names = [getattr(item, self.key) for item in items]
        twice = sorted({str(name) for name in names if names.count(name) > 1})
        if twice:
            raise PydanticCustomError(
                "duplicate", "Duplicate value: {key} {twice}", {"key": self.key, "twice": ", ".join(twice)}
            )
        return items


@dataclass(frozen=True, slots=True)
class Unique:
    """Marks a list of plain values as a set (`x-kubernetes-list-type: set`)."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Refuse a value that is given twice, as the API server does."""
        return core_schema.no_info_after_validator_function(self._unique, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Add the list type."""
        return {**handler(schema), "x-kubernetes-list-type": "set"}

    def _unique(self, items: Sequence[T]) -> Sequence[T]:
        twice = sorted({str(item) for item in items if list(items).count(item) > 1})
        if twice:
            raise PydanticCustomError("duplicate", "Duplicate value: {twice}", {"twice": ", ".join(twice)})
        return items


def shortened(limit: int) -> BeforeValidator:
    """Cut a text of our own writing to `limit` characters, so that a long cause never makes a status impossible to write."""

    def shorten(text: Any) -> Any:
        return text[: limit - 1] + "…" if isinstance(text, str) and len(text) > limit else text

    return BeforeValidator(shorten)


def first(limit: int) -> BeforeValidator:
    """Keep the first `limit` items of a status list of our own writing."""

    def cut(items: Any) -> Any:
        return items[:limit] if isinstance(items, list | tuple) else items

    return BeforeValidator(cut)


Whole = Annotated[int, Strict()]
"""A whole number, never read out of a text or a boolean."""

LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"

ItemName = Annotated[str, Field(min_length=1, max_length=63, pattern=LABEL)]
"""Name of an item in a list: a DNS label, at most 63 characters."""

ObjectName = Annotated[str, Field(min_length=1, max_length=63, pattern=SUBDOMAIN)]
"""Name of one of our objects: lower case letters, digits, `-` and `.`, at most 63 characters."""

ForeignName = Annotated[str, Field(min_length=1, max_length=253, pattern=SUBDOMAIN)]
"""Name of an object of another kind (Secret, PersistentVolumeClaim, RuntimeClass), at most 253 characters."""

Message = Annotated[str, shortened(512), Field(max_length=512)]
"""A sentence in a status list, cut at 512 characters."""

ReasonName = Annotated[str, shortened(64), Field(max_length=64)]
"""A CamelCase reason, at most 64 characters."""


class NameReference(ApiModel):
    """Refers to an object by its name."""

    name: ObjectName
    """Name of the object, in the same namespace where its kind has one."""


class SecretReference(ApiModel):
    """Refers to a Secret in the same namespace."""

    name: ForeignName
    """Name of the Secret."""


class SecretKeyReference(ApiModel):
    """Refers to one key of a Secret in the same namespace."""

    name: ForeignName
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
    """Key in the Secret's data."""
