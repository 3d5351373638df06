"""Writes the reference of the public Python names, `API.md`, from their docstrings: `python docs/api.py`."""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).parent / "API.md"
MODULES = ("m4cast", "m4cast.aio")
HEAD = """# Python reference

Made from the docstrings by `python docs/api.py`; a test compares them. [CLIENT.md](CLIENT.md) explains the client,
[SPARK.md](SPARK.md) the data source, [HTTP.md](HTTP.md) the asynchronous client.
"""


def page() -> str:
    parts = [HEAD]
    for name in MODULES:
        module = importlib.import_module(name)
        public = [each for each in module.__all__ if not each.startswith("__")]
        for each in public:
            parts += entry(f"{name}.{each}", getattr(module, each))
    return "\n".join(parts)


def entry(name: str, what: object) -> Iterator[str]:
    yield f"## {name}\n"
    if isinstance(what, type) and issubclass(what, Exception):
        bases = ", ".join(f"`{base.__name__}`" for base in what.__bases__)
        yield f"An error; a subclass of {bases}.\n"
        yield text_of(what)
        return
    yield f"    {signature_of(what, name.rpartition('.')[2])}\n"
    yield text_of(what)
    if isinstance(what, type):
        for member, value in members_of(what):
            yield f"### {name}.{member}\n"
            if isinstance(value, property):
                yield text_of(value.fget)
            else:
                yield f"    {signature_of(value, member)}\n"
                yield text_of(value)


def members_of(what: type) -> list[tuple[str, object]]:
    """Public methods and properties, those of its bases among them, by name."""
    found = inspect.getmembers(what, lambda value: inspect.isfunction(value) or isinstance(value, property))
    return [(name, value) for name, value in found if not name.startswith("_")]


def signature_of(what: object, name: str) -> str:
    assert callable(what)
    written = re.sub(r"(: |-> )'([^']+)'", r"\1\2", str(inspect.signature(what)))  # names that are not defined yet
    written = re.sub(r"\b(?:m4cast\.[\w.]+|collections\.abc|typing|pyarrow\.lib)\.(\w+)", r"\1", written)
    return f"{name}{written.replace('(self, ', '(').replace('(self)', '()')}"


def text_of(what: object) -> str:
    """The docstring, with its examples as code."""
    lines = (inspect.getdoc(what) or "").splitlines()
    shown = []
    in_example = False
    for line in lines:
        in_example = line.startswith(">>>") or (in_example and bool(line.strip()))
        shown.append(f"    {line}" if in_example else line)
    return "\n".join(shown) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
