"""The node's tables: every kind of input, message and timer is in them, and what they do not allow is a violation."""

import gc
from random import Random
from typing import get_args

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.protocol.effects import Input, Recovered
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.protocol.timers import Timer
from m4cast.overlay.protocol.wire.batch import BatchFrame
from m4cast.overlay.protocol.wire.messages import Message
from m4cast.overlay.protocol.wire.selective import RoutedFrame
from tests.overlay.protocol.stream_parts import node_id

NODE = Node(Recovered(node_id("m"), incarnation=1), ClusterConfig(), NodeConfig(listen="m:7400"), Random(1))


def test_every_input_is_in_the_table() -> None:
    assert set(NODE._inputs) == set(get_args(Input))


def test_every_message_is_in_the_table_and_allowed_somewhere() -> None:
    assert set(NODE._messages) == {BatchFrame, RoutedFrame, *get_args(Message)}
    assert all(handling.on_link or handling.on_call for handling in NODE._messages.values())


def test_every_timer_of_the_protocol_is_in_the_table() -> None:
    gc.collect()  # a class without slots, which `value` has replaced by one with them, is in the list until then
    kinds = {kind for kind in Timer.__subclasses__() if kind.__module__.startswith("m4cast.overlay.protocol.")}
    assert set(NODE._timers) == kinds


def test_only_callers_send_calls() -> None:
    """Except pulls, which whoever is called may send when a holder offers rows, and proposals inside the graph."""
    by_caller = {kind.__name__ for kind, handling in NODE._messages.items() if handling.by_caller}
    calls = {kind.__name__ for kind in get_args(Message) if kind.__name__.endswith("Call")}
    assert calls - by_caller == {"PullCall", "EdgeSearchCall"}
    assert by_caller < calls
