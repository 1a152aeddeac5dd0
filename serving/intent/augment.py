"""Makes more of each training text: typing mistakes, words left out, punctuation and case as people type.

Labels do not change by any of it. The same seed gives the same texts.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

_ADDED = {
    "en": (
        *("hi, ", "hey ", "quick question: ", "please help. ", "so ", "um ", "sorry if this is silly but "),
        *("could you tell me ", "i was wondering, ", "serious question, ", "ok so "),
    ),
    "zh": ("请问", "你好，", "问一下，", "求助：", "那个，", "麻烦问下", "各位，", "想咨询一下，", "急！"),
}
_ENDS = {
    "en": ("?", "??", " please", " thanks", "...", "!", " any ideas?", " help", ".", " what should i do"),
    "zh": ("？", "！", "，谢谢", "啊", "呢", "。", "，怎么办", "，求解答", "吗？", "，急"),
}


def variants(text: str, lang: str, count: int, chance: random.Random) -> list[str]:
    """``count`` versions of the text, each with one to three changes."""
    made = []
    for _ in range(count):
        version = text
        for _ in range(chance.choice((1, 1, 2, 3))):
            version = _change(version, "zh" if lang == "zh" else "en", chance)
        made.append(version)
    return made


def _change(text: str, lang: str, chance: random.Random) -> str:
    kind = chance.random()
    if kind < 0.2:
        return chance.choice(_ADDED[lang]) + text
    if kind < 0.4:
        return text.rstrip("?？.。!！ ") + chance.choice(_ENDS[lang])
    if kind < 0.5:
        return "".join(" " if c in ",.?!;:，。？！；：" else c for c in text)
    if kind < 0.75:
        return _without(text, lang, chance)
    return _typo(text, lang, chance)


def _without(text: str, lang: str, chance: random.Random) -> str:
    """A word less (a Chinese text: a character), where enough are left."""
    units: Sequence[str] = text if lang == "zh" else text.split(" ")
    if len(units) < 5:
        return text
    gone = chance.randrange(len(units))
    return ("" if lang == "zh" else " ").join(u for i, u in enumerate(units) if i != gone)


def _typo(text: str, lang: str, chance: random.Random) -> str:
    """Two letters swapped, one missing or doubled, in one of the longer words."""
    if lang == "zh" or len(text) < 8:
        return text
    spots = [i for i in range(1, len(text) - 2) if text[i].isalpha() and text[i + 1].isalpha()]
    if not spots:
        return text
    i = chance.choice(spots)
    kind = chance.random()
    if kind < 0.4:
        return text[:i] + text[i + 1] + text[i] + text[i + 2 :]
    if kind < 0.8:
        return text[:i] + text[i + 1 :]
    return text[:i] + text[i] + text[i:]
