"""Descriptors of selective topics: their text, and which of two counts."""

from dataclasses import replace

import pytest

from m4cast.overlay.protocol.effects import TopicDescriptor
from m4cast.overlay.protocol.selection.descriptors import descriptor_id, descriptor_of, descriptor_text, is_newer
from tests.overlay.protocol.stream_parts import node_id

MADE = TopicDescriptor("orders", 2, ("country", "kind"), 3, node_id("m"))


@pytest.mark.parametrize("made", [MADE, replace(MADE, route_by=()), replace(MADE, topic="it's `odd`", keepers=0)])
def test_a_text_says_what_was_made(made: TopicDescriptor) -> None:
    assert descriptor_of(descriptor_text(made)) == made


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("'selective'", "'broadcast'"),
        ("`keepers` = 2", "`keepers` = 9"),
        ("`keepers` = 2", "`keepers` = 'two'"),
        ("`counter` = 3", f"`counter` = {10**18}"),
        (node_id("m").hex(), "m"),
        ("`counter` = 3", "`counter` = 3 AND `more` = 1"),
        ("`counter` = 3 AND ", ""),
    ],
)
def test_a_text_that_this_program_does_not_understand_says_nothing(old: str, new: str) -> None:
    text = descriptor_text(MADE)
    assert old in text
    assert descriptor_of(text.replace(old, new)) is None


def test_the_greater_counter_counts_then_the_greater_node() -> None:
    assert is_newer(MADE, None)
    assert not is_newer(MADE, MADE)
    assert is_newer(replace(MADE, counter=4, node_id=node_id("a")), MADE)
    assert is_newer(replace(MADE, node_id=node_id("z")), MADE)
    assert not is_newer(replace(MADE, counter=2, node_id=node_id("z")), MADE)


def test_each_topic_is_announced_under_an_id_of_its_own() -> None:
    assert descriptor_id("a") != descriptor_id("b")
