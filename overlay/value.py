"""Values: small slotted dataclasses that are never changed.

They are frozen for the type checker, which sees all of our code, and not at run time: a dataclass that is frozen at run
time takes five times as long to construct, and a node constructs several for every message it receives or sends.
"""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """Make the class a value: compared and hashed by its fields, printed with their names."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
