"""Which endpoint gets the next request. Pure: randomness and load are arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inference_fleet.gateway.endpoints import Endpoint
from inference_fleet.gateway.routes import Variant


@dataclass(frozen=True, slots=True)
class Choice:
    variant: Variant
    endpoint: Endpoint


def choose(
    candidates: Sequence[tuple[Variant, Sequence[Endpoint]]],
    load: Callable[[Endpoint], int],
    random: Callable[[], float],
) -> Choice | None:
    """Draws a variant by weight among those with endpoints, then its least loaded endpoint.

    The variant is drawn rather than balanced by load, because the weights are part of the plan: a faster variant
    would otherwise quietly take the share that the plan priced for another. A share of a variant without endpoints
    falls to the others. Ties between endpoints are drawn too, so that replicas of the gateway, which do not know each
    other's load, do not all fill the first pod of the list. `random` gives numbers in [0, 1).

    None when no variant with a weight has an endpoint.
    """
    open_variants = [(variant, endpoints) for variant, endpoints in candidates if variant.weight > 0 and endpoints]
    if not open_variants:
        return None
    variant, endpoints = open_variants[0]
    if len(open_variants) > 1:
        ticket = random() * sum(variant.weight for variant, _ in open_variants)
        for variant, endpoints in open_variants:  # noqa: B007 - the last one stands where rounding ends the loop
            ticket -= variant.weight
            if ticket < 0:
                break
    if len(endpoints) == 1:
        return Choice(variant, endpoints[0])
    loads = [load(endpoint) for endpoint in endpoints]
    least = min(loads)
    idlest = [endpoint for endpoint, count in zip(endpoints, loads, strict=True) if count == least]
    return Choice(variant, idlest[int(random() * len(idlest))])
