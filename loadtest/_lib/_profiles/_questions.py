"""Questions about medicine, law and everything else, in English and Chinese: the article's three intents.

Templates and lists written for this load; thousands of different questions. They are easy ones: a test set for a
classifier is something else (``serving/intent/data``), and none of these is in it. No question is advice.
"""

from __future__ import annotations

import random
from itertools import product

LABELS = ("medical", "legal", "general")
LANGUAGES = ("en", "zh")

# label and language -> lists by name, and templates that use them.
_LISTS: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {
    ("medical", "en"): {
        "sign": (
            "a dull headache", "a sore throat", "pain in the left knee", "a rash on both arms", "shortness of breath",
            "a dry cough", "stomach cramps", "ringing in one ear", "a swollen ankle", "night sweats", "blurred vision",
            "a fever of 39 degrees", "numb fingers", "heartburn after meals",
        ),
        "since": ("two days", "a week", "last month", "this morning", "the flu", "my operation", "the vaccination"),
        "drug": (
            "ibuprofen", "paracetamol", "metformin", "amoxicillin", "a beta blocker", "insulin", "cortisone tablets",
            "a blood thinner", "antihistamines", "levothyroxine",
        ),
        "disease": (
            "diabetes", "asthma", "high blood pressure", "migraine", "anemia", "gout", "pneumonia", "a hernia",
            "shingles", "kidney stones", "arthritis", "eczema",
        ),
        "who": ("my mother", "my son, who is four,", "a woman of seventy", "my husband", "a pregnant friend"),
    },
    ("medical", "zh"): {
        "sign": (
            "头痛", "喉咙痛", "左膝盖疼", "胳膊上起疹子", "胸闷气短", "干咳", "胃痉挛", "耳鸣", "脚踝肿胀", "夜里盗汗",
            "视力模糊", "发烧三十九度", "手指发麻", "饭后烧心",
        ),
        "since": ("两天", "一个星期", "一个月", "十来天", "大半年"),
        "drug": ("布洛芬", "对乙酰氨基酚", "二甲双胍", "阿莫西林", "降压药", "胰岛素", "激素药片", "抗凝药", "抗过敏药"),
        "disease": ("糖尿病", "哮喘", "高血压", "偏头痛", "贫血", "痛风", "肺炎", "疝气", "带状疱疹", "肾结石", "关节炎", "湿疹"),
        "who": ("我母亲", "四岁的孩子", "七十岁的老人", "我爱人", "怀孕的朋友"),
    },
    ("legal", "en"): {
        "matter": (
            "the rental deposit", "a parking fine", "overtime pay", "a broken fence", "the inheritance", "an unpaid invoice",
            "child support", "a faulty used car", "a noise complaint", "the non-compete clause", "a trademark",
            "water damage in the flat",
        ),
        "party": (
            "my landlord", "my employer", "the insurance company", "my neighbor", "the seller", "my former husband",
            "the building company", "a debt collector", "the tax office", "my business partner",
        ),
        "act": ("sue", "give notice to", "demand compensation from", "file a complaint against", "sign a settlement with"),
        "paper": ("a will", "an employment contract", "a lease", "a power of attorney", "a divorce petition", "a patent claim"),
        "term": ("two weeks", "thirty days", "six months", "three years"),
    },
    ("legal", "zh"): {
        "matter": (
            "租房押金", "违章停车罚款", "加班费", "围墙损坏", "遗产继承", "拖欠的货款", "子女抚养费", "有毛病的二手车", "噪音扰民",
            "竞业限制条款", "商标", "房屋漏水",
        ),
        "party": ("房东", "公司", "保险公司", "邻居", "卖家", "前夫", "施工单位", "催债公司", "税务局", "合伙人"),
        "act": ("起诉", "发律师函给", "要求赔偿损失的对象是", "申请仲裁告"),
        "paper": ("遗嘱", "劳动合同", "租赁合同", "授权委托书", "离婚起诉书", "专利权利要求书"),
        "term": ("两个星期", "三十天", "六个月", "三年"),
    },
    ("general", "en"): {
        "topic": (
            "volcanoes", "jazz music", "the Roman roads", "bread baking", "solar panels", "the tides", "chess openings",
            "migrating birds", "suspension bridges", "black holes", "tea ceremonies", "railway signals", "glass making",
            "crossword puzzles",
        ),
        "place": ("Lisbon", "Kyoto", "Iceland", "the Black Forest", "Patagonia", "Vancouver", "the Scottish islands"),
        "dish": ("a potato soup", "an apple cake", "fried rice", "a lentil salad", "pancakes", "a mushroom risotto"),
        "task": (
            "sorting photos", "planning a garden", "learning to swim", "packing for a long hike", "naming a cat",
            "choosing a bicycle", "repairing a chair", "writing a birthday speech",
        ),
        "reader": ("a child of eight", "a beginner", "a class of students", "my grandfather", "a busy reader"),
    },
    ("general", "zh"): {
        "topic": (
            "火山", "爵士音乐", "古代的驿道", "烤面包", "太阳能板", "潮汐", "象棋开局", "候鸟迁徙", "悬索桥", "黑洞", "茶道", "铁路信号",
            "玻璃制作", "填字游戏",
        ),
        "place": ("成都", "京都", "冰岛", "黑森林", "云南", "青岛", "敦煌"),
        "dish": ("土豆汤", "苹果蛋糕", "蛋炒饭", "凉拌黄瓜", "煎饼", "蘑菇烩饭"),
        "task": ("整理照片", "规划花园", "学游泳", "准备长途徒步", "给猫取名字", "挑选自行车", "修椅子", "写生日祝词"),
        "reader": ("八岁的孩子", "初学者", "一班学生", "爷爷", "没有时间的读者"),
    },
}  # fmt: skip
_TEMPLATES: dict[tuple[str, str], tuple[str, ...]] = {
    ("medical", "en"): (
        "I have had {sign} since {since}. Should I see a doctor?",
        "Can I take {drug} if I have {disease}?",
        "What are the first symptoms of {disease}, and how is it treated?",
        "Does {drug} cause {sign}?",
        "{who} has {sign}, which began after {since}. Which tests would a doctor order?",
        "What is the usual daily dose of {drug} for {disease}?",
    ),
    ("medical", "zh"): (
        "我{sign}已经{since}了，需要去医院看医生吗？",
        "有{disease}的病人可以吃{drug}吗？",
        "{disease}早期有什么症状，怎么治疗？",
        "吃了{drug}以后{sign}，是副作用吗？",
        "{who}{sign}，持续了{since}，应该做哪些检查？",
        "治疗{disease}的时候，{drug}一天的剂量是多少？",
    ),
    ("legal", "en"): (
        "Can I {act} {party} over {matter}?",
        "Under the law, who has to pay for {matter}, me or {party}?",
        "{party} gave me a deadline of {term} for {matter}. Is that legal?",
        "Which clauses belong in {paper}, and does it need a notary?",
        "How do I contest {paper} in court within {term}?",
        "What evidence does a court want in a dispute with {party} about {matter}?",
    ),
    ("legal", "zh"): (
        "因为{matter}的纠纷，我可以{act}{party}吗？",
        "按照法律，{matter}应该由我还是{party}承担责任？",
        "{party}要求我在{term}内解决{matter}，这合法吗？",
        "{paper}应该写明哪些条款，需要公证吗？",
        "怎样在{term}内向法院对{paper}提出异议？",
        "和{party}打{matter}的官司，法院需要什么证据？",
    ),
    ("general", "en"): (
        "Explain {topic} to {reader}.",
        "What should I see in {place} in three days if I like {topic}?",
        "Give me a simple recipe for {dish} for four people.",
        "Write a short poem about {topic} and {place}.",
        "What do I need to know before {task}? I am {reader}.",
        "Suggest five books about {topic} for {reader}.",
    ),
    ("general", "zh"): (
        "请给{reader}讲讲{topic}。",
        "我喜欢{topic}，在{place}玩三天应该去哪里？",
        "请写一个四人份{dish}的简单做法。",
        "请写一首关于{topic}和{place}的短诗。",
        "{task}之前要知道些什么？我是{reader}。",
        "请给{reader}推荐五本关于{topic}的书。",
    ),
}


def question(draw: random.Random, label: str, language: str) -> str:
    """One question. Raises KeyError for a label or language that is none of LABELS, LANGUAGES."""
    template = draw.choice(_TEMPLATES[label, language])
    lists = _LISTS[label, language]
    return _sentence(template.format(**{name: draw.choice(values) for name, values in lists.items()}))


def every(label: str, language: str) -> list[str]:
    """All questions of a label and language, each once, in a fixed order."""
    lists = _LISTS[label, language]
    found: dict[str, None] = {}
    for template in _TEMPLATES[label, language]:
        names = [name for name in lists if f"{{{name}}}" in template]
        for values in product(*(lists[name] for name in names)):
            found[_sentence(template.format(**dict(zip(names, values, strict=True))))] = None
    return list(found)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
