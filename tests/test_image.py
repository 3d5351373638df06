"""The image of a node, without docker: the steps of its Dockerfile are run as they are written, in folders of the test,
and three nodes are run by the configuration files of `compose.yml`."""

import json
import os
import re
import shutil
import signal
import subprocess
import sysconfig
import tomllib
import urllib.request
import venv
from contextlib import ExitStack
from fnmatch import fnmatch
from pathlib import Path
from time import monotonic, sleep

import pytest

from m4cast.cluster.ports import free_ports

ROOT = Path(__file__).parent.parent
DOCKER = ROOT / "conf" / "docker"
COMPOSE = (DOCKER / "compose.yml").read_text("utf-8")
NAMES = ("n1", "n2", "n3")
TIMEOUT_S = 60.0
LOOK_S = 0.05
IGNORED = [line for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line and line[0] != "#"]


def instructions() -> list[tuple[str, str]]:
    text = (DOCKER / "Dockerfile").read_text("utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def the(word: str) -> list[str]:
    """The words of the one instruction of this kind, which is written as a list."""
    (found,) = (rest for name, rest in instructions() if name == word)
    words: list[str] = json.loads(found.removeprefix("CMD "))
    return words


def not_in_image(folder: str, names: list[str]) -> set[str]:
    """The names that docker ignores: a pattern is for the top folder, unless it begins with `**/`."""
    is_top = Path(folder) == ROOT
    patterns = [each.removeprefix("**/") for each in IGNORED if is_top or each.startswith("**/")]
    return {name for name in names if any(fnmatch(name, pattern) for pattern in patterns)}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment made by the image's RUN steps. Packages that the wheel needs are those of this environment."""
    folder = tmp_path_factory.mktemp("image")
    source, wheels, environment = folder / "source", folder / "wheels", folder / "environment"
    shutil.copytree(ROOT, source, symlinks=True, ignore=not_in_image)
    venv.create(environment, with_pip=False, symlinks=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    settings = {"PATH": f"{environment}/bin:/usr/bin:/bin", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    steps = [rest for word, rest in instructions() if word == "RUN"]
    for step in (each for each in steps if not each.startswith("useradd ")):
        here = step.replace("/wheels", str(wheels)).replace("pip install", "pip install --ignore-installed --no-deps")
        done = subprocess.run(
            ["sh", "-ec", here], cwd=source, env=settings, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{step}\n{done.stdout}{done.stderr}"
    assert len(steps) == 3
    return environment


def configured(folder: Path) -> dict[str, dict[str, str]]:
    """The nodes of compose.yml with addresses of this host; where each is reached."""
    ports = free_ports(4 * len(NAMES), set())
    places = {
        name: dict(zip(("7400", "7500", "7600", "7700"), ports[4 * at : 4 * at + 4], strict=True))
        for at, name in enumerate(NAMES)
    }
    for name in NAMES:
        text = (DOCKER / f"{name}.toml").read_text("utf-8")
        for other in NAMES:
            text = text.replace(f'"{other}:7400"', f'"{places[other]["7400"]}"')
        for port, address in places[name].items():
            text = re.sub(rf'"(0\.0\.0\.0|127\.0\.0\.1):{port}"', f'"{address}"', text)
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return places


def test_three_nodes_of_the_image_form_a_channel_and_leave_it(image: Path, tmp_path: Path) -> None:
    places = configured(tmp_path)
    command = [*the("ENTRYPOINT"), *the("CMD")]
    with ExitStack() as ended:
        nodes = {}
        for name in NAMES:
            paths = {"/etc/m4cast/node.toml": tmp_path / f"{name}.toml", "/var/lib/m4cast/store": tmp_path / name}
            words = [str(paths.get(word, word)) for word in command]
            nodes[name] = subprocess.Popen([f"{image}/bin/{words[0]}", *words[1:]], stderr=subprocess.DEVNULL)
            ended.callback(nodes[name].kill)
        for name in NAMES:
            await_ready(f"http://{places[name]['7600']}/readyz")
        # The health check of the image, at the node's own address instead of the container's.
        check = [word.replace("127.0.0.1:7600", places["n2"]["7600"]) for word in the("HEALTHCHECK")]
        assert check[0] == "python"
        subprocess.run([f"{image}/bin/python", *check[1:]], check=True, timeout=TIMEOUT_S)
        with urllib.request.urlopen(f"http://{places['n3']['7700']}/", timeout=TIMEOUT_S) as page:
            assert b"m4cast console" in page.read(), "the console is in the image"
        for node in nodes.values():
            node.send_signal(signal.SIGTERM)
        assert [node.wait(TIMEOUT_S) for node in nodes.values()] == [0, 0, 0]


def await_ready(url: str) -> None:
    deadline = monotonic() + TIMEOUT_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S):
                return
        except OSError:
            assert monotonic() < deadline, f"{url}: not ready within {TIMEOUT_S} s"
            sleep(LOOK_S)  # between looks; what is waited for is the condition


def test_the_files_of_compose_are_there_and_fit() -> None:
    for name in NAMES:
        assert f'"./{name}.toml:/etc/m4cast/node.toml:ro"' in COMPOSE and f'"{name}:/var/lib/m4cast"' in COMPOSE
        node = tomllib.loads((DOCKER / f"{name}.toml").read_text("utf-8"))["node"]
        assert node["name"] == name and node["advertise"] == f"{name}:7400"
    assert (DOCKER / re.findall(r"context: (\S+),", COMPOSE)[0] / "pyproject.toml").exists()
    (exposed,) = (rest.split() for word, rest in instructions() if word == "EXPOSE")
    published = set(re.findall(r'127\.0\.0\.1:\d+:(\d+)"', COMPOSE))
    assert published <= set(exposed) and "7600" not in published, "metrics are for the network of compose.yml"


def test_every_door_can_be_reached_from_the_network_of_compose() -> None:
    """An address of 127.0.0.1 is the container's own: nothing outside it, a Prometheus for example, gets there."""
    for name in NAMES:
        node = tomllib.loads((DOCKER / f"{name}.toml").read_text("utf-8"))["node"]
        assert {node[door] for door in ("listen", "door", "http", "web")} == {
            f"0.0.0.0:{port}" for port in ("7400", "7500", "7600", "7700")
        }


def test_the_image_runs_as_a_user_of_its_own() -> None:
    words = dict(instructions())
    assert words["FROM"].startswith("python:3.12")
    assert words["USER"] == "m4cast" and words["STOPSIGNAL"] == "SIGTERM" and os.sep in words["VOLUME"]
