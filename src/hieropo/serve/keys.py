"""Keys of clients: kept as hashes, compared in constant time, each with a role."""

import hashlib
import hmac
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from hieropo.errors import ArtifactError, InputError

Role = Literal["reader", "writer", "admin"]

_FILE = "keys.json"
_ALLOWS = {"reader": ("reader",), "writer": ("writer",), "admin": ("reader", "writer", "admin")}


@dataclass(frozen=True, slots=True)
class Keyring:
    """The keys of a state.

    Parameters
    ----------
    keys : tuple of (name, role, salt, digest)
    """

    keys: tuple[tuple[str, Role, str, str], ...] = ()

    @classmethod
    def load(cls, state: Path) -> "Keyring":
        """Return the keys of a state; none where no key was made.

        Raises
        ------
        ArtifactError
            The file is damaged.
        """
        path = state / _FILE
        try:
            entries = json.loads(path.read_text())
            keys = tuple((str(e["name"]), e["role"], str(e["salt"]), str(e["sha256"])) for e in entries)
        except FileNotFoundError:
            return cls()
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactError(
                f"{path} cannot be read ({type(error).__name__}), so that no client could be told from another. "
                "Restore it from a backup, or remove it and make keys again with --add-key."
            ) from error
        if any(role not in get_args(Role) for _, role, _, _ in keys):
            raise ArtifactError(
                f"{path} names a role that does not exist. Roles are {', '.join(get_args(Role))}. Make keys again."
            )
        return cls(keys)

    def __len__(self) -> int:
        return len(self.keys)

    def allows(self, token: str, role: Role) -> bool | None:
        """Return True where a token may do what a role may; False where it is known and may not; None if unknown.

        Every key is compared, whatever the result, so that the time does not depend on which one matches.
        """
        result: bool | None = None
        raw = token.encode("utf-8", "replace")
        for _, held, salt, digest in self.keys:
            same = hmac.compare_digest(hashlib.sha256(salt.encode() + raw).hexdigest(), digest)
            if same:
                result = role in _ALLOWS[held]
        return result


def add_key(state: Path, name: str, role: Role) -> str:
    """Make a key, keep its hash, and return the key, which is shown once.

    Raises
    ------
    InputError
        A key of that name exists.
    """
    ring = Keyring.load(state)
    if any(name == held for held, *_ in ring.keys):
        raise InputError(
            f"There is a key {name!r} already, and its text is not kept. Remove its entry from {state / _FILE} to "
            "revoke it, or give another name."
        )
    token, salt = f"hpo_{secrets.token_urlsafe(32)}", secrets.token_hex(16)
    digest = hashlib.sha256(salt.encode() + token.encode()).hexdigest()
    keys = (*ring.keys, (name, role, salt, digest))
    entries = [{"name": n, "role": r, "salt": s, "sha256": d} for n, r, s, d in keys]
    partial = state / f".{_FILE}.partial"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(entries, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(state / _FILE)
    return token
