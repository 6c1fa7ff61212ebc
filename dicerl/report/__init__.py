"""Figures of a run's metrics, as one HTML file or as a live page."""
