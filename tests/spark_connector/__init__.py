"""The Spark connector: its pure parts by themselves, the rest through one Spark session and one local cluster."""
