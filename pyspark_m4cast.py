"""Registers the data source `m4cast`: Spark imports every module on its Python path whose name begins with `pyspark_`.

An import that raises would disable all other data sources as well, so this module never raises.
"""

import logging

try:
    from m4cast.spark_connector.provider import M4castDataSource as DefaultSource
except Exception as error:
    logging.getLogger("m4cast.spark").warning("format('m4cast') is not available: %s", error)
else:
    __all__ = ["DefaultSource"]
