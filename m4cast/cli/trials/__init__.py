"""Commands that try m4cast out on one machine: local clusters, the demo, the simulator, and `doctor`."""
