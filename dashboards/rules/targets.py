"""Monitoring itself: targets that can't be read, collectors that fail, discovery, rules, notifications.

The router's page is ``router_process.py``'s, a whole node ``nodes.py``'s, a replica that serves nobody ``replica.py``'s.
Jobs are named as in the stack's own prometheus.yml: exaserve-exporter, exaserve-replica.
"""

from __future__ import annotations

from dashboards.rulefile import NODE, Alert, Group
from dashboards.signals import UP, Source

MISSING = "ExaServeTargetMissing"
COLLECTOR = "ExaServeExporterCollectorFailing"
DISCOVERY = "ExaServeDiscoveryFailing"
RULES = "ExaServeRuleFailures"
UNDELIVERED = "ExaServeAlertsUndelivered"

_EXPORTER = "exaserve_exporter_build_info"


def group(source: Source) -> Group:
    return Group(
        "targets",
        (
            *_missing(source),
            Alert(
                COLLECTOR,
                "max by (cluster, instance, collector) (exaserve_exporter_collector_success) == 0",
                "warning",
                summary="Collector {{ $labels.collector }} of the exporter on {{ $labels.instance }} fails"
                " (success is {{ $value }})",
                description="""
                    What it measures is missing, and alerts about it are blind on that node. The exporter's log says why,
                    once for each new reason.
                    """,
                wait="5m",
                keep_firing="1m",
                board="fabric",
                variables=NODE,
            ),
            Alert(
                DISCOVERY,
                "max by (cluster, instance) (exaserve_engine_discovery_up) == 0",
                "warning",
                summary="The exporter on {{ $labels.instance }} gets no list of replicas (up is {{ $value }})",
                description="""
                    It reads the replicas that it knew last; new ones are not watched. Ask the service discovery
                    (`exporter.discover`) from that node.
                    """,
                wait="5m",
                keep_firing="1m",
            ),
            *_prometheus(),
        ),
        team="platform",
    )


def _missing(source: Source) -> tuple[Alert, ...]:
    # Where there is no router, a replica is up while its page is: ExaServeReplicaDown says it.
    return (
        Alert(
            MISSING,
            'max by (cluster, instance, job) (up{job="exaserve-exporter"}) == 0',
            "warning",
            summary="The exporter on {{ $labels.instance }} can't be scraped (up is {{ $value }})",
            description="""
                Nothing is measured on that node: GPUs, fabric, storage, engines. Replicas may be well. See whether the
                node answers at all, then the exporter's process and its token.
                """,
            wait="2m",
            keep_firing="1m",
            labels={"condition": "exporter"},
        ),
        *((_page(),) if source.has_router else ()),
        Alert(
            MISSING,
            # For an hour: a job that lost its list of targets has no `up` that could be 0.
            f"""
            label_replace(
              count by (cluster) (last_over_time({_EXPORTER}[1h]))
              unless on (cluster) {_EXPORTER}
              unless on (cluster) up{{job="exaserve-exporter"}},
              "job", "exaserve-exporter", "", ""
            )
            """,
            "warning",
            summary="Prometheus has no exporter to scrape any more: {{ $value }} were there within the last hour",
            description="""
                Alerts about nodes, GPUs, fabric, storage and engines are blind. Look at the targets of Prometheus: an
                emptied list, a changed name of the job, or a network that is gone.
                """,
            wait="2m",
            keep_firing="1m",
            labels={"condition": "all"},
        ),
    )


def _page() -> Alert:
    """A replica that serves, and whose page can't be read."""
    return Alert(
        MISSING,
        # Only one that the router sends requests to: others are told of by their own alerts.
        f"""
        min by (cluster, replica, job) (up{{job="exaserve-replica", replica!=""}}) == 0
        and on (cluster, replica)
        {UP} == 1
        """,
        "warning",
        summary="The metrics page of {{ $labels.replica }} can't be scraped (up is {{ $value }}), though it serves",
        description="""
            Its latencies are missing in every mean and quantile by replica. Read the page by hand: a firewall, a
            token, or a page that takes longer than the scrape timeout.
            """,
        wait="5m",
        keep_firing="1m",
        labels={"condition": "replica"},
    )


def _prometheus() -> tuple[Alert, ...]:
    return (
        Alert(
            RULES,
            'sum by (cluster, instance, rule_group) (increase(prometheus_rule_evaluation_failures_total{rule_group=~".*exaserve-.*"}[5m])) > 0',
            "warning",
            summary='Prometheus {{ $labels.instance }} failed {{ printf "%.0f" $value }} times in 5 minutes to evaluate'
            " {{ $labels.rule_group }}",
            description="""
                Boards and alerts that need these rules are blind. Its log names the rule and why: mostly series that two
                targets both have, or a limit of samples.
                """,
            wait="1m",
            keep_firing="5m",
            labels={"condition": "failed"},
        ),
        Alert(
            RULES,
            'sum by (cluster, instance, rule_group) (increase(prometheus_rule_group_iterations_missed_total{rule_group=~".*exaserve-.*"}[5m])) > 5',
            "warning",
            summary='Prometheus {{ $labels.instance }} skipped {{ printf "%.0f" $value }} evaluations of'
            " {{ $labels.rule_group }} in 5 minutes",
            description="""
                Rules take longer than their interval: alerts come late. Prometheus needs more CPU, or has far more series
                than before; see which group is slowest.
                """,
            wait="5m",
            keep_firing="5m",
            labels={"condition": "late"},
        ),
        Alert(
            UNDELIVERED,
            # What is dropped once, while Alertmanager starts anew, is sent again within a minute, as all that fires is.
            "sum by (cluster, instance) (increase(prometheus_notifications_dropped_total[2m])) > 0",
            "warning",
            summary='Prometheus {{ $labels.instance }} dropped {{ printf "%.0f" $value }} alerts in 2 minutes',
            description="""
                On-call may not be told of what fires. See whether Alertmanager is up and reachable from Prometheus; until
                it is, look at the alerts in Prometheus itself.
                """,
            wait="3m",
            keep_firing="5m",
            labels={"condition": "prometheus"},
        ),
        Alert(
            UNDELIVERED,
            "sum by (cluster, instance, integration) (increase(alertmanager_notifications_failed_total[5m])) > 0",
            "warning",
            summary='Alertmanager {{ $labels.instance }} failed {{ printf "%.0f" $value }} times in 5 minutes to notify by'
            " {{ $labels.integration }}",
            description="""
                Whoever is told that way is not told. Its log says why: a secret that expired, an address that moved, a
                proxy. Alerts are tried again; the other receivers go on.
                """,
            wait="1m",
            keep_firing="5m",
            labels={"condition": "alertmanager"},
        ),
    )
