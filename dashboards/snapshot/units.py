"""Numbers with units, by the names that Grafana gives them.

A unit is a ladder of (smallest absolute value, divisor, suffix). The page's script gets the same ladders, so that
what the pointer shows is written like what is printed. A unit that is not known here is written as a suffix.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

_DECIMAL = ((1.0, ""), (1e3, " k"), (1e6, " M"), (1e9, " G"), (1e12, " T"), (1e15, " P"))
_BINARY = (
    (1.0, " "),
    (2.0**10, " Ki"),
    (2.0**20, " Mi"),
    (2.0**30, " Gi"),
    (2.0**40, " Ti"),
    (2.0**50, " Pi"),
)
_SMALL = ((0.0, 1e-9, "n"), (1e-6, 1e-6, "µ"), (1e-3, 1e-3, "m"))


@dataclass(frozen=True)
class Unit:
    """``ladder``: rungs from the smallest; the first one also holds for 0. ``base``: what round numbers are of.

    ``moment``: the value is a time, milliseconds since 1970, which is written in UTC.
    """

    ladder: tuple[tuple[float, float, str], ...]
    prefix: str = ""
    base: int = 10
    moment: bool = False


def _plain(suffix: str, divisor: float = 1.0) -> Unit:
    return Unit(((0.0, divisor, suffix),))


def _scaled(steps: tuple[tuple[float, str], ...], suffix: str, base: int = 10) -> Unit:
    rungs = [
        (size, size, f"{sign}{suffix}" if sign.strip() or not suffix else f" {suffix}")
        for size, sign in steps
    ]
    return Unit(((0.0, rungs[0][1], rungs[0][2]), *rungs[1:]), base=base)


def _time(seconds: float) -> Unit:
    """Of a quantity in units of that many seconds."""
    small = tuple((low / seconds, div / seconds, f" {sign}s") for low, div, sign in _SMALL)
    large = ((1, 1, " s"), (120, 60, " min"), (7200, 3600, " h"), (172_800, 86_400, " d"))
    return Unit((*small, *((low / seconds, div / seconds, sign) for low, div, sign in large)), base=60)


def _rate(what: str) -> Unit:
    return _plain(f" {what}")


_UNITS = {
    "none": _plain(""),
    "": _plain(""),
    "short": _scaled(_DECIMAL, ""),
    "string": _plain(""),
    "bool": _plain(""),
    "s": _time(1),
    "dtdurations": _time(1),
    "ms": _time(1e-3),
    "µs": _time(1e-6),
    "percent": _plain(" %"),
    "percentunit": _plain(" %", 0.01),
    "bytes": _scaled(_BINARY, "B", 2),
    "kbytes": Unit(
        tuple((low / 1024, div / 1024, s) for low, div, s in _scaled(_BINARY, "B", 2).ladder), base=2
    ),
    "decbytes": _scaled(_DECIMAL, "B"),
    "binBps": _scaled(_BINARY, "B/s", 2),
    "Bps": _scaled(_DECIMAL, "B/s"),
    "bps": _scaled(_DECIMAL, "b/s"),
    "hertz": _scaled(_DECIMAL, "Hz"),
    "watt": _scaled(_DECIMAL, "W"),
    "joule": _scaled(_DECIMAL, "J"),
    "celsius": _plain(" °C"),
    "rotrpm": _plain(" rpm"),
    "reqps": _rate("req/s"),
    "rps": _rate("reads/s"),
    "wps": _rate("writes/s"),
    "iops": _rate("io/s"),
    "ops": _rate("ops/s"),
    "cps": _rate("/s"),
    "cpm": _rate("/min"),
    "pps": _rate("packets/s"),
    "mps": _rate("messages/s"),
    "reqpm": _rate("req/min"),
    "opm": _rate("ops/min"),
    "dateTimeAsIso": Unit(((0.0, 1.0, ""),), moment=True),
    "currencyUSD": Unit(((0.0, 1.0, ""),), prefix="$"),
    "currencyEUR": Unit(((0.0, 1.0, ""),), prefix="€"),
    "currencyGBP": Unit(((0.0, 1.0, ""),), prefix="£"),
}


def known(name: str) -> bool:
    """Whether ``unit`` says more of that name than to write it behind the number."""
    return name in _UNITS or name.split(":", 1)[0] in ("suffix", "prefix", "si")


def unit(name: str) -> Unit:
    """The unit of that name; ``suffix:…``, ``prefix:…`` and ``si:…`` are those that boards make up."""
    if name in _UNITS:
        return _UNITS[name]
    kind, _, own = name.partition(":")
    if kind == "prefix":
        return Unit(((0.0, 1.0, ""),), prefix=own)
    if kind == "si":
        return _scaled(_DECIMAL, own)
    return _plain(f" {own.strip()}" if kind == "suffix" else f" {name}")


def text(value: float, of: Unit, decimals: int | None = None) -> str:
    """The value with its unit, three digits of it: 0.0042 s is ``4.2 ms``; NaN and infinities as Prometheus has them."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    if of.moment:
        return _moment(value)
    size = abs(value)
    low, divisor, suffix = of.ladder[0]
    if size == 0:
        divisor, suffix = _one(of)
    for low, by, sign in of.ladder:
        # 999.9 ms are not written as 1000 ms.
        if size >= low * (1 - 5e-4):
            divisor, suffix = (by, sign) if size else (divisor, suffix)
    return f"{of.prefix}{number(value / divisor, decimals)}{suffix}"


def number(value: float, decimals: int | None = None) -> str:
    """Three digits, or that many decimals; thousands apart, no zeros at the end."""
    size = abs(value)
    if decimals is None and 0 < size < 1e-3:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    places = (
        decimals if decimals is not None else 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    )
    written = f"{value:,.{places}f}"
    if decimals is None and "." in written:
        written = written.rstrip("0").rstrip(".")
    return "0" if written in ("-0", "") else written


def _moment(milliseconds: float) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "no time"


def _one(of: Unit) -> tuple[float, str]:
    """Divisor and suffix of the rung that 1 of the unit's own stands on: 0 s, not 0 ns."""
    rung = of.ladder[0]
    for candidate in of.ladder:
        if candidate[0] <= 1:
            rung = candidate
    return rung[1], rung[2]
