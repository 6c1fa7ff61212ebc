"""What a run looks like: figures of its metrics, as one HTML file or as a live page."""
