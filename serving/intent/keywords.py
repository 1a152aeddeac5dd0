"""The baseline: lists of words, the first list with most hits wins, general where nothing hits.

What many routers do. It is kept beside the classifier so that ``exaserve intent eval`` shows what is won.
"""

from __future__ import annotations

from serving.intent.ngram import tokens

_ENGLISH = {
    "medical": "doctor medicine medical hospital symptom symptoms disease illness pain fever headache cough cold"
    " flu infection virus cancer diabetes blood pressure heart patient treatment treat drug drugs pill pills dose"
    " tablet surgery operation nurse diagnosis diagnose therapy vaccine allergy pregnant pregnancy injury sick"
    " health clinic prescription antibiotics tumor stroke anxiety depression insulin asthma rash nausea dentist",
    "legal": "law legal lawyer attorney court judge sue lawsuit contract crime criminal police arrest illegal rights"
    " divorce custody will inheritance tenant landlord eviction copyright patent trademark liability"
    " compensation visa immigration jury trial prison fine penalty evidence witness license agreement clause"
    " regulation statute bail felony fraud theft defendant plaintiff testimony bankruptcy debt",
}
_CHINESE = {
    "medical": "医生 医院 药 症状 疼 痛 发烧 咳嗽 感冒 病 治疗 手术 血压 糖尿病 癌 怀孕 疫苗 过敏 头晕 检查 护士 诊断 心脏"
    " 血糖 感染 炎 恶心 失眠 抑郁",
    "legal": "法律 律师 法院 起诉 合同 犯法 违法 警察 离婚 抚养权 遗产 遗嘱 房东 赔偿 版权 专利 商标 判决 仲裁 签证 移民"
    " 犯罪 罚款 证据 诉讼 权利 条款 欠款 侵权 诈骗",
}
_WORDS = {word: label for label, words in _ENGLISH.items() for word in words.split()}
_PIECES = [(piece, label) for label, pieces in _CHINESE.items() for piece in pieces.split()]


def classify(text: str) -> str:
    """``medical``, ``legal`` or ``general``."""
    hits = {"medical": 0, "legal": 0}
    for word in tokens(text):
        if word in _WORDS:
            hits[_WORDS[word]] += 1
    for piece, label in _PIECES:
        hits[label] += piece in text
    best = max(hits, key=hits.__getitem__)
    return best if hits[best] else "general"
