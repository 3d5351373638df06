"""The demo's orders: what the shops of two cities sell, made from a seed by Spark itself.

Each row follows from the seed and its number alone, so that a micro-batch that is replayed is the same. Most rows are
orders, some are returns: they say by `_topic` where they are published.
"""

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

TOPICS = ("orders", "returns")
RETURN_EVERY = 20
SHOPS = {
    "Warsaw": ("Nowy Świat", "Praga", "Mokotów"),
    "Lisbon": ("Baixa", "Alfama", "Belém", "Chiado"),
}
GOODS = {"tea": 4.5, "jam": 3.2, "honey": 8.9, "bread": 2.1, "olive oil": 11.4, "sea salt": 1.7, "coffee": 7.3}
CURRENCIES = {"Warsaw": "PLN", "Lisbon": "EUR"}
CUSTOMERS = 5_000
PIECES_MAX = 6


def orders(spark: SparkSession, city: str, *, seed: int, rows_per_batch: int) -> DataFrame:
    """A stream of orders and returns in the shops of a city, so many with every micro-batch."""
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows_per_batch)
        .option("advanceMillisPerBatch", 1_000)
        .load()
    )

    def chance(what: str, of: int) -> Column:
        return F.pmod(F.xxhash64(F.lit(seed), F.lit(city), F.lit(what), F.col("value")), F.lit(of)).cast("int")

    def one_of(what: str, *values: object) -> Column:
        return F.element_at(F.array(*(F.lit(value) for value in values)), chance(what, len(values)) + 1)

    pieces = chance("pieces", PIECES_MAX) + 1
    price = F.element_at(F.create_map(*(F.lit(x) for pair in GOODS.items() for x in pair)), F.col("item"))
    return numbers.withColumn("item", one_of("item", *GOODS)).select(
        F.concat(F.lit(f"{city}-"), F.col("value").cast("string")).alias("order_id"),
        one_of("shop", *SHOPS[city]).alias("shop"),
        F.concat(F.lit("c"), chance("customer", CUSTOMERS).cast("string")).alias("customer"),
        "item",
        pieces.alias("pieces"),
        F.round(price * pieces, 2).alias("total"),
        F.lit(CURRENCIES[city]).alias("currency"),
        F.when(chance("return", RETURN_EVERY) == 0, TOPICS[1]).otherwise(TOPICS[0]).alias("_topic"),
    )


def city_of(order_id: Column) -> Column:
    return F.split_part(order_id, F.lit("-"), F.lit(1))


def number_of(order_id: Column) -> Column:
    """From 0, without holes over the orders and returns of a city."""
    return F.split_part(order_id, F.lit("-"), F.lit(2)).cast("long")
