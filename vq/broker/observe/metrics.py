"""The metrics of a node for Prometheus: the facts that have a name there.

A number that is not known has no sample; a family without samples still has its name and meaning.
The page of reference is compared with what is made here by a test.
"""

from collections.abc import Iterator
from itertools import accumulate
from operator import itemgetter
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from vq.broker.base.facts import Fact, FactKind, Table
from vq.broker.base.histogram import Histogram

_FAMILIES: Final[dict[FactKind, Any]] = {
    FactKind.GAUGE: GaugeMetricFamily,
    FactKind.COUNTER: CounterMetricFamily,
    FactKind.HISTOGRAM: HistogramMetricFamily,
}


def families(table: Table) -> Iterator[Metric]:
    """Yield a family for each fact that is a metric, each read when it is asked for."""
    for facts in table:
        told = [fact for fact in facts.facts if fact.metric]
        things = sorted(facts.things().items(), key=itemgetter(0)) if told else []
        for fact in told:
            family = _FAMILIES[fact.kind](fact.metric, fact.meaning, labels=facts.labels)
            for labels, thing in things:
                _add(family, labels, fact, fact.read(thing))
            yield family


def _add(family: Any, labels: tuple[str, ...], fact: Fact[Any], value: Any) -> None:
    if isinstance(value, Histogram):
        bounds = [*map(str, value.bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(value.counts), strict=True))
        family.add_metric(labels, buckets, value.sum)
    elif value is not None:
        family.add_metric(labels, value / 1000 if fact.ms else value)
