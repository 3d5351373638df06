"""Attaching: who may, under which session, and when a former access point lets go: the table of PROTOCOL.md, 21.3."""

from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.clients.access_point import (
    Attachment,
    AttachRefusal,
    AttachRequest,
    SeenRow,
    attach,
    is_superseded,
    lets_go,
    renewed,
    seen_row,
)
from m4cast.overlay.protocol.clients.state import ClientState
from m4cast.overlay.protocol.effects import ClientRow
from m4cast.overlay.protocol.interest.client_rows import ClientRows
from m4cast.overlay.protocol.wire.interest import CLIENT_LANGUAGE, MAIL_HASH, InterestItem

ME, OTHER = NodeId(b"\2" * 16), NodeId(b"\1" * 16)
DIGEST = b"d" * 16
HERE, BROUGHT = ClientState(last_number=1), ClientState(last_number=2)


def row(node: NodeId, session: int, *, covered: bool = True, digest: bytes = DIGEST) -> SeenRow:
    return SeenRow(node, ClientRow(session, covered, 0, digest))


def asked(session: int = 0, state: ClientState | None = None, *, create: bool = False) -> AttachRequest:
    return AttachRequest(DIGEST, session, state, create)


def test_a_wrong_credential_is_refused_whatever_else() -> None:
    rows = [row(OTHER, 3, digest=b"e" * 16)]
    assert attach(asked(9, BROUGHT, create=True), ME, rows, HERE) == AttachRefusal("bad-credential")


def test_it_returns_to_its_access_point_under_the_same_session() -> None:
    assert attach(asked(), ME, [row(ME, 3)], HERE) == Attachment(3, HERE, is_new=False)
    assert attach(asked(3, BROUGHT), ME, [row(ME, 3), row(OTHER, 2)], HERE) == Attachment(3, BROUGHT, is_new=False)


def test_a_library_that_was_elsewhere_meanwhile_begins_a_session() -> None:
    assert attach(asked(4, BROUGHT), ME, [row(ME, 3)], HERE) == Attachment(5, BROUGHT, is_new=True)


def test_an_older_state_begins_a_session_where_its_row_says_that_nothing_is_lacking() -> None:
    here = Attachment(3, BROUGHT, is_new=False)
    assert renewed(here, row(ME, 3).row) == Attachment(4, BROUGHT, is_new=True)
    assert renewed(here, row(ME, 3, covered=False).row) == here
    for found in (Attachment(3, BROUGHT, is_new=True), Attachment(1, ClientState(), is_new=True)):
        assert renewed(found, row(ME, 2).row) == renewed(found, None) == found


def test_it_comes_from_another_node_with_its_state() -> None:
    assert attach(asked(3, BROUGHT), ME, [row(OTHER, 3)], None) == Attachment(4, BROUGHT, is_new=True)
    assert attach(asked(0, BROUGHT), ME, [row(OTHER, 3), row(ME, 2)], HERE) == Attachment(4, BROUGHT, is_new=True)
    assert attach(asked(3, BROUGHT), ME, [], None) == Attachment(4, BROUGHT, is_new=True), "nobody knows it here"


def test_without_its_state_it_is_sent_to_where_that_is() -> None:
    assert attach(asked(), ME, [row(OTHER, 3)], None) == AttachRefusal("client-elsewhere", OTHER)
    assert attach(asked(create=True), ME, [row(OTHER, 3), row(ME, 2)], HERE) == AttachRefusal("client-elsewhere", OTHER)


def test_a_new_one_has_to_be_created() -> None:
    assert attach(asked(), ME, [], None) == AttachRefusal("unknown-client")
    assert attach(asked(create=True), ME, [], None) == Attachment(1, ClientState(), is_new=True)
    assert attach(asked(0, BROUGHT), ME, [], None) == AttachRefusal("unknown-client")


def test_of_equal_sessions_the_greater_node_wins_on_all_nodes() -> None:
    assert is_superseded(row(OTHER, 3), row(ME, 3))
    assert not is_superseded(row(ME, 3), row(OTHER, 3))
    assert is_superseded(row(ME, 3), row(OTHER, 4))


def test_a_former_access_point_holds_on_until_the_new_one_has_everything() -> None:
    assert not lets_go(row(ME, 3), row(OTHER, 4, covered=False))
    assert lets_go(row(ME, 3), row(OTHER, 4))
    assert not lets_go(row(ME, 4), row(OTHER, 3))


def test_a_row_is_an_item_of_the_interest_entry() -> None:
    mine = ClientRow(session=5, covered=True, since_ms=77, digest=DIGEST)
    rows = ClientRows({"shop-7": mine})
    (item,) = rows.items()
    assert (item.topic_hash, item.epoch, item.language, item.text) == (
        MAIL_HASH,
        11,
        CLIENT_LANGUAGE,
        f"shop-7 {DIGEST.hex()}",
    )
    assert seen_row(OTHER, item) == ("shop-7", SeenRow(OTHER, mine))


def test_what_is_no_row_of_a_client_is_passed_over() -> None:
    registration = InterestItem(1, 2, 3, 4, False, "sql", 1, "n = 1")
    assert seen_row(OTHER, registration) is None
    assert seen_row(OTHER, registration._replace(language=CLIENT_LANGUAGE, text="shop-7 nohex")) is None
    assert seen_row(OTHER, registration._replace(language=CLIENT_LANGUAGE, version=2)) is None
