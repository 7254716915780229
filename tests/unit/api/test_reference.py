"""The reference pages: every field, every rule, every reason, and links that lead somewhere."""

from __future__ import annotations

import re

import pytest

from inference_fleet.api import crd
from inference_fleet.api.condition_types import CONDITIONS, known_reasons
from inference_fleet.api.crd import KINDS, Kind
from inference_fleet.api.reference import api_page, conditions_page, pages
from tests.unit.api.structural import nodes

PER_KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource.kind)


def test_two_pages() -> None:
    assert set(pages()) == {"api.md", "conditions.md"}
    assert pages() == pages()


@PER_KIND
def test_every_field_has_a_row(kind: Kind) -> None:
    rows = set(re.findall(r"^\| \**`([^`]+)`", api_page(), re.MULTILINE))
    for path, _ in nodes(crd.schema(kind)):
        field = path.removeprefix("$.")
        if field.startswith(("spec.", "status.")) and not field.endswith(("[]", "{}")) and "conditions[]" not in field:
            assert field in rows


@PER_KIND
def test_every_rule_is_listed(kind: Kind) -> None:
    page = api_page()
    for _, node in nodes(crd.schema(kind)):
        for rule in node.get("x-kubernetes-validations", []):
            assert rule["message"] in page


def test_every_condition_and_reason_is_listed() -> None:
    page = conditions_page()
    for meaning in CONDITIONS:
        assert f"### {meaning.type}\n" in page
    for reason in known_reasons():
        assert f"`{reason}`" in page


def test_links_lead_somewhere() -> None:
    page = conditions_page()
    headings = {
        heading.lower().replace(" ", "-").replace("'", "") for heading in re.findall(r"^## (.+)$", page, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= headings


def test_tables_are_whole() -> None:
    for page in pages().values():
        for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
            widths = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
            assert len(widths) == 1, table
