"""A topology as a table for people, with what the graph survives."""

from rich.console import Console
from rich.table import Table

from m4cast.console.screen import styled_state
from m4cast.topology.graph import Topology


def print_topology(graph: Topology, console: Console) -> None:
    table = Table("node", "state", "degree", "neighbours", box=None, pad_edge=False)
    for node in graph.nodes:
        neighbours = " ".join(graph.name(neighbour) for neighbour in node.neighbours)
        table.add_row(node.name, styled_state(node.state), str(len(node.neighbours)), neighbours)
    console.print(table)
    console.print(f"{len(graph.nodes)} nodes, {len(graph.links)} links, diameter {graph.diameter}")
    if len(graph.components) > 1:
        parts = "; ".join(", ".join(part) for part in graph.components)
        console.print(f"the channel is split: {parts}", style="yellow", markup=False)
    if graph.half_links:
        pairs = ", ".join(f"{one}-{other}" for one, other in graph.named(graph.half_links))
        console.print(f"reported by one end only (new or gone): {pairs}", style="yellow", markup=False)
    if graph.lynchpins:
        console.print(f"single points of failure: {', '.join(graph.lynchpins)}", style="yellow")
    elif graph.lynchpins is not None and len(graph.nodes) > 2 and len(graph.components) == 1:
        console.print("survives the loss of any one node")
