"""What acts and is trained: networks, their weights as one vector, and how an episode behaves."""
