"""Options of what is asked: the model's context, a shared prefix, conversations, languages, the mix.

Registers itself in ``_hooks``. Not here: options of the run (``_options``) and of arrivals (``_arrival_options``), what
profiles make of them (``_profiles/_settings``). Values stay text where locust's web page sends them back as text;
``read`` checks them all.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from loadtest._lib import _hooks, _options, _tokenize
from loadtest._lib._profiles import _mixed, _settings
from loadtest._lib._profiles._settings import Settings
from loadtest._lib._run import Run

_MOST = 10_000_000


def add(parser: Any) -> None:
    """Put the options in. parser: locust's, as the event ``init_command_line_parser`` gives it."""
    own = Settings()
    mix = ",".join(f"{name}={share * 100:g}" for name, share in own.mix.items())
    group = parser.add_argument_group("ExaServe profiles", "Lengths of each: exaserve loadtest profiles")
    option = group.add_argument
    option(
        "--context",
        type=_text(_context),
        default="",
        metavar="TOKENS",
        help="prompt and answer together have at most so many; longer profiles are scaled down (default: max_model_len "
        f"of /v1/models, {_settings.CONTEXT} where the server does not say)",
    )
    option(
        "--shared-prefix",
        type=_text(_number("--shared-prefix", 0)),
        default="0",
        metavar="TOKENS",
        help="every prompt of chat, multi_turn, long_document, code, completion, batch and intents begins with the same "
        "so many tokens, for prefix caches to find (default: 0, no two prompts begin alike)",
    )
    option(
        "--turns",
        type=_text(turns),
        default=f"{own.turns[0]}-{own.turns[1]}",
        metavar="N|LOW-HIGH",
        help="requests of a multi_turn conversation, where they fit into the context (default: 3-8)",
    )
    option(
        "--think",
        type=_text(_seconds),
        default=f"{own.think:g}",
        metavar="SECONDS",
        help="mean time from an answer to the next turn of multi_turn, exponential; in a closed loop (default: 2)",
    )
    option(
        "--chinese",
        type=_text(_share),
        default="0",
        metavar="SHARE",
        help="share (0 to 1) of the sessions of chat, multi_turn, long_document and embedding that are Chinese (default: "
        "0); intents are half and half anyway",
    )
    option(
        "--document-tokens",
        type=_text(_number("--document-tokens", 16)),
        default=str(own.document),
        metavar="TOKENS",
        help=f"median length of long_document's documents (default: {own.document}; a third to twice as much occur)",
    )
    option(
        "--mix",
        type=_text(mix_of),
        default=mix,
        metavar="PROFILE=PARTS,…",
        help=f"what mixed is made of, by parts of its requests (default: {mix}); profiles: {', '.join(_mixed.PARTS)}",
    )
    option(
        "--tokenize",
        action="store_true",
        default=False,
        help="ask the server's /tokenize at the start how many tokens its model makes of the texts, and draw lengths by "
        "that (default: as SmolLM2's tokenizer counts; others differ little in English, much in Chinese)",
    )


def problem(options: Any) -> str | None:
    """What is wrong with the options, in one line, or None."""
    try:
        settings = read(options)
        check(settings if options.context else replace(settings, context=_MOST))
    except ValueError as error:
        return str(error)
    return None


def read(options: Any) -> Settings:
    """The options as settings, for a context not known yet. Raises ValueError that names option and cure."""
    return Settings(
        context=_context(options.context) or _settings.CONTEXT,
        answer=_options.tokens(str(options.max_tokens or "")),
        shared_tokens=_number("--shared-prefix", 0)(options.shared_prefix),
        turns=turns(options.turns),
        think=_seconds(options.think),
        chinese=_share(options.chinese),
        document=_number("--document-tokens", 16)(options.document_tokens),
        mix=mix_of(options.mix),
    )


def begin(environment: Any, run: Run) -> None:
    """Set what holds for the profiles of this process in this run.

    The process that holds the run finds it out and notes it (``lengths`` in run.json); workers take its note, so that
    all draw by the same. Raises ValueError that names option and cure.
    """
    options = environment.parsed_options
    settings = read(options)
    note = run.notes.get("lengths")
    if note is None:
        note = run.notes["lengths"] = _found(options, run)
        logging.info(
            "load test: lengths for a context of %s tokens (%s)", note["context"], note["context_from"]
        )
    settings = replace(settings, context=int(note["context"]), ratio=dict(note["tokens_per_estimate"]))
    check(settings)
    shared = _settings.shared_prefix(run.seed, settings.shared_tokens, settings.ratio)
    _settings.use(replace(settings, shared=shared))


def check(settings: Settings) -> None:
    """Raises ValueError, naming option and cure, for settings that leave no room for prompts."""
    context = settings.context
    if context < _settings.LEAST_CONTEXT:
        raise ValueError(
            f"--context: a context of {context} tokens has no room for these profiles; the least is "
            f"{_settings.LEAST_CONTEXT}"
        )
    if settings.answer is not None and settings.answer[1] > context // 2:
        raise ValueError(
            f"--max-tokens: {settings.answer[1]} of the {context} tokens of the context leave too few for prompts; the "
            f"most is {context // 2}"
        )
    most = context // 4
    if settings.shared_tokens > most:
        raise ValueError(
            f"--shared-prefix: {settings.shared_tokens} of the {context} tokens of the context leave too few for prompts "
            f"and answers; the most is {most}"
        )


def mix_of(text: str) -> dict[str, float]:
    """``chat=60,long_document=10`` -> shares that add up to 1. Raises ValueError."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, equals, parts = part.strip().partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in _mixed.PARTS:
            known = ", ".join(_mixed.PARTS)
            raise ValueError(f"--mix: {part.strip()!r} is no PROFILE=PARTS with a profile of {known}")
        if name in found:
            raise ValueError(f"--mix: {name} is there twice; give each profile once")
        found[name] = _real(parts, 0, _MOST, f"--mix: the parts of {name} must be a number from 0 up")
    whole = sum(found.values())
    if whole <= 0:
        raise ValueError("--mix: all parts are 0; give at least one profile some, like chat=60,code=40")
    return {name: parts / whole for name, parts in found.items() if parts}


def turns(text: str) -> tuple[int, int]:
    """Both ends. Raises ValueError."""
    low, _, high = text.partition("-")
    if low.isdecimal() and (high or low).isdecimal() and 1 <= int(low) <= int(high or low) <= 1000:
        return int(low), int(high or low)
    raise ValueError(f"--turns: {text!r} is neither a number of turns nor a range like 3-8, from 1 to 1000")


def _found(options: Any, run: Run) -> dict[str, Any]:
    given = _context(options.context)
    ratios: dict[str, float] = {}
    if options.tokenize:
        try:
            key = _options.api_key(options)
            ratios = _settings.ratios(lambda text: _tokenize.count(run.host, run.model, text, key))
        except (LookupError, ValueError) as error:
            raise ValueError(f"--tokenize: {error}; without it, tokens are estimated") from None
        words = ", ".join(f"{kind} {value:.2f}" for kind, value in ratios.items())
        logging.info("load test: tokens of %s per token estimated: %s", run.model, words)
    return {
        "context": given or run.max_model_len or _settings.CONTEXT,
        "context_from": "--context"
        if given
        else "/v1/models"
        if run.max_model_len
        else "assumed; see --context",
        "tokens_per_estimate": ratios,
    }


def _context(text: str) -> int:
    """Tokens; 0 for empty text."""
    return _number("--context", _settings.LEAST_CONTEXT)(text) if text else 0


def _number(option: str, least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not (text.isdecimal() and least <= int(text) <= _MOST):
            raise ValueError(f"{option}: {text!r} is not a number of tokens from {least} up")
        return int(text)

    return number


def _seconds(text: str) -> float:
    return _real(text, 0, 3600, f"--think: {text!r} is not a number of seconds from 0 to 3600")


def _share(text: str) -> float:
    return _real(text, 0, 1, f"--chinese: {text!r} is not a share from 0 to 1")


def _real(text: str, low: float, high: float, message: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not low <= value <= high:
        raise ValueError(message)
    return value


def _text(check: Callable[[str], Any]) -> Callable[[str], str]:
    """For argparse: checked, but left as text."""

    def checked(text: str) -> str:
        try:
            check(text)
        except ValueError as error:
            # argparse names the option itself
            raise argparse.ArgumentTypeError(str(error).partition(": ")[2] or str(error)) from None
        return text

    return checked


_hooks.on_options.append(add)
_hooks.on_check.append(problem)
_hooks.on_begin.append(begin)
