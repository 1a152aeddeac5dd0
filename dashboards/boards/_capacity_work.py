"""The Capacity board's lower half: how work is spread over replicas, and what replicas and GPUs do with their time."""

from __future__ import annotations

from typing import Any

from dashboards import variables as of
from dashboards.board import runbook, to_board
from dashboards.panels import heat_map, timeseries
from dashboards.rulefile import Links
from dashboards.rules import engine_alerts, kv, spread, totals
from dashboards.signals import KV_REPLICAS

_UNREAD = "no replica was read in this time"
_NO_GPUS = "no exporter reads a GPU of these clusters"
_MODEL = "{{cluster}} {{model}}"


def spread_out(links: Links) -> list[Any]:
    return [
        timeseries(
            "Running: sum and largest batch",
            "Requests in all batches of a model, and in its largest one. While the largest stays at the engine's "
            "max_num_seqs, requests wait however much KV cache is free.",
            "none",
            [
                (f"{totals.MODEL_RUNNING}{{{of.MODEL}}}", f"{_MODEL} sum"),
                (f"{spread.RUNNING_MAX}{{{of.MODEL}}}", f"{_MODEL} largest"),
            ],
            log=True,
            empty=_UNREAD,
        ),
        heat_map(
            "KV block utilisation of all replicas",
            "How many replicas use how much of their KV cache. Full ones beside idle ones: spread the load better before "
            "adding replicas.",
            "percentunit",
            f"sum by (le) ({spread.BUR_BUCKETS}{{{of.MODEL}}})",
            empty=_UNREAD,
            links=[runbook(kv.ALERT, links)],
        ),
        timeseries(
            "Preemptions",
            "Requests per second that engines put back because their KV cache ran out; their work is done twice.",
            "reqps",
            [(f"{totals.MODEL_PREEMPTIONS}{{{of.MODEL}}}", _MODEL)],
            empty=_UNREAD,
            links=[runbook(engine_alerts.STORM, links), runbook(kv.ALERT, links)],
        ),
    ]


def tokens(links: Links) -> list[Any]:
    return [
        timeseries(
            "Tokens by model",
            "Tokens generated, and prompt tokens computed (cached ones too), per second.",
            "none",
            [
                (f"{totals.MODEL_GENERATION_TOKENS}{{{of.MODEL}}}", f"{_MODEL} generated"),
                (f"{totals.MODEL_PROMPT_TOKENS}{{{of.MODEL}}}", f"{_MODEL} prompt"),
            ],
            empty=_UNREAD,
        ),
        timeseries(
            "Tokens by replica",
            "Tokens generated per second: mean and median of each model's replicas, and the one that generates most. "
            "What a replica does at its best is what to plan with.",
            "none",
            [
                (
                    f"{totals.MODEL_GENERATION_TOKENS}{{{of.MODEL}}} / ({KV_REPLICAS}{{{of.MODEL}}} > 0)",
                    f"{_MODEL} mean",
                ),
                (f"{spread.GENERATION_MEDIAN}{{{of.MODEL}}}", f"{_MODEL} median"),
                (f"{spread.GENERATION_MAX}{{{of.MODEL}}}", f"{_MODEL} most"),
            ],
            empty=_UNREAD,
            links=[to_board("fleet", "Fleet board", links)],
        ),
        timeseries(
            "Tokens a replica makes in an hour",
            "Tokens generated per replica and hour, over the hour before: what to compare prices and releases by.",
            "none",
            [
                (
                    f"3600 * sum_over_time({totals.MODEL_GENERATION_TOKENS}{{{of.MODEL}}}[1h:1m]) "
                    f"/ (sum_over_time({KV_REPLICAS}{{{of.MODEL}}}[1h:1m]) > 0)",
                    _MODEL,
                )
            ],
            empty=_UNREAD,
        ),
    ]


def gpus(links: Links) -> list[Any]:
    chosen = f"{{{of.CLUSTER}}}"
    generated = f"sum by (cluster) ({totals.MODEL_GENERATION_TOKENS}{chosen})"
    return [
        timeseries(
            "Tokens a GPU makes in an hour",
            "Tokens generated per GPU that answers and hour, all models of the cluster.",
            "none",
            [(f"3600 * {generated} / ({totals.GPUS}{chosen} > 0)", "{{cluster}} generated")],
            empty=_NO_GPUS,
        ),
        timeseries(
            "GPUs busy",
            "Mean share of time in which a kernel ran on the cluster's GPUs. It says nothing of how many units a kernel used: "
            "near 1 is not full.",
            "percentunit",
            [(f"{totals.GPU_BUSY}{chosen}", "{{cluster}} busy")],
            top=1,
            empty=_NO_GPUS,
        ),
        timeseries(
            "Tokens per joule",
            "Tokens generated for each joule that the cluster's GPUs draw. It rises with larger batches.",
            "none",
            [(f"{generated} / ({totals.GPU_POWER}{chosen} > 0)", "{{cluster}} generated")],
            empty=_NO_GPUS,
        ),
        timeseries(
            "GPUs and power",
            "GPUs that answer, and what all of them draw.",
            "none",
            [
                (f"{totals.GPUS}{chosen}", "{{cluster}} GPUs"),
                (f"0.001 * {totals.GPU_POWER}{chosen}", "{{cluster}} kW"),
            ],
            empty=_NO_GPUS,
            links=[runbook("ExaServeGPULost", links)],
        ),
    ]
