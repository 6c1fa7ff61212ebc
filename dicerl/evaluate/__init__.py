"""``dicerl evaluate``: episodes of a checkpoint, and a film of one of them."""
