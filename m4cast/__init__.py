"""m4cast: a broadcast channel for Spark.

Every row that one pipeline writes reaches every site on the channel, in the order of its stream, without a broker.

This package is the front: public names and the command line. The code itself lives in the folders beside it, which are
reached from here by symlinks and imported under this name only (`m4cast.overlay`, `m4cast.spark_connector`, ...).
"""

__version__ = "0.1.0"
