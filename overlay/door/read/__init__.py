"""Reading: rows (`reading`), delivery records and the roster (`deliveries`), and how far streams reach (`extents`)."""
