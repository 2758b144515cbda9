"""Figures of requests by endpoint: sums over their kinds of traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from loadchaos.analysis.figures.requests import Part, sum_of
from loadchaos.analysis.figures.run_figures import RunFigures
from loadchaos.analysis.verdict.model import EndpointGoodput, EndpointResult
from loadchaos.core.endpoint_groups import PREFIX, merged_latency, several_endpoints, traffic_by_endpoint
from loadchaos.core.latency import LatencyHistograms


class EndpointFigures:
    """Sums by endpoint, named `endpoint.NAME` as in `expect`."""

    def __init__(self, endpoints: Mapping[str, str], figures: RunFigures) -> None:
        self._endpoints, self._requests, self._answers = endpoints, figures.requests, figures.answers
        groups = traffic_by_endpoint(endpoints, figures.requests.outcomes)
        self._groups = {PREFIX + name: traffics for name, traffics in groups.items()}

    def traffics_of(self, names: Collection[str]) -> set[str]:
        return {traffic for name in names for traffic in self._groups.get(name, [name])}

    def with_parts(self, parts: Mapping[str, Part]) -> dict[str, Part]:
        sums = {
            name: sum_of(parts[traffic] for traffic in traffics if traffic in parts)
            for name, traffics in self._groups.items()
            if any(traffic in parts for traffic in traffics)
        }
        return {**parts, **sums}

    def outcomes(self) -> dict[str, Counter[str]]:
        of = self._requests.outcomes
        sums = {name: sum((of[traffic] for traffic in traffics), Counter()) for name, traffics in self._groups.items()}
        return {**of, **sums, "": self._requests.total()}

    def latency(self) -> dict[str, LatencyHistograms]:
        of = self._answers.latency
        sums = {name: merged_latency(map(of.get, traffics)) for name, traffics in self._groups.items()}
        return {**of, **sums, "": self._answers.all_latency()}

    def results(self, goodput: Mapping[str, Part]) -> dict[str, EndpointResult]:
        """The figures of verdict.json; empty unless there are several endpoints."""
        outcomes, latency, good = self.outcomes(), self.latency(), self.with_parts(goodput)
        return {
            name: EndpointResult(
                traffic=tuple(traffics),
                outcomes=dict(outcomes[PREFIX + name]),
                latency=latency[PREFIX + name].figures(),
                goodput=EndpointGoodput(good=part.n, due=part.whole) if (part := good.get(PREFIX + name)) else None,
            )
            for name, traffics in several_endpoints(self._endpoints, self._requests.outcomes).items()
        }
