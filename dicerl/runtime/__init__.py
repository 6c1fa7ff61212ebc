"""Who wires the parts and watches over them: nothing of the algorithm is in here."""
