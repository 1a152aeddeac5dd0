"""English for load: common words and the sentences they are put into. Means nothing, reads like prose.

Every word is one token, with the blank before it, in SmolLM2's vocabulary (a test checks it), and in those of
larger models nearly so: a sentence has as many tokens as words and signs.
"""

from __future__ import annotations

PLACES = """
river harbor village bridge market garden valley forest island station museum library school hospital theater factory
tower castle church square street coast mountain desert lake farm kitchen workshop office laboratory
""".split()
PEOPLE = """
teacher farmer doctor engineer painter soldier writer driver captain student nurse lawyer merchant pilot sailor artist
scientist neighbor stranger visitor manager worker child mother father brother sister daughter guard judge
""".split()
THINGS = """
letter map box clock lamp book report machine wheel boat window door stone rope basket table mirror coin picture
engine wire bottle hammer ladder curtain blanket drum bell key knife
""".split()
QUALITIES = """
old small quiet heavy bright narrow broken wooden empty cold strange distant familiar famous simple careful curious
patient early modern ancient gentle hidden green red dark broad fresh rare wild
""".split()
DEEDS = """
carried found repaired opened moved painted measured described sold bought followed lifted covered visited studied
counted remembered watched cleaned delivered collected guarded noticed crossed built reached left kept lost protected
""".split()
TIMES = """
today later soon again finally slowly often always sometimes once
""".split()
SENTENCES = (
    "The {quality} {person} {deed} the {thing} near the {place}.",
    "{Time}, a {person} from the {place} {deed} the {quality} {thing}.",
    "When the {person} {deed} the {thing}, nobody in the {place} noticed it.",
    "There was a {quality} {thing} in the {place}, and the {person} {deed} it {time}.",
    "The {person} said that the {thing} was too {quality} for the {place}.",
    "Between the {place} and the {place2}, the {person} {deed} a {thing} and a {quality} {thing2}.",
    "No {person} in the {place} had ever seen such a {quality} {thing}.",
    "After that the {person} and the {person2} {deed} every {thing} they could find.",
    "It took the {person} three days to reach the {quality} {place}.",
    "Because the {thing} was {quality}, the {person} {deed} it {time} and went back to the {place}.",
    "The {place} was {quality} at that hour, and the {person} {deed} only one {thing}.",
    "What the {person} {deed} in the {place} was not the {thing} but the {quality} {thing2}.",
)
QUESTIONS = (
    "What happened to the {thing} in the {place}?",
    "Who {deed} the {thing}, and why was it so {quality}?",
    "Why did the {person} leave the {place}?",
    "Write a short story about a {person} who {deed} a {quality} {thing}.",
    "Explain in simple words how a {thing} is made and used in a {place}.",
    "Give me a list of things that a {person} should know about a {place}.",
    "How would you describe the {quality} {place} to a {person}?",
    "Compare a {thing} with a {thing2} and say which is better for a {person}.",
)
