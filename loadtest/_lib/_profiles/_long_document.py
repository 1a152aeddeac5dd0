"""A document and a question about it: mostly prefill, the answer is short. No two documents begin alike."""

from __future__ import annotations

import random
from dataclasses import replace

from loadtest._lib._ask import Ask, Session
from loadtest._lib._profiles import _text
from loadtest._lib._profiles._lengths import LogNormal, Uniform
from loadtest._lib._profiles._settings import now

ABOUT = "a document and a question about it, streamed (--document-tokens)"
ASKS = 1.0
#: Reports and papers of 5 to 15 pages at some 700 tokens a page.
DOCUMENT = LogNormal(6000, 0.35, 2000, 12000)
ANSWER = Uniform(64, 256)
SIZES = (("document", DOCUMENT), ("answer", ANSWER))
_ORDERS = {
    "en": "Summarize the text above in a few sentences. Then answer: {question}",
    "zh": "请用几句话总结上面的文字，然后回答：{question}",
}


def session(draw: random.Random, unique: str) -> Session:
    settings = now()
    language = settings.language(draw)
    answer = settings.answers(ANSWER).draw(draw)
    order = _ORDERS[language].format(question=_text.question(draw, language))
    cost = _text.estimate(order, language) * settings.ratio.get(language, 1.0)
    tokens = documents(settings.document).within(max(1, settings.room(answer) - int(cost))).draw(draw)
    content = f"{unique}: {settings.text(draw, tokens, language)}\n\n{order}"
    yield Ask(
        "long_document",
        {"messages": settings.messages(content), "max_tokens": answer, "temperature": 0},
    )


def documents(median: int) -> LogNormal:
    """Lengths of documents around another median, of the same shape."""
    return replace(DOCUMENT, median=float(median), low=max(1, median // 3), high=median * 2)
