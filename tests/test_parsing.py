"""The interpreter's parser, as `tests/conftest.py` mends it."""

import ast
import gc


def test_source_is_parsed_while_the_collector_runs_code_that_parses() -> None:
    """Another thread may do so, when a callback of the collector lets it run."""
    source = "\n".join(f"def f{number}(a): return [b + {number} for b in a]" for number in range(20))

    def parse_another(phase: str, _info: dict[str, int]) -> None:
        ast.parse("a.b" if phase == "start" else "a")

    thresholds = gc.get_threshold()
    gc.callbacks.append(parse_another)
    gc.set_threshold(10)
    try:
        assert len(ast.parse(source).body) == 20
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(parse_another)
