"""Wiring and supervision of the parts; nothing of the algorithm is here."""
