"""What the console itself does, as metrics for Prometheus."""

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.metrics_core import Metric

from vq.broker.base.facts import Facts, gauge
from vq.broker.observe.metrics import families
from vq.console.clusters.history import MinuteMeter
from vq.console.clusters.site import Look, Site

_LOOKS: Final = {"brokers": "brokers_look", "names": "names_look", "lags": "lags_look"}


def console_families(
    sites: Mapping[str, Site], meters: Mapping[str, MinuteMeter]
) -> Iterator[Metric]:
    """Yield the families of all clusters of a console.

    Args:
        sites: The clusters by name.
        meters: What is kept of their measurements, by the same names.
    """
    return families(
        (
            Facts[MinuteMeter](
                labels=("cluster",),
                things=lambda: {(name,): meter for name, meter in meters.items()},
                facts=(
                    gauge(
                        "vq_console_kept_series",
                        "Series of measurements that are kept.",
                        lambda meter: meter.kept,
                    ),
                    gauge(
                        "vq_console_left_out_series",
                        "Series beyond history_series: those of consumer groups that read least.",
                        lambda meter: meter.left_out,
                    ),
                ),
            ),
            Facts[Look](
                labels=("cluster", "look"),
                things=lambda: {
                    (name, short): getattr(site.facts, look)
                    for name, site in sites.items()
                    for short, look in _LOOKS.items()
                },
                facts=(
                    gauge(
                        "vq_console_look_timestamp_seconds",
                        "When brokers, names or lags were looked at last; none before that.",
                        lambda look: look.time_ms or None,
                        ms=True,
                    ),
                    gauge(
                        "vq_console_look_seconds", "How long that took.", lambda look: look.took_s
                    ),
                    gauge(
                        "vq_console_look_failed",
                        "1 if the newest look found nothing, else 0.",
                        lambda look: bool(look.error),
                    ),
                ),
            ),
        )
    )
