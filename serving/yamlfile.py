"""Reads a YAML file as plain data together with the line of every key.

Only reading: what keys mean is ``serving/config.py``. Safe YAML only; what makes a configuration ambiguous
(duplicate keys, aliases, several documents, keys that are not text) is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

#: A configuration is a few KB; a file beyond this was named by mistake.
MAX_BYTES = 2**20

KeyPath = tuple[str | int, ...]


class YamlError(Exception):
    """The file is not the YAML that we read. ``line`` counts from 1; None where the whole file is meant."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def read(path: Path) -> tuple[Any, dict[KeyPath, int]]:
    """Data of the file (None if it is empty) and the line (from 1) of each key and list item.

    Raises YamlError (with the line where there is one), OSError if the file can't be read.
    """
    with path.open("rb") as f:
        raw = f.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise YamlError(f"larger than {MAX_BYTES} bytes; that is no ExaServe configuration")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise YamlError("not UTF-8 text", raw.count(b"\n", 0, error.start) + 1) from None
    return parse(text)


def parse(text: str) -> tuple[Any, dict[KeyPath, int]]:
    """As ``read``, from text."""
    loader = None
    try:
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            if isinstance(token, yaml.AliasToken):
                raise YamlError("aliases (*name) are not read; write the value out", _line(token.start_mark))
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None, {}
        lines: dict[KeyPath, int] = {}
        _walk(node, (), lines)
        return loader.construct_document(node), lines
    except yaml.MarkedYAMLError as error:
        said = ": ".join(part for part in (error.context, error.problem) if part)
        raise YamlError(f"not YAML: {said}", _line(error.problem_mark or error.context_mark)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlError(f"not YAML: character U+{error.character:04X} is not allowed", line) from None
    except (ValueError, OverflowError) as error:  # e.g. a date that does not exist, a number of 5,000 digits
        raise YamlError(f"a value can't be read: {error}") from None
    except RecursionError:
        raise YamlError("nested too deeply") from None
    finally:
        if loader is not None:
            loader.dispose()


def _walk(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int]) -> None:
    """Note the line of everything below ``node``; refuse duplicate and non-text keys."""
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            lines[(*path, i)] = _line(item.start_mark) or 1
            _walk(item, (*path, i), lines)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            line = _line(key.start_mark) or 1
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                shown = key.value if isinstance(key, yaml.ScalarNode) else "a list or mapping"
                raise YamlError(f"keys are text; {shown} is not (put it in quotes)", line)
            here = (*path, key.value)
            if here in lines:
                name = ".".join(map(str, here))
                raise YamlError(f"{name} is there twice, first in line {lines[here]}; remove one", line)
            lines[here] = line
            _walk(value, here, lines)


def _line(mark: yaml.Mark | None) -> int | None:
    return None if mark is None else mark.line + 1
