"""``dicerl plan``: what a run would cost on machines that need not be here."""
