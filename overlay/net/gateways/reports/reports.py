"""The machine's reports: levels of wants, clients that roam; and the messages that gatekeepers exchange about them."""

from collections.abc import Callable
from typing import get_args

from m4cast.overlay.federation.contract import (
    ClientGone,
    FederationInput,
    FederationOutput,
    MatchedUnits,
    TopicQuenched,
)
from m4cast.overlay.federation.federation import Federation
from m4cast.overlay.federation.messages import ClientReleased, RoutedNote
from m4cast.overlay.federation.units import UnitId
from m4cast.overlay.net.driver import Driver, Shown
from m4cast.overlay.net.gateways.link import GatewayLink
from m4cast.overlay.net.gateways.links import GatewayLinks
from m4cast.overlay.net.gateways.reports.announced_levels import AnnouncedLevels
from m4cast.overlay.net.gateways.reports.client_finding import ClientFinding
from m4cast.overlay.net.gateways.reports.quiet_topics import QuietTopics
from m4cast.overlay.net.gateways.reports.roamers import ChannelRoamers
from m4cast.overlay.net.gateways.reports.sought_clients import SoughtClients
from m4cast.overlay.net.gateways.reports.ways import BatchWays
from m4cast.overlay.net.gateways.rules import GatewayRules
from m4cast.overlay.net.gateways.wire.messages import ClientFindMessage, TraceMessage
from m4cast.overlay.protocol.effects import InterestChanged
from m4cast.overlay.protocol.wire.interest import MAIL_TOPIC

CLIENT_FINDS, TRACES = get_args(ClientFindMessage), get_args(TraceMessage)


class MachineReports:
    """`feed` takes inputs of the machine, `fellows` are the other gatekeepers of the channel."""

    def __init__(
        self,
        driver: Driver,
        machine: Federation,
        feed: Callable[[FederationInput], None],
        fellows: Callable[[], list[UnitId]],
        links: GatewayLinks,
        rules: GatewayRules,
    ) -> None:
        me = UnitId(driver.node.me.node_id)
        has_mail = rules.exported(MAIL_TOPIC)
        self.quiet = QuietTopics(driver, machine, rules)
        self.levels = AnnouncedLevels(driver, machine, self.quiet.topics, has_mail=has_mail)
        self.sought = SoughtClients(driver, machine, answers=has_mail)
        self.roamers = ChannelRoamers(driver, machine, feed, fellows)
        self.roamers.finding = ClientFinding(me, links.links, self.roamers.older)
        self.ways = BatchWays(me, links.links, (links.address, rules.channel))

    def shown(self, shown: Shown) -> None:
        """The node shows something."""
        if isinstance(shown, InterestChanged):
            self.roamers.changed(shown)
            self.sought.changed(shown)

    def look(self) -> None:
        self.roamers.look()
        self.levels.look()
        self.sought.look()
        self.quiet.look()
        self.ways.echo.look()

    def perform(self, output: FederationOutput) -> None:
        match output:
            case ClientGone():
                self.roamers.gone(output)
            case MatchedUnits():
                self.ways.matched(output)
            case TopicQuenched():
                self.quiet.quenched(output)
            case _:
                pass  # levels are looked up

    def heard(self, link: GatewayLink, message: ClientFindMessage | TraceMessage) -> None:
        if isinstance(message, TraceMessage):
            self.ways.heard(link, message)
        else:
            self.roamers.finding.heard(link, message)

    def note_came(self, note: RoutedNote) -> None:
        """A note of the machine came, and was handed to it."""
        if isinstance(note.body, ClientReleased):
            self.roamers.released(note.body.client)

    def link_down(self, link: GatewayLink) -> None:
        self.roamers.finding.echo.link_down(link)
        self.ways.echo.link_down(link)
