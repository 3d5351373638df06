"""Peak of anonymous memory (RssAnon) of nodes, sampled while something happens."""

import threading
from types import TracebackType

from m4cast.cluster.local import LocalCluster
from tests.bench.processes import anonymous_mb
from tests.processes.clusters import process_of

LOOK_S = 0.02
MEMORY_MB_MAX = 300


class MemoryWatch:
    """`with MemoryWatch(cluster, *names): ...`; at the end none of them has had more than it may."""

    def __init__(self, cluster: LocalCluster, *names: str) -> None:
        self._pids = {name: process_of(cluster, name).pid for name in names}
        self.most_mb = dict.fromkeys(names, 0.0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        for name, pid in self._pids.items():
            self.most_mb[name] = max(self.most_mb[name], anonymous_mb(pid))

    def __enter__(self) -> "MemoryWatch":
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if error is None:
            print("RssAnon MB at most:", {name: round(most) for name, most in self.most_mb.items()})
            too_much = {name: most for name, most in self.most_mb.items() if not 0 < most <= MEMORY_MB_MAX}
            assert not too_much, f"more than {MEMORY_MB_MAX} MB: {too_much}"
