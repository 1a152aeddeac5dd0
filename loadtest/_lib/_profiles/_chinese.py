"""Chinese for load: common words and the sentences they are put into. Means nothing, reads like prose.

A character is 2 tokens in SmolLM2's vocabulary, but for those listed here (``cost``).
"""

from __future__ import annotations

PLACES = """
河边 港口 村庄 大桥 市场 花园 山谷 森林 小岛 车站 博物馆 图书馆 学校 医院
剧院 工厂 广场 海岸 沙漠 湖边 农场 厨房 作坊 办公室 实验室
""".split()
PEOPLE = """
老师 农民 医生 工程师 画家 士兵 作家 司机 船长 学生 护士 律师 商人 飞行员
水手 科学家 邻居 客人 经理 工人 孩子 母亲 父亲 哥哥 妹妹
""".split()
THINGS = """
信件 地图 箱子 时钟 灯笼 书本 报告 机器 轮子 小船 窗户 木门 石头 绳子
篮子 桌子 镜子 硬币 照片 电线 瓶子 锤子 梯子 窗帘 钥匙
""".split()
QUALITIES = """
古老 安静 沉重 明亮 狭窄 破旧 奇怪 遥远 熟悉 著名 简单 现代 温和 隐蔽
新鲜 少见 巨大 普通 漂亮 冰冷
""".split()
DEEDS = """
带走 找到 修好 打开 搬动 测量 描述 卖掉 买下 举起 盖住 研究 数清 记住
看守 清洗 送到 收集 发现 保护
""".split()
TIMES = """
昨天 今天 后来 很快 终于 有时候 从前 那天晚上 第二天 天亮以前
""".split()
SENTENCES = (
    "{quality}的{place}里，{person}{deed}了那个{thing}。",
    "{Time}，一位{person}从{place}来，{deed}了{quality}的{thing}。",
    "{person}{deed}{thing}的时候，{place}里没有人注意到。",
    "{place}里有一个{quality}的{thing}，{person}{time}把它{deed}了。",
    "{person}说，这个{thing}对{place}来说太{quality}了。",
    "在{place}和{place2}之间，{person}{deed}了一个{thing}和一个{quality}的{thing2}。",
    "{place}里的{person}从来没有见过这么{quality}的{thing}。",
    "后来{person}和{person2}把能找到的{thing}都{deed}了。",
    "{person}走了三天才到那个{quality}的{place}。",
    "因为{thing}很{quality}，所以{person}{time}{deed}了它，然后回到{place}。",
)
QUESTIONS = (
    "{place}里的{thing}后来怎么样了？",
    "是谁{deed}了{thing}，它为什么这么{quality}？",
    "{person}为什么离开了{place}？",
    "请写一个短故事，讲一位{person}怎样{deed}{quality}的{thing}。",
    "请用简单的话说明{thing}是怎么做的，在{place}里怎么用。",
    "请列出{person}应该知道的关于{place}的事情。",
    "你会怎样向一位{person}描述那个{quality}的{place}？",
    "请比较{thing}和{thing2}，哪一个更适合{person}？",
)

_ONE = frozenset("。一上下个为了人以件作信出列到前名后和回图在大子对户所数新时是有本理生用的能行这量间，")
_THREE = frozenset(
    "做哥哪商器士妹岛岸悉情意搬晚普桌桥梯森民水沉沙没河洗清温港湖漂漠灯然照熟父狭瓶看短石硬离程究窄窗篮船花著蔽谁谷走起那邻钟钥锤镜长隐飞馆验鲜"
)


def cost(character: str) -> int:
    """Tokens of one character of the lists above, alone, in SmolLM2's vocabulary."""
    return 1 if character in _ONE else 3 if character in _THREE else 2
