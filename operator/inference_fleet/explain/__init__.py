"""For people: what the operator would do, what it did, and why."""
