"""Commands about topics: their settings, who wants which of their rows, and the keys of their publishers."""
