"""Counts hops, copies and bytes of changes of interest that spread in random graphs, in lock step."""

from random import Random

from tests.overlay.protocol.interest.mesh import Mesh, wish

DEGREE = 4


def regular(count: int, random: Random) -> list[tuple[int, int]]:
    """Edges of a random regular graph that grew by edge insertion, as channels do."""
    edges = [(i, j) for i in range(DEGREE + 1) for j in range(i)]
    linked = {i: {j for j in range(DEGREE + 1) if j != i} for i in range(DEGREE + 1)}
    for new in range(DEGREE + 1, count):
        linked[new] = set()
        while len(linked[new]) < DEGREE:
            at = random.randrange(len(edges))
            one, other = edges[at]
            if new in (one, other) or linked[new] & {one, other}:
                continue
            edges[at] = (one, new)
            edges.append((other, new))
            linked[one] ^= {other, new}
            linked[other] ^= {one, new}
            linked[new] |= {one, other}
    return edges


def eccentricity(edges: list[tuple[int, int]], start: int, without: frozenset[int] = frozenset()) -> int:
    near: dict[int, list[int]] = {}
    for one, other in edges:
        near.setdefault(one, []).append(other)
        near.setdefault(other, []).append(one)
    hops, ahead = {start: 0}, [start]
    for each in ahead:
        for other in near[each]:
            if other not in hops and other not in without:
                hops[other] = hops[each] + 1
                ahead.append(other)
    return max(hops.values())


def rounds_until_equal(mesh: Mesh, origin: int) -> int:
    """The number of rounds until all have the version of the origin's entry that it has just made."""
    for number in range(1, 100):
        mesh.step()
        version = mesh[origin].interest.view.entries[mesh[origin].node_id].version
        views = [member.interest.view.entries.get(mesh[origin].node_id) for member in mesh.members.values()]
        if all(entry is not None and entry.version == version for entry in views):
            mesh.run()
            return number
    raise AssertionError("views never become equal")


def hops_of_change(mesh: Mesh, origin: int, name: str) -> int:
    """The number of hops after which all know of one more registration."""
    mesh[origin].subscribe(wish(name, name))
    return rounds_until_equal(mesh, origin)


def hops_after_crashes(mesh: Mesh, origin: int, crashed: frozenset[int]) -> int:
    """The same when these nodes crash as soon as the news has left its origin."""
    mesh[origin].subscribe(wish("meanwhile", "meanwhile"))
    mesh.step()
    for each in crashed:
        mesh.crash(each)
    return 1 + rounds_until_equal(mesh, origin)


def bytes_of_change(mesh: Mesh) -> int:
    """The bytes of one more registration on all links; `mesh.copies` has its messages."""
    mesh.bytes = mesh.copies = 0
    mesh[3].subscribe(wish("one more", "one more"))
    mesh.run()
    return mesh.bytes


def filled(total: int) -> Mesh:
    """16 nodes with this many registrations, under a topic each."""
    mesh = Mesh(regular(16, Random(16)))
    share = -(-total // 16)
    for number, member in mesh.members.items():
        member.subscribe(*(wish(f"r{i}", f"t{number}-{i}") for i in range(min(share, total - number * share))))
        mesh.run()
    assert mesh.agree()
    return mesh
