"""Which size of an elastic model answers which request: routes, how they are made, and what they gain."""

from slimformer.inference.routing.cascade import Outcomes, calibrate, compare_with_random
from slimformer.inference.routing.measuring import (
    calibrate_route,
    evaluate_routed,
    latency_route,
    mean_length,
    measure_latencies,
    measure_outcomes,
    relative_costs,
)
from slimformer.inference.routing.routes import (
    ROUTED,
    Cascade,
    CascadeRunner,
    Confidence,
    LatencyRoute,
    LatencyRunner,
    Route,
    check_place,
    chosen_route,
    confidences,
    read_route,
    write_route,
)

__all__ = [
    "ROUTED",
    "Cascade",
    "CascadeRunner",
    "Confidence",
    "LatencyRoute",
    "LatencyRunner",
    "Outcomes",
    "Route",
    "calibrate",
    "calibrate_route",
    "check_place",
    "chosen_route",
    "compare_with_random",
    "confidences",
    "evaluate_routed",
    "latency_route",
    "mean_length",
    "measure_latencies",
    "measure_outcomes",
    "read_route",
    "relative_costs",
    "write_route",
]
