"""Scalers to compare with: what people run today, as published, reading what they could really read; and the bound of
foresight."""
