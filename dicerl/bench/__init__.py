"""``dicerl bench``: how fast it is, and what the machine allows."""
