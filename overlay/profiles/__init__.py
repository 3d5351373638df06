"""Profiles: conditions on rows that stay, and everything that is asked of them. Pure: no I/O, no clock, no chance.

A filter is written in a language (`languages/`: sql, diet, json, Spark's filter classes) and becomes a `Condition`, a
closed tree with canonical text; with its id it is a `Profile`. Four questions are asked of it:

- `mask(condition, batch)`: which rows satisfy it, exactly.
- `may_match(condition, summary)`: whether a row of a summarised batch can; false only if none does.
- `covers(wide, narrow)`: whether every row of the one is a row of the other; true only if certain.
- `ProfileIndex`: which of very many profiles want which rows of a batch.

`docs/FILTERS.md` is the user's side of it.
"""

from m4cast.overlay.profiles.boxes import covers, is_opaque
from m4cast.overlay.profiles.condition import Condition, FilterError, columns_of
from m4cast.overlay.profiles.evaluation import BatchTerms, mask
from m4cast.overlay.profiles.index import Matches, ProfileIndex
from m4cast.overlay.profiles.profile import (
    EVERYTHING,
    Profile,
    UnknownLanguageError,
    canonical_condition,
    narrowed,
    parse,
    profile_of,
    read,
    widened,
)
from m4cast.overlay.profiles.summary import Summary, may_match, summarise

__all__ = [
    "Profile",
    "Condition",
    "parse",
    "read",
    "canonical_condition",
    "profile_of",
    "narrowed",
    "widened",
    "columns_of",
    "EVERYTHING",
    "FilterError",
    "UnknownLanguageError",
    "mask",
    "BatchTerms",
    "Summary",
    "summarise",
    "may_match",
    "covers",
    "is_opaque",
    "ProfileIndex",
    "Matches",
]
