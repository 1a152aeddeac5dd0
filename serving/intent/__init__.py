"""What a question is about, told in microseconds from its text: the router's intent classifier.

``load("default")`` gives a ``Classifier``: ``fast`` is the first stage (n-grams, in the event loop), ``second``
the transformer for texts the first is unsure of (another process, with a time limit) or None. The command
line is in ``cli.py``; which pool an intent goes to is the router's.
"""

from serving.intent.classifier import Classifier, load
from serving.intent.ngram import ModelError

__all__ = ["Classifier", "ModelError", "load"]
