"""Selection: composes interest, routes and selective topics, so that rows travel where somebody wants them."""
