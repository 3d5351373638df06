"""What clients ask a channel besides ranges and tails: tables as they stand, and questions to all nodes."""
