"""Values: small slotted dataclasses that nobody changes.

They are frozen for the type checker, which sees all of our code, and not at run time: a dataclass that guards itself
takes five times as long to make, and a node makes several for every message that comes and goes.
"""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """Make the class a value: compared and hashed by its fields, printed with their names."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
