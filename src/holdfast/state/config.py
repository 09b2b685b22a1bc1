"""The config of a run: plain data, stored exactly in the documents and readably as YAML."""

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Any

import yaml

from ..errors import UnknownState
from ..spec import encoding
from ..spec.encoding import Unstorable


def plain(config: Any) -> dict[str, Any]:
    """Turn a config into a dict of plain data. Raises: UnknownState."""
    if config is None:
        return {}
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        config = dataclasses.asdict(config)
    elif not isinstance(config, Mapping) and hasattr(config, "__dict__"):
        config = vars(config)
    try:
        packed = encoding.pack(dict(config))
    except (Unstorable, TypeError, ValueError) as error:
        value = error.value if isinstance(error, Unstorable) else config
        path = f"config.{error.path}" if isinstance(error, Unstorable) else "config"
        raise UnknownState(path, type(value).__name__, "give plain data: numbers, text, lists, dicts") from error
    result = encoding.unpack(packed)
    assert isinstance(result, dict)
    return result


def to_yaml(config: dict[str, Any]) -> bytes:
    """Write the config for people, tuples and sets as lists; the exact one travels in the documents."""

    def readable(value: Any) -> Any:
        if isinstance(value, dict):
            return {key if isinstance(key, str | int) else str(key): readable(item) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset | deque | range):
            return [readable(item) for item in value]
        return value if isinstance(value, bool | int | float | str | None) else str(value)

    return yaml.safe_dump(readable(config), sort_keys=False, allow_unicode=True).encode() if config else b""
