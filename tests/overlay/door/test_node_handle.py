"""Answers of a node that stops before it gives them."""

import asyncio

import pytest

from m4cast.overlay.door.node_handle import NodeRequest, answered
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.net.driver import Answer
from m4cast.overlay.protocol.effects import Published


async def ended(asked: NodeRequest, answer: Answer | None) -> None:
    """Begun, and then answered; None: the node has stopped."""
    inner: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    asked.begin(inner)
    if answer is None:
        inner.cancel()
    else:
        inner.set_result(answer)
    await asyncio.sleep(0)  # callbacks come in the loop's next turn


def test_who_waits_for_an_answer_sees_at_once_that_the_node_has_stopped() -> None:
    asked = NodeRequest(lambda function: None, holders=1)
    asyncio.run(ended(asked, None))
    with pytest.raises(Refusal) as refused:
        answered(asked, 0, lambda: False)
    assert refused.value.code == "stopping"


def test_who_waits_for_an_answer_gets_it() -> None:
    asked = NodeRequest(lambda function: None, holders=1)
    published = Published(1, ())
    asyncio.run(ended(asked, published))
    assert answered(asked, 0, lambda: False) == published
