"""Helm's own judgement, and the notes that a user reads after installing."""

from __future__ import annotations

from pathlib import Path

from tests.chart.conftest import CHART, Helm


def test_helm_lint_has_no_complaint(helm: Helm, values: Path) -> None:
    done = helm.run("lint", "--strict", CHART, "--values", values)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 chart(s) failed" in done.stdout + done.stderr


def notes(helm: Helm, *words: str) -> str:
    done = helm.run("install", "inference-fleet", CHART, "-n", "fleet", "--dry-run=client", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("NOTES:")[2]


def test_notes_say_what_creating_a_policy_means(helm: Helm) -> None:
    text = notes(helm)
    assert "can run pods" in text
    assert "all namespaces" in text
    assert "deletes all policies" not in text


def test_notes_warn_where_uninstalling_takes_the_policies_along(helm: Helm) -> None:
    assert "deletes all policies" in notes(helm, "--set", "crds.keep=false")


def test_notes_name_the_namespaces_served_and_what_is_not_known(helm: Helm) -> None:
    text = notes(helm, "--set", "watchNamespaces={chat,search}", "--set", "rbac.readNodes=false")
    assert "chat, search" in text
    assert "stock is unknown" in text
