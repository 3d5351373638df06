"""The display of a running demo: a live table on a terminal, otherwise one line per event."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from m4cast.cluster.local import LocalCluster
from m4cast.overlay.errors import M4castError

LINES_SHOWN = 9
LOOK_EVERY_S = 0.5
LOOK_TIMEOUT_S = 1.0
BAR_CHARS = 24
STYLES = {"up": "green", "killed": "bold red", "paused": "yellow", "starting": "blue"}


@dataclass(slots=True)
class Scene:
    """The current state of the demo. Several threads update it, one draws it."""

    roles: Mapping[str, str]
    """The role of each node, by its name."""
    states: dict[str, str] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    """Rows delivered at each node."""
    published: int = 0
    ingested: int = 0
    lines: list[str] = field(default_factory=list)
    now: str = ""
    """The step that the demo is at."""


class Narrator:
    """Reports events, with the time since the start."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.scene = Scene({})
        self._began = time.monotonic()
        self._is_live = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def say(self, text: str, style: str = "") -> None:
        line = f"{self.seconds:6.1f} s  {text}"
        self.scene.lines.append(f"[{style}]{line}[/]" if style else line)
        if not self._is_live:
            self.console.print(self.scene.lines[-1], soft_wrap=True)

    @contextmanager
    def live(self, cluster: LocalCluster, scene: Scene, look: Callable[[Scene], None]) -> Iterator[None]:
        """Draw the scene while it changes, if this is a terminal. `look` updates it, on a thread of its own."""
        scene.lines = self.scene.lines
        self.scene = scene
        over = threading.Event()

        def watch() -> None:
            with ThreadPoolExecutor(len(scene.roles)) as pool:
                while not over.wait(LOOK_EVERY_S):
                    rows = pool.map(lambda name: rows_at(cluster, name, LOOK_TIMEOUT_S), scene.roles)
                    scene.rows.update({name: count for name, count in zip(scene.roles, rows, strict=True) if count})
                    look(scene)

        watching = threading.Thread(target=watch, name="demo-watch", daemon=True)
        watching.start()
        try:
            if not self.console.is_terminal:
                yield
                return
            with Live(get_renderable=self._drawn, console=self.console, refresh_per_second=4, transient=True):
                self._is_live = True
                yield
        finally:
            if self._is_live:
                self._is_live = False
                self.console.print(*scene.lines, sep="\n", soft_wrap=True)
            over.set()
            watching.join()

    def _drawn(self) -> Group:
        scene = self.scene
        most = max([scene.published, *scene.rows.values(), 1])
        nodes = Table("node", "", "state", box=None, pad_edge=False)
        nodes.add_column("rows delivered", justify="right")
        nodes.add_column("")
        for name, role in scene.roles.items():
            state = scene.states.get(name, "up")
            count = scene.rows.get(name, 0)
            bar = Text("█" * round(BAR_CHARS * count / most), style=STYLES[state])
            nodes.add_row(name, role, f"[{STYLES[state]}]{state}[/]", f"{count:,}", bar)
        counts = f"published [bold]{scene.published:,}[/]   in Delta [bold]{scene.ingested:,}[/]   {scene.now}"
        lines = "\n".join(scene.lines[-LINES_SHOWN:])
        return Group(Panel(nodes, title=f"m4cast, {self.seconds:.0f} s"), Text.from_markup(counts), Panel(lines))


def rows_at(cluster: LocalCluster, name: str, timeout_s: float) -> int:
    """The number of rows of all topics at a node; 0 if it does not answer."""
    with suppress(M4castError):
        topics = cluster.channel(name, timeout_s=timeout_s).frontier()
        return sum(until - 1 for topic, origins in topics.items() if topic[0] != "_" for until in origins.values())
    return 0


def verdict_text(is_good: bool, text: str) -> str:
    """The text as markup, in the colour of the verdict."""
    return f"[{'green' if is_good else 'bold red'}]{text}[/]"
