"""How many pods a rollout may add is decided when pods roll; at rest a Deployment keeps what it has: stock causes no writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inference_fleet.plan.outcome import DesiredVariant
from inference_fleet.render.variant import render_variant, template_hash
from tests.unit.render.samples import SETTINGS, llama_plain, policy

AT_REST = template_hash(render_variant(llama_plain(), policy(), SETTINGS)[0])


def max_surge(desired: DesiredVariant) -> int:
    found: int = render_variant(desired, policy(), SETTINGS)[0]["spec"]["strategy"]["rollingUpdate"]["maxSurge"]
    return found


@pytest.mark.parametrize("resting", [True, False])
def test_at_rest_it_stays_as_it_is(resting: bool) -> None:
    desired = replace(llama_plain(surge=not resting), resting_surge=resting, running_template_hash=AT_REST)
    assert max_surge(desired) == int(resting)


@pytest.mark.parametrize("surge", [True, False])
def test_a_new_template_rolls_as_the_stock_allows_now(surge: bool) -> None:
    resting = replace(llama_plain(surge=surge), resting_surge=not surge, running_template_hash=AT_REST)
    changed = replace(resting, engine=replace(resting.engine, max_sequences=resting.engine.max_sequences + 1))
    assert max_surge(changed) == int(surge)
    assert max_surge(replace(resting, resting_surge=None)) == int(surge), "while pods roll"
