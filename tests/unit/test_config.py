"""A config is plain data however it is given, and readable as YAML."""

from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from holdfast.errors import UnknownState
from holdfast.state import config


@dataclass
class Model:
    """A nested config."""

    width: int = 3
    betas: tuple[float, float] = (0.9, 0.99)


@dataclass
class Training:
    """A config as people write them."""

    lr: float = 0.1
    model: Model = field(default_factory=Model)


@pytest.mark.parametrize("given", [Training(), Namespace(lr=0.1, model={"width": 3, "betas": (0.9, 0.99)})])
def test_dataclasses_and_namespaces_become_dicts(given: Any) -> None:
    """Types survive: a tuple stays one."""
    assert config.plain(given) == {"lr": 0.1, "model": {"width": 3, "betas": (0.9, 0.99)}}


def test_no_config_is_an_empty_one() -> None:
    """Nothing is stored and nothing is compared."""
    assert config.plain(None) == {}
    assert config.to_yaml({}) == b""


def test_yaml_is_for_people() -> None:
    """Tuples and sets are lists, paths are text; it reads back with any YAML reader."""
    text = config.to_yaml(config.plain(Training()))
    assert yaml.safe_load(text) == {"lr": 0.1, "model": {"width": 3, "betas": [0.9, 0.99]}}


def test_what_is_no_plain_data_is_named() -> None:
    """The error says where it stands and what to give instead."""
    with pytest.raises(UnknownState, match=r"config\.model\.act.*function.*plain data"):
        config.plain({"model": {"act": lambda x: x}})
    with pytest.raises(UnknownState, match="config"):
        config.plain(3)
