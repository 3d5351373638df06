"""Serves the files of the console, from memory, with a policy that lets a page do nothing but talk to its own node.

The policy (Content-Security-Policy) allows scripts and styles that are files of this door, and connections to it: no
inline script, no foreign host, no frame, no form. With Trusted Types a text can never become markup: what rows and
peers say is shown as text, whatever it is. Files are read once, when the first is asked for.
"""

from functools import cache
from pathlib import Path
from typing import NamedTuple

from aiohttp import web
from xxhash import xxh3_64_hexdigest

STATIC = Path(__file__).parent / "static"
PAGE = "console.html"
MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Cache-Control": "no-cache",  # asked for again each time, and answered by 304 if it is the same
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class ConsoleFile(NamedTuple):
    media_type: str
    tag: str
    content: bytes


def file_answer(request: web.Request, name: str) -> web.Response:
    file = console_files().get(name)
    if file is None:
        raise web.HTTPNotFound
    headers = {**HEADERS, "ETag": file.tag}
    if request.headers.get("If-None-Match") == file.tag:
        return web.Response(status=304, headers=headers)
    return web.Response(body=file.content, content_type=file.media_type, charset="utf-8", headers=headers)


@cache
def console_files() -> dict[str, ConsoleFile]:
    """The files of the console by their paths under `static`."""
    paths = (path for path in STATIC.rglob("*") if path.suffix in MEDIA_TYPES)
    return {path.relative_to(STATIC).as_posix(): _file(path) for path in sorted(paths)}


def _file(path: Path) -> ConsoleFile:
    content = path.read_bytes()
    return ConsoleFile(MEDIA_TYPES[path.suffix], f'"{xxh3_64_hexdigest(content)}"', content)
