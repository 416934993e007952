"""Which example comes when, as a pure function of its number."""
