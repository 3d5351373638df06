"""`m4cast client`: its commands for mail, chat, files and queries. `client` has those for connections and profiles."""

import queue
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from m4cast.cli.topics.client import client, file_argument, opened, show
from m4cast.cli.topics.filters import filter_options
from m4cast.console.access import FAIL_OVER, NodeAccess, access_options
from m4cast.console.errors import warn
from m4cast.console.interruption import interruptible
from m4cast.console.options import count_option, json_option, seconds_option, yes_option
from m4cast.console.screen import print_json
from m4cast.overlay.client import Client
from m4cast.overlay.errors import LocalProtocolError
from m4cast.schemas.json_text import json_of

LOOK_S = 0.5
"""The interval at which a chat checks for typed lines."""
topic_option = click.option("--topic", default="resources", show_default=True, help="Table in which files are offered.")
folder_option = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path(),
    show_default=True,
    help="Folder in which the file is saved.",
)
accepts_option = count_option("--max-bytes", low=0, default=256 * 1_048_576, help="Refuse larger files.")


def connected(access: NodeAccess, file: Path, **settings: Any) -> Client:
    one = opened(access, file, **settings)
    interruptible(one.connect)
    return one


@client.command()
@access_options(FAIL_OVER)
@file_argument
@click.argument("to", metavar="KEY")
@click.argument("text")
@json_option
def send(access: NodeAccess, file: Path, as_json: bool, to: str, text: str) -> None:
    """Send TEXT to the client KEY. The message waits until that client reads its inbox."""
    one = connected(access, file)
    name = one.send(to, text)
    one.disconnect()
    show(as_json, {"id": name, "to": to}, f"{one.key}: sent to {to}")


@client.command()
@count_option("--max-messages", low=1, help="End after this many messages.")
@seconds_option("--idle-s", low=0.001, help="End when no message has arrived for this long.")
@access_options(FAIL_OVER)
@file_argument
@click.option("--json", is_flag=True, expose_value=False, help="No effect: the output is always JSON.")
def inbox(access: NodeAccess, file: Path, max_messages: int | None, idle_s: float | None) -> None:
    """Print the client's messages until Ctrl-C, each of them once, one JSON object per line. Meanwhile, requests for
    offered files are answered."""
    one = connected(access, file)
    left = max_messages
    messages = one.inbox(idle_s)
    with suppress(KeyboardInterrupt):
        while left != 0 and (message := interruptible(lambda: next(messages, None))) is not None:
            fields = {"from": message.sender, "kind": message.kind, "text": message.text, "name": message.name}
            click.echo(json_of({**fields, "id": message.id, "sent_ms": message.sent_ms}))
            left = None if left is None else left - 1
    one.disconnect()


@client.command()
@seconds_option("--idle-s", low=0.001, help="End when no request has arrived for this long.")
@access_options(FAIL_OVER)
@file_argument
def serve(access: NodeAccess, file: Path, idle_s: float | None) -> None:
    """Send offered files to the clients that request them, until Ctrl-C. Messages stay in the inbox."""
    one = connected(access, file)
    with suppress(KeyboardInterrupt):
        interruptible(lambda: one.serve(idle_s))
    one.disconnect()


@client.command()
@seconds_option("--idle-s", low=0.001, help="End when no message has arrived for this long.")
@access_options(FAIL_OVER)
@file_argument
@click.argument("partner", metavar="KEY")
def chat(access: NodeAccess, file: Path, partner: str, idle_s: float | None) -> None:
    """Chat with the client KEY: lines of the standard input are sent to it, and its messages are printed. `get NAME`
    fetches a file that it offers into the working directory. `disconnect` ends the chat; without --idle-s, so does the
    end of the input."""
    one = connected(access, file)
    with suppress(KeyboardInterrupt):
        if interruptible(lambda: one.chat(partner)):
            interruptible(lambda: _talk(one, partner, idle_s))
        else:
            warn(f"{partner} does not answer, or is in another chat")
    one.end_chat()
    one.disconnect()


def _talk(one: Client, partner: str, idle_s: float | None) -> None:
    typed: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(typed,), daemon=True).start()
    silent_s, has_input = 0.0, True
    while one.desk.chat.partner == partner and (idle_s is None or silent_s < idle_s):
        with suppress(queue.Empty):
            line = typed.get_nowait() if has_input else None
            has_input = line is not None
            if line == "disconnect" or (line is None and idle_s is None):
                return
            if line is not None:
                _say(one, partner, line)
                continue
        heard = list(one.inbox(LOOK_S))
        silent_s = 0.0 if heard else silent_s + LOOK_S
        for message in heard:
            if message.kind == "chat-text":
                click.echo(f"{message.sender}: {message.text}")


def _say(one: Client, partner: str, line: str) -> None:
    word, _, name = line.partition(" ")
    if word == "get" and name:
        try:
            click.echo(f"saved {one.fetch(partner, name.strip())}")
        except LocalProtocolError as error:
            warn(str(error))
    elif line:
        one.say(line)


def _read_lines(typed: "queue.SimpleQueue[str | None]") -> None:
    for line in sys.stdin:
        typed.put(line.rstrip("\n"))
    typed.put(None)


@client.command()
@topic_option
@click.option("--title", default=None, help="Title of the file.")
@click.option("--author", default=None, help="Author of the file.")
@click.option("--withdraw", is_flag=True, help="Stop offering the file. The file itself is not removed.")
@access_options(FAIL_OVER)
@file_argument
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
@json_option
def offer(
    access: NodeAccess,
    file: Path,
    as_json: bool,
    path: Path,
    topic: str,
    title: str | None,
    author: str | None,
    withdraw: bool,
) -> None:
    """Offer the file PATH: publish its description. `serve` and `inbox` send the file to clients that request it."""
    one = connected(access, file)
    name = path.name
    if withdraw:
        is_over = one.withdraw(name, topic)
        line = f"{one.key}: {name}: {'offered no longer' if is_over else 'was not offered'}"
    else:
        name = one.offer(str(path), topic, title=title, author=author)
        line = f"{one.key}: offers {name} in {topic}"
    one.disconnect()
    show(as_json, {"key": one.key, "name": name, "topic": topic, "offered": not withdraw}, line)


@client.command()
@topic_option
@folder_option
@accepts_option
@seconds_option("--timeout-s", low=0.001, default=60, help="Stop waiting after this long; the request remains.")
@yes_option
@access_options(FAIL_OVER)
@file_argument
@click.argument("owner", metavar="KEY")
@click.argument("name")
@json_option
def fetch(
    access: NodeAccess,
    file: Path,
    as_json: bool,
    owner: str,
    name: str,
    topic: str,
    folder: Path,
    max_bytes: int,
    timeout_s: float,
    yes: bool,
) -> None:
    """Fetch the file NAME that the client KEY offers. That client must be connected; if it is not, use `rendezvous`."""
    one = connected(access, file)

    def confirm(resource: dict[str, Any]) -> bool:
        about = f"{name} of {owner}, {resource.get('size') or 0:,} bytes"
        return yes or click.confirm(f"Download {about}?", err=True)

    settings: dict[str, Any] = {"folder": str(folder), "accepts_bytes": max_bytes, "timeout_s": timeout_s}
    found = interruptible(lambda: one.fetch(owner, name, topic, confirm=confirm, **settings))
    one.disconnect()
    show(as_json, {"path": str(found), "bytes": found.stat().st_size}, f"{found}: {found.stat().st_size:,} bytes")


@client.command()
@folder_option
@accepts_option
@access_options(FAIL_OVER)
@file_argument
@click.argument("owner", metavar="KEY")
@click.argument("name")
@json_option
def rendezvous(
    access: NodeAccess, file: Path, as_json: bool, owner: str, name: str, folder: Path, max_bytes: int
) -> None:
    """Request the file NAME from the client KEY, which may be offline: it sends the file when it is back."""
    one = connected(access, file)
    transfer = one.rendezvous(owner, name, folder=str(folder), accepts_bytes=max_bytes)
    one.disconnect()
    line = f"{one.key}: asked {owner} for {name}; m4cast client transfers shows when it has arrived"
    show(as_json, {"id": transfer, "owner": owner, "name": name}, line)


@client.command()
@seconds_option("--idle-s", low=0.001, default=1, help="Wait this long for files that have not arrived.")
@click.option("--cancel", default=None, metavar="ID", help="Cancel this request.")
@access_options(FAIL_OVER)
@file_argument
@json_option
def transfers(access: NodeAccess, file: Path, as_json: bool, idle_s: float, cancel: str | None) -> None:
    """Receive what has arrived of the requested files, and show the state of every request."""
    one = connected(access, file)
    if cancel is not None:
        one.cancel_transfer(cancel)
    interruptible(lambda: one.serve(idle_s))
    found = one.transfers()
    one.disconnect()
    if as_json:
        print_json({"transfers": found})
        return
    for each in found:
        detail = f": {each['detail']}" if each["detail"] else ""
        click.echo(f"{each['id']} {each['name']} of {each['owner']}: {each['state']}{detail}")
    if not found:
        click.echo("no file was requested")


@client.command()
@filter_options("Only rows that satisfy this filter (docs/FILTERS.md).")
@click.option(
    "--scope",
    type=click.Choice(["node", "channel"]),
    default="node",
    show_default=True,
    help="Ask one node, or each stream of the topic at its origin.",
)
@access_options(FAIL_OVER)
@file_argument
@click.argument("topic")
@click.option("--json", is_flag=True, expose_value=False, help="No effect: the output is always JSON.")
def query(access: NodeAccess, file: Path, topic: str, where: str | None, language: str | None, scope: Any) -> None:
    """Print the rows of TOPIC that match now, one JSON object per line. The client's profiles are not affected."""
    one = connected(access, file)
    answer = one.query(topic, where, language=language, scope=scope)
    with suppress(KeyboardInterrupt):
        while (rows := interruptible(lambda: next(answer, None))) is not None:
            for row in rows.to_pylist():
                click.echo(json_of(row))
    for node, reason in answer.unanswered.items():
        warn(f"{node} did not answer: {reason}")
    one.disconnect()
