"""``dicerl evaluate``: plays episodes of a checkpoint, and films one of them."""
