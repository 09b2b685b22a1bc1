"""Which names objects may have, the same for every store."""

from ..errors import UsageError


def well_formed(name: str) -> bool:
    """Tell whether a name is relative, and made of non-empty components without `.`, `..` and NUL."""
    return "\0" not in name and not any(component in {"", ".", ".."} for component in name.split("/"))


def checked(name: str) -> str:
    """Hand a name back if an object may have it. Raises: UsageError."""
    if not well_formed(name):
        raise UsageError(
            f"{name!r} cannot be the name of an object: use a relative path, components separated by single slashes, "
            "none of them `.` or `..`, without NUL"
        )
    return name
