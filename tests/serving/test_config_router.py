"""The router's part of exaserve.yaml: pools, files, keys that don't go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.config import load
from serving.config_base import size_in_bytes
from serving.config_errors import ConfigError


def errors(folder: Path, text: str) -> list[str]:
    path = folder / "exaserve.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    return [e.replace(f"{folder}/", "") for e in caught.value.errors]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "pools:\n  all: {}\n  long: {match: {min_input_tokens: 9}}\n  rest: {}\n",
            "exaserve.yaml:2: pools.all.match: matches everything, so long, rest would get nothing; put it last",
            id="a pool that hides others",
        ),
        pytest.param(
            "pools:\n  long: {match: {min_input_tokens: 9}}\n",
            "exaserve.yaml:2: pools.long.match: the last pool takes what no other matches: it must be without match",
            id="no pool for the rest",
        ),
        pytest.param(
            "pools:\n  med: {match: {intents: [medical]}}\n  rest: {}\n",
            "exaserve.yaml:2: pools.med.match.intents: needs router.intent.enabled: true",
            id="intents without a classifier",
        ),
        pytest.param(
            "pools:\n  gold: {match: {tenants: [acme]}}\n  rest: {}\n",
            "exaserve.yaml:2: pools.gold.match.tenants: needs tenants.file",
            id="tenants without a file",
        ),
        pytest.param(
            "pools:\n  long: {match: {min_input_tokens: 9, max_input_tokens: 8}}\n  rest: {}\n",
            "exaserve.yaml:2: pools.long.match.min_input_tokens: must be at most max_input_tokens (8)",
            id="an empty range",
        ),
        pytest.param(
            "pools:\n  long: {match: {min_input_tokens: 9}, fallback: short}\n  rest: {}\n",
            "exaserve.yaml:2: pools.long.fallback: no pool short; pools: long, rest",
            id="a fallback that is none",
        ),
        pytest.param(
            "pools:\n  rest:\n    fallback: rest\n",
            "exaserve.yaml:3: pools.rest.fallback: must be another pool",
            id="a fallback to itself",
        ),
        pytest.param(
            "pools:\n  'a b': {}\n",
            "exaserve.yaml:2: pools.a b: has a form that is not allowed here (^[A-Za-z0-9._-]{1,64}$)",
            id="a name that can't be a label",
        ),
        pytest.param(
            "router:\n  tls: {certificate: c.pem}\n",
            "exaserve.yaml:2: router.tls.key: must be given too: a certificate and its key come together",
            id="half a pair",
        ),
        pytest.param(
            "router:\n  tls: {client_ca: c.pem}\n",
            "exaserve.yaml:2: router.tls.client_ca: needs router.tls.certificate and router.tls.key",
            id="client CA without TLS",
        ),
        pytest.param(
            "router:\n  audit: {max_bytes: 64 MB}\n",
            "exaserve.yaml:2: router.audit.max_bytes: has a form that is not allowed here",
            id="a size",
        ),
    ],
)
def test_error_names_place_key_and_cure(tmp_path: Path, text: str, expected: str) -> None:
    assert errors(tmp_path, text)[0].startswith(expected)


def test_paths_are_taken_from_the_files_folder_wherever_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "exaserve.yaml"
    path.write_text("router: {tls: {certificate: c.pem, key: /etc/k.pem}}\ntenants: {file: t.yaml}\n")
    config = load(path)
    assert config.router.tls.certificate == str(tmp_path / "c.pem")
    assert config.router.tls.key == "/etc/k.pem"
    assert config.tenants.file == str(tmp_path / "t.yaml")


def test_pools_keep_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "exaserve.yaml"
    path.write_text(
        "pools:\n  z: {match: {max_input_tokens: 9}}\n  a: {match: {min_output_tokens: 9}}\n  m: {}\n"
    )
    assert list(load(path).pools) == ["z", "a", "m"]


@pytest.mark.parametrize(("text", "expected"), [("1", 1), ("3k", 3072), ("64M", 2**26), ("2G", 2**31)])
def test_sizes_are_powers_of_1024(text: str, expected: int) -> None:
    assert size_in_bytes(text) == expected
