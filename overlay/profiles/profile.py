"""Profiles: a condition with its canonical text, its id, and the language it was written in.

A language is a module with a name, a version and `parse`. All languages share one tree (`condition`), one canonical
text and therefore one set of ids: the same filter written in `sql` and in `diet` is one profile. A profile still names
its language and version, because a node that lacks them must not guess what a text means: it passes messages on, says
which language it lacks (`UnknownLanguageError`), and treats the profile as one that matches everything.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import blake2b

from m4cast.overlay.errors import M4castError
from m4cast.overlay.profiles.condition import (
    ALWAYS,
    CANONICAL_BYTES_MAX,
    TEXT_BYTES_MAX,
    Condition,
    FilterError,
    all_of,
    any_of,
    check_limits,
    text_of,
)
from m4cast.overlay.profiles.languages import canonical, diet, json_form
from m4cast.overlay.value import value

ID_BYTES = 16
SQL, SQL_VERSION = "sql", 1
CONDITIONS_MAX = 65_536
"""Parsed conditions of other nodes' texts that are remembered."""


def _parse_sql(text: str) -> Condition:
    """Imports sqlglot, which takes 20 MB and 0.1 s: whoever never filters does without."""
    from m4cast.overlay.profiles.languages import sql

    return sql.parse(text)


LANGUAGES: dict[tuple[str, int], Callable[[str], Condition]] = {
    (SQL, SQL_VERSION): _parse_sql,
    (diet.NAME, diet.VERSION): diet.parse,
    (json_form.NAME, json_form.VERSION): json_form.parse,
}
"""The parser of each language, by name and version."""


class UnknownLanguageError(M4castError):
    """A profile in a language, or a version of one, that this node does not have."""

    def __init__(self, language: str, version: int) -> None:
        known = ", ".join(f"{name} {number}" for name, number in LANGUAGES)
        super().__init__(f"filter language {language!r} version {version} is unknown here; known are {known}")
        self.language = language
        self.version = version


@value
class Profile:
    """A condition on rows that stays. `text` is canonical and in `sql`: what travels between nodes; `id` is a hash of
    it. `written` is what it was parsed from, in its language: what people are shown."""

    condition: Condition
    text: str
    id: bytes
    language: str
    version: int
    written: str


def parse(text: str, language: str = SQL, version: int | None = None) -> Profile:
    """The profile that a text means: `FilterError` if it means none, `UnknownLanguageError` if nobody here can tell.

    Cost: 0.14 ms for a small filter, up to 20 ms at the limit of 4,096 bytes. Never on a node's loop: see `read`.
    """
    if version is None:
        version = max((number for name, number in LANGUAGES if name == language), default=1)
    parser = LANGUAGES.get((language, version))
    if parser is None:
        raise UnknownLanguageError(language, version)
    profile = _profile(parser(text), language, version, text)
    _check_size(profile.text, CANONICAL_BYTES_MAX, 0)
    return profile


def read(text: str, language: str = SQL, version: int = SQL_VERSION) -> Profile:
    """The profile of a canonical text, as another node sent it or the store had it. On a node's loop, too.

    `FilterError` if the text is not canonical, `UnknownLanguageError` if it is in any language but `sql` 1.
    """
    if (language, version) != (SQL, SQL_VERSION):
        raise UnknownLanguageError(language, version)
    return _profile(canonical.parse(text), SQL, SQL_VERSION, text)


def canonical_text(text: str) -> str:
    """The canonical text as messages carry it: "", which stands for every row, if it is too long for them."""
    return text if len(text.encode()) <= TEXT_BYTES_MAX else ""


@lru_cache(maxsize=CONDITIONS_MAX)
def canonical_condition(text: str, language: str, version: int) -> Condition:
    """The condition of a text that another node sent; one that matches every row if the text is empty or not understood
    here."""
    if not text:
        return ALWAYS
    try:
        return read(text, language, version).condition
    except (FilterError, UnknownLanguageError):
        return ALWAYS


def profile_of(condition: Condition, bytes_max: int = TEXT_BYTES_MAX) -> Profile:
    """The profile of a condition that was not written as text. With `bytes_max` for what is canonical, its text may be
    told to other nodes, but not parsed as people's."""
    check_limits(condition)
    text = text_of(condition)
    _check_size(text, bytes_max, None)
    return _profile(condition, SQL, SQL_VERSION, text)


def _check_size(text: str, bytes_max: int, position: int | None) -> None:
    size = len(text.encode())
    if size > bytes_max:
        raise FilterError(f"the filter has {size} bytes as text, at most {bytes_max}: make it shorter", position)


def narrowed(profile: Profile, by: Profile) -> Profile:
    """The rows that both want. It is not sent anywhere, so it may be longer than what people may write."""
    condition = all_of((profile.condition, by.condition))
    return _profile(condition, SQL, SQL_VERSION, text_of(condition))


def widened(profiles: Iterable[Profile]) -> Profile:
    """The rows that one of them wants. It is not sent anywhere, so it may be longer than what people may write."""
    condition = any_of(profile.condition for profile in profiles)
    return _profile(condition, SQL, SQL_VERSION, text_of(condition))


def _profile(condition: Condition, language: str, version: int, written: str) -> Profile:
    text = text_of(condition)
    return Profile(
        condition=condition,
        text=text,
        id=blake2b(text.encode(), digest_size=ID_BYTES).digest(),
        language=language,
        version=version,
        written=written,
    )


EVERYTHING = profile_of(ALWAYS)
"""The profile that every row matches."""
