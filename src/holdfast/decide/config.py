"""What changed between the config a checkpoint was trained with and the one given now."""

from collections.abc import Iterable, Mapping
from typing import Any

_ABSENT = object()


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """List the keys that differ as (dotted key, old, new), in order."""
    before, after = _flat(old), _flat(new)
    changed = [key for key in sorted({*before, *after}) if _differ(before.get(key, _ABSENT), after.get(key, _ABSENT))]
    return [(key, _show(before.get(key, _ABSENT)), _show(after.get(key, _ABSENT))) for key in changed]


def is_allowed(key: str, allow: Iterable[str]) -> bool:
    """Tell whether a change of this key was allowed, by its own name or by that of a group it belongs to."""
    return any(key == name or key.startswith(f"{name}.") for name in allow)


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{path}.")
        else:
            flat[path] = value
    return flat


def _differ(old: Any, new: Any) -> bool:
    return type(old) is not type(new) or repr(old) != repr(new)


def _show(value: Any) -> str:
    return "absent" if value is _ABSENT else repr(value)
