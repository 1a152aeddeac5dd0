"""Which replica can't serve: ``replica:exaserve_replica_up:effective`` and the alert ExaServeReplicaDown.

The router's word counts, since its probe is a real inference. Two things must not silence the alert:

- The router's target vanishes: its last word about a replica whose alert fires counts for 15 minutes.
- The router restarts while a replica is down and knows no more that it had been ready: an alert that is firing
  goes on.

And one must not raise it: a replica that is starting for the first time, for its first 5 minutes. "First time"
is judged by the router's own count of passed probes, so that a stack started anew is not measured by the samples
that its forerunner left in Prometheus. (A Prometheus that restarts knows no series that ended meanwhile and shows
them for 5 minutes; hence the comparison of timestamps: the count has to be of the same scrape as the state.)

Where no router is scraped, ``up`` of the job exaserve-replica is all that is known. A source without a router says
itself what up is; its replicas are given a minute, since a restart there is not ours to know.
"""

from __future__ import annotations

from dashboards.rulefile import Alert, Group, Record
from dashboards.signals import UP, Source

SCRAPED = "replica:up:min"
GRACE = "replica:exaserve_replica_startup:grace"
ALERT = "ExaServeReplicaDown"

#: Replicas whose alert fired at the last evaluations. A stack that was down for longer starts with none.
_FIRING = f'last_over_time(ALERTS{{alertname="{ALERT}", alertstate="firing"}}[30s])'


def group(source: Source) -> Group:
    return _by_router() if source.up is None else _by_target(source.up)


def _by_target(up: Record) -> Group:
    return Group(
        "replica",
        (
            up,
            Alert(
                ALERT,
                f"{UP} == 0",
                "warning",
                summary="{{ $labels.replica }}{{ with $labels.model }} (model {{ . }}){{ end }} is down: up is {{ $value }}",
                description="""
                    Its metrics can't be read any more. Look at the end of its log, and whether its process, its node
                    and the network to it are there; what restarts it is whatever started it.
                    """,
                wait="1m",
                keep_firing="30s",
                board="replica",
                variables={"replica": "{{ $labels.replica }}"},
            ),
        ),
    )


def _by_router() -> Group:
    return Group(
        "replica",
        (
            # Replicas without a name of their own, as in a prometheus.yml by hand, go by their address.
            Record(
                SCRAPED,
                """
                min by (cluster, replica, model) (
                  up{job="exaserve-replica", replica!=""}
                  or
                  label_replace(up{job="exaserve-replica", replica=""}, "replica", "$1", "instance", "(.*)")
                )
                """,
            ),
            # 1 or 0 by replica and model. With several routers, 0 if any of them can't use the replica. None for
            # one that an operator drains: it is out on purpose.
            Record(
                UP,
                f"""
                min by (cluster, replica, model) (
                  exaserve_replica_up
                  unless on (cluster, replica, model)
                  (exaserve_replica_state{{state="draining"}} == 1)
                )
                or on (cluster, replica)
                (
                  min by (cluster, replica, model) (last_over_time(exaserve_replica_up[15m])) == 0
                  and on (cluster, replica, model)
                  {_FIRING}
                  unless on (cluster)
                  exaserve_router_build_info
                )
                or on (cluster, replica)
                (
                  {SCRAPED}
                  unless on (cluster)
                  exaserve_router_build_info
                )
                """,
            ),
            # Replicas that are starting for the first time, for less than 5 minutes; the value says nothing.
            Record(
                GRACE,
                f"""
                (
                  max by (cluster, replica, model) (exaserve_replica_state{{state="starting"}}) == 1
                  unless on (cluster, replica, model)
                  (
                    exaserve_replica_probes_total{{result="ok"}} > 0
                    and ignoring (result)
                    timestamp(exaserve_replica_probes_total{{result="ok"}})
                      == ignoring (result, state) timestamp(exaserve_replica_state{{state="starting"}})
                  )
                  unless on (cluster, replica, model)
                  (
                    min_over_time(exaserve_replica_state{{state="starting"}}[5m]) == 1
                    and
                    exaserve_replica_state{{state="starting"}} offset 5m == 1
                  )
                )
                or
                (
                  {UP} == 0
                  unless on (cluster)
                  exaserve_router_build_info
                  unless on (cluster, replica)
                  (max_over_time({SCRAPED}[5m]) == 1)
                  unless on (cluster, replica)
                  {SCRAPED} offset 5m
                )
                """,
            ),
            Alert(
                ALERT,
                f"""
                {UP} == 0
                unless on (cluster, replica, model)
                (
                  {GRACE}
                  unless on (cluster, replica, model)
                  {_FIRING}
                )
                """,
                "warning",
                summary="{{ $labels.replica }} gets no requests"
                "{{ with $labels.model }} (model {{ . }}){{ end }}: up is {{ $value }}",
                description="""
                    Look at `exaserve status` for its state, reason and restarts, then at the end of its log
                    (`exaserve logs {{ $labels.replica }}`). It is restarted by itself; act if it stays down for
                    more than a minute or comes and goes.
                    """,
                keep_firing="30s",
                variables={"replica": "{{ $labels.replica }}"},
            ),
        ),
    )
