"""What the clients of a benchmark ask: everyday questions of three domains, in English and Chinese.

A router that looks at prompts (intent, prefixes) works on them as on real ones; word salad would send every
request to the slow path of a classifier. Made up for this; not for training or judging one.
"""

from __future__ import annotations

import random

QUESTIONS = {
    "medical": (
        "I've had a dull headache behind my left eye for three days, should I see a doctor or wait it out?",
        "Can I take ibuprofen together with the blood pressure tablets I was prescribed last month?",
        "My daughter has a temperature of 39.2 and won't drink anything. What should I do tonight?",
        "What does a slightly raised ALT value in a blood test usually mean?",
        "How long after a knee arthroscopy may I start to run again?",
        "My grandmother keeps forgetting her insulin in the evening. Is it dangerous to skip a dose?",
        "最近总是半夜醒来，心跳很快，需要去医院检查吗？",
        "孩子咳嗽两个星期了，没有发烧，还能去幼儿园吗？",
    ),
    "legal": (
        "My landlord wants to keep the whole deposit because of small scratches in the floor. Is that allowed?",
        "Can my employer change my working hours without my agreement if the contract says nothing about it?",
        "I signed a contract at my front door yesterday. How many days do I have to withdraw from it?",
        "What happens to the house if my father dies without a will and has three children?",
        "A neighbour's tree fell on my car in the storm. Who has to pay for the damage?",
        "Do I have to name a reason when I refuse consent to the processing of my data?",
        "公司没有给我缴纳社保，我可以要求赔偿吗？",
        "朋友借钱不还，只有聊天记录，能起诉吗？",
    ),
    "general": (
        "Write a short birthday message for a colleague who likes gardening and bad puns.",
        "Why does my sourdough bread stay flat although the starter doubles in four hours?",
        "Explain the difference between a list and a tuple in Python to a beginner.",
        "We have three days in Lisbon with two small children, what should we see and what should we skip?",
        "Summarise the plot of a story in which a lighthouse keeper finds a message from the future.",
        "Which bicycle tyre width is best for a mix of city streets and gravel paths?",
        "帮我写一封邮件，告诉老师明天上午不能参加会议。",
        "用简单的话解释一下为什么天空是蓝色的。",
    ),
}


def prompt(chosen: random.Random, size: int) -> str:
    """A question and more of its domain behind it, about ``size`` bytes as UTF-8."""
    questions = QUESTIONS[chosen.choice(list(QUESTIONS))]
    text = chosen.choice(questions)
    while len(text.encode()) < size:
        text += " " + chosen.choice(questions)
    return text.encode()[:size].decode(errors="ignore")
