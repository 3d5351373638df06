"""The language `diet`: fixtures F7 to F9 of the thesis, its grammar, and what it refuses."""

from typing import Any

import pyarrow as pa
import pytest

from m4cast.overlay.profiles.condition import TEXT_BYTES_MAX, FilterError, text_of
from m4cast.overlay.profiles.evaluation import mask
from m4cast.overlay.profiles.languages import sql
from m4cast.overlay.profiles.languages.diet import parse

F7 = {
    "key": "213",
    "type": "pdf",
    "name": "thesis",
    "size": 676318,
    "path": "C:\\Documents and Settings\\Stratos\\Desktop\\thesis.pdf",
    "title": "P2P-DIET: A Query Dissemination Service using Mobile Agents",
    "author": "Stratos Idreos",
}
F8 = (
    "type = doc; name contains master thesis; title contains peer AND load AND balancing; "
    "author contains Idreos AND Koubarakis; desired_client = 213; 345; 4 < size < 10"
)
SCHEMA = pa.schema([(name, pa.int64() if name == "size" else pa.string()) for name in F7])


def is_match(profile: str, **resource: Any) -> bool:
    batch = pa.RecordBatch.from_pylist([resource], SCHEMA)
    return bool(mask(parse(profile), batch)[0])


def test_f8_against_f7() -> None:
    assert not is_match(F8, **F7)
    atoms = {
        atom.split()[0]: atom
        for atom in (
            "type = doc",
            "name contains master thesis",
            "title contains peer AND load AND balancing",
            "author contains Idreos AND Koubarakis",
            "desired_client = 213; 345",
            "4 < size < 10",
        )
    }
    assert [atom for atom in atoms.values() if is_match(atom, **F7)] == ["desired_client = 213; 345"]


@pytest.mark.parametrize(
    ("profile", "resource", "expected"),
    [
        ("name contains peer OR event", {"name": "peer-to-peer networks"}, True),
        ("name contains peer OR event", {"name": "event based systems"}, True),
        ("title contains load OR event", {"title": "load balance in peer-to-peer networks"}, True),
        ("title contains load OR event", {"title": "event based systems"}, True),
        ("author contains stratos AND manolis", {"author": "Stratos Idreos, Manolis Koubarakis"}, True),
        ("author contains stratos AND manolis", {"author": "Manolis Koubarakis"}, False),
        ("author contains stratos OR manolis", {"author": "Stratos Idreos, Manolis Koubarakis"}, True),
        ("author contains stratos OR manolis", {"author": "Manolis Koubarakis"}, True),
        ("type = pdf OR doc", {"type": "doc"}, True),
        ("type = pdf OR doc", {"type": "PDF"}, True),
        ("type = pdf OR doc", {"type": "mp3"}, False),
        ("desired_client = 234; 123; 546;", {"key": "123"}, True),
        ("desired_client = 234; 123; 546;", {"key": "12"}, False),
        ("200 < size < 800", {"size": 201}, True),
        ("200 < size < 800", {"size": 200}, False),
        ("800 > size > 200", {"size": 799}, True),
        ("800 > size > 200", {"size": 800}, False),
        ("size = 5", {"size": 5}, True),
        ("size < 5", {"size": 5}, False),
        ("size > 5", {"size": 5}, False),
        ("", {}, True),
        ("title contains network", {"title": "networks"}, False),
        ("title contains STRASSE", {"title": "Straße"}, True),
        ("title contains peer-to-peer", {"title": "peer to"}, True),
        ("title contains peer", {"title": None}, False),
        ("title contains load network", {"title": "network, load"}, True),
        ("size > 0", {"size": None}, False),
    ],
)
def test_f9_and_the_words_of_4_3(profile: str, resource: dict[str, Any], expected: bool) -> None:
    assert is_match(profile, **resource) is expected


def test_keys_may_be_numbers_or_texts() -> None:
    numbers = pa.record_batch({"key": [123, 124]})
    assert mask(parse("desired_client = 123"), numbers).tolist() == [True, False]


def test_after_keys_comes_another_atom() -> None:
    assert text_of(parse("desired_client = 1; 2; size = 3")) == "`key` IN ('1', '2') AND `size` = 3"
    assert text_of(parse("desired_client = 1; 2; title contains x")) == "`key` IN ('1', '2') AND words(`title`, 'x')"
    assert (
        text_of(parse("desired_client = 1; 2; 3 < size < 9")) == "`key` IN ('1', '2') AND `size` <= 8 AND `size` >= 4"
    )


@pytest.mark.parametrize("profile", ["", F8, "size > 3", "type = x OR y; name contains a OR b"])
def test_the_canonical_text_is_sql(profile: str) -> None:
    assert sql.parse(text_of(parse(profile))) == parse(profile)


@pytest.mark.parametrize(
    ("profile", "place", "problem"),
    [
        ("title contains a AND b OR c", 23, "cannot be mixed"),
        ("4 < size > 10", 9, "bounds go one way"),
        ("4 = size = 10", 9, "bounds go one way"),
        ("4 < size < 5", 0, "no size lies between"),
        ("size < 0", 0, "no size lies between"),
        ("size = -1", 7, "no whole number"),
        ("size = 1234567890123456789", 7, "at most 18 digits"),
        ("size", 4, "the profile ends here"),
        ("size contains 4", 5, "=, < or > is expected"),
        ("4 < name < 5", 4, "only size has bounds"),
        ("colour = red", 0, "is no attribute"),
        ("type = pdf AND doc", 11, "joined by OR"),
        ("type pdf", 5, "type is followed by ="),
        ("type = ", 7, "a word is expected"),
        ("title contains", 14, "a word is expected"),
        ("title has peer", 6, "followed by contains"),
        ("title contains AND", 15, "a word is expected"),
        ("title contains a AND", 20, "a word is expected"),
        ("title contains --", 15, "a letter or a digit"),
        ("title contains a-b OR c", 15, "letters and digits only"),
        ("desired_client = ;", 17, "a key is expected"),
        ("type = pdf; type = doc", 12, "constrained twice"),
        ("type = pdf;", 11, "an atom is expected after ;"),
        ("type = pdf = doc", 11, ""),
        ("size = 3 title contains x", 9, "atoms are separated by ;"),
        ("title contains \0", 15, "cannot be in a filter"),
    ],
)
def test_a_refusal_names_the_place(profile: str, place: int, problem: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse(profile)
    assert problem in caught.value.problem and caught.value.position == place, str(caught.value)


def test_the_limit_of_bytes() -> None:
    assert text_of(parse("size = 1".ljust(TEXT_BYTES_MAX))) == "`size` = 1"
    with pytest.raises(FilterError, match="the profile has 4097 bytes"):
        parse("size = 1".ljust(TEXT_BYTES_MAX + 1))
