"""The second stage's process: reads texts from a socket, answers with label number and confidence.

``python -m serving.intent.worker FD MODEL ENCODER``, started by ``transformer.py``. It ends when the other end
of the socket is closed, so that it never outlives the router. One line on standard error says why it could not
start; its exit status is then 1.

A request is a 4-byte length and that many bytes of UTF-8; an answer is a label number (4 bytes) and the
confidence (4 bytes, float), in the order of the requests. Before the first request it says that it is ready
by an answer with the number of labels and a confidence of 0.
"""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

from serving.intent.transformer import ANSWER, LENGTH


def serve(channel: socket.socket, model: Path, encoder: Path) -> None:
    """Answer until the other end closes. Raises ModelError if the files cannot be used."""
    from serving.intent.encoder import load_encoder
    from serving.intent.ngram import load_ngram

    second = load_encoder(encoder, load_ngram(model))
    channel.sendall(ANSWER.pack(len(second.labels), 0.0))
    with channel.makefile("rb") as requests:
        while len(header := requests.read(LENGTH.size)) == LENGTH.size:
            text = requests.read(LENGTH.unpack(header)[0]).decode("utf-8", "surrogatepass")
            label, confidence = second.classify(text)
            channel.sendall(ANSWER.pack(second.labels.index(label), confidence))


def main() -> int:
    """Run on the socket whose descriptor is the first argument."""
    from serving.intent.ngram import ModelError

    # Ctrl-C reaches the whole terminal's group; the router decides when we end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=int(sys.argv[1]))
    try:
        serve(channel, Path(sys.argv[2]), Path(sys.argv[3]))
    except ModelError as error:
        print(error, file=sys.stderr)
        return 1
    except (BrokenPipeError, ConnectionResetError):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
