"""What acts and is trained: networks, their weights as one vector, behaviours of episodes."""
