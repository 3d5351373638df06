"""A member of a group: one of several processes that share the rows of one client.

    with GroupMember(nodes, key="packers", credential=secret, member="packer-1") as member:
        for rows in member.notifications():
            ...

Each stream is read by one member at a time, in order, from where the last one stopped. Members are connected to one
node, the access point of the group; if that is lost they meet at another. A row is handed out once, unless a member
dies or falls silent: what it had not acknowledged is given to another one.
"""

from typing import Any

from m4cast.overlay.client.roaming.client import Client
from m4cast.overlay.client.tail import Start
from m4cast.overlay.errors import LocalProtocolError, M4castError, RefusedError, UnreachableError
from m4cast.overlay.protocol.clients.group import joined
from m4cast.overlay.protocol.clients.packed_state import packed_of, state_from
from m4cast.overlay.protocol.clients.state import MAIL, json_of


class GroupMember(Client):
    """The member `member` of the group `key`. Settings are those of `Client`; there is no file, and no mail."""

    follows = True

    def __init__(self, nodes: Any, *, key: str, credential: str, member: str, **settings: Any) -> None:
        super().__init__(nodes, key=key, credential=credential, **settings)
        if not member or not member.isprintable():
            raise LocalProtocolError(f"member is {member!r}: must be printable text that no other member has")
        self.member = member

    def _attach(self, node: str, *, create: bool, take: bool = False) -> None:
        question = {**self._who(), "create": create, "member": self.member, "take": take, "short": True}
        if self.memory.session:
            question |= {"session": self.memory.session, "state": packed_of(self.memory.state)}
        try:
            answer = self._doors(node).ask("client-connect", question)
        except RefusedError as error:
            if error.code != "client-elsewhere" or take:
                raise
            self._follow(node, error, create=create)
            return
        self._joined(answer)
        self.node, self.connection = node, answer["connection"]
        self.waiting_max = answer["waiting_max"]

    def _follow(self, node: str, refusal: RefusedError, *, create: bool) -> None:
        """Connect to the node where the group is; if that node is lost, move the group to this one."""
        door = next((row["door"] for row in self.channel.at(node).clients(self.key)), "")
        if door and door != node:
            try:
                self._attach(door, create=create, take=True)
                return
            except UnreachableError:
                pass
        if not self.memory.session:
            raise refusal  # it does not know where the group stands
        self._attach(node, create=create, take=True)

    def _joined(self, answer: dict[str, Any]) -> None:
        """The group's state has what the others acknowledged."""
        self.memory.session, self.version = answer["session"], answer["version"]
        whole = state_from(answer["state"])
        self.memory.ahead = joined(whole, self.memory.ahead)
        self.memory.state = joined(whole, self.memory.state)

    def regroup(self) -> None:
        """Save what was acknowledged, and learn who has what from now on."""
        if not self.is_manual:
            self.acknowledge()
        self._save()

    def _save(self) -> None:
        answer = self._access_point().ask("client-share", self._signed({"state": json_of(self.memory.state)}))
        self._joined({**answer, "session": self.memory.session})

    def reconnect(self, error: M4castError) -> None:
        if isinstance(error, RefusedError) and error.code == "regrouped":
            self.regroup()
        else:
            super().reconnect(error)

    def subscribe(
        self,
        topic: str,
        where: str | None = None,
        *,
        name: str = "default",
        language: str | None = None,
        start: Start = "latest",
    ) -> None:
        """Want rows for the group, as `Client.subscribe` does. A profile that is not the first of its topic begins at
        the group's position (`latest`)."""
        self.regroup()
        if start == "standing" or (start != "latest" and topic in self.memory.ahead.topics):
            detail = f"start is {start!r}: a group's profile begins at latest, or, the first of its topic, earlier"
            raise LocalProtocolError(detail)
        super().subscribe(topic, where, name=name, language=language, start=start)

    def _subscribe_mail(self, lows: dict[str, int]) -> None:
        raise LocalProtocolError(f"a member of a group has no {MAIL}: write in the name of a client")
