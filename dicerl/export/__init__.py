"""Agents that leave their run: as one file for other runtimes, or as one folder to pass on."""
